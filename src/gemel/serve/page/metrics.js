// The metrics of /status, by the names that the charts use. What a server does not report is undefined.

export function metricsOf(status) {
  const total = status.latency?.total ?? {};
  return {
    texts: status.throughput?.texts_per_second,
    tokens: status.throughput?.tokens_per_second,
    requests: status.throughput?.requests_per_second,
    median: total.p50 ?? undefined,
    slow: total.p95 ?? undefined,
    waiting: status.queue?.tokens,
    memory: status.memory_bytes,
    uptime: status.uptime_seconds,
    engine: status.engine,
    batch: status.batches?.texts_p50 ?? undefined,
    hits: status.cache?.hits,
    misses: status.cache?.misses,
    rejected: status.rejected,
  };
}
