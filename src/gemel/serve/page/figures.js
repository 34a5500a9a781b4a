// The live figures of /status, by the names the charts use. What a server does not tell is undefined.

export function figuresOf(status) {
  const total = status.latency?.total ?? {};
  return {
    texts: status.texts_per_second,
    tokens: status.tokens_per_second,
    requests: status.requests_per_second,
    median: total.p50,
    slow: total.p95,
    waiting: status.queue?.tokens,
    memory: status.memory?.bytes,
    limit: status.memory?.limit,
    uptime: status.uptime,
    batch: status.batches?.texts,
    hits: status.cache?.hits,
    misses: status.cache?.misses,
    rejected: status.rejected,
  };
}
