// The Server tab: metrics every second while it is visible, what is loaded, and example requests.

import { call } from "./api.js";
import { chart } from "./charts.js";
import { el, parts, setStatus } from "./dom.js";
import { metricsOf } from "./metrics.js";
import * as format from "./format.js";
import { storedKey } from "./key.js";

const EVERY = 1000;

const parted = (text) => text.split(" ");
const CHARTS = [
  ["texts", "Texts answered", (value) => [format.short(value), "per second"]],
  ["median", "Latency, half of the requests", (value) => parted(format.seconds(value))],
  ["slow", "Latency, 95 of 100 requests", (value) => parted(format.seconds(value))],
  ["tokens", "Tokens computed", (value) => [format.short(value), "per second"]],
  ["waiting", "Waiting in the queue", (value) => [format.whole(value), "tokens"]],
  ["memory", "Memory", (value) => parted(format.bytes(value))],
];

/** {show, hide}: requests the metrics only between the two, and only while the page is visible. */
export function startServer(panel) {
  const { charts: host, facts, snippets } = parts(panel);
  const charts = CHARTS.map(([name, title, write]) => ({ name, ...chart(title, write) }));
  host.append(...charts.map(({ node }) => node));
  let timer = 0;
  let shown = false;
  let loaded = null;

  async function ask() {
    try {
      const metrics = metricsOf(await call("/status", { quiet: true }));
      for (const { name, add } of charts) add(metrics[name]);
      facts.replaceChildren(...factViews(loaded ?? {}, metrics));
      setStatus(panel, "Updated every second.");
    } catch (error) {
      for (const { add } of charts) add(null);
      setStatus(panel, error.message, true);
    }
  }
  function turn() {
    clearInterval(timer);
    if (!shown || document.hidden) return;
    ask();
    timer = setInterval(ask, EVERY);
  }
  document.addEventListener("visibilitychange", turn);
  return {
    async show() {
      shown = true;
      turn();
      if (loaded) return;
      loaded = await whatRuns();
      if (shown) ask();
      snippets.replaceChildren(...snippetViews(loaded.model));
    },
    hide() {
      shown = false;
      turn();
    },
  };
}

async function whatRuns() {
  const or = (value) => () => value;
  const [info, models, indexes] = await Promise.all([
    call("/info", { quiet: true }).catch(or({})),
    call("/v1/models", { quiet: true }).catch(or({})),
    call("/indexes", { quiet: true }).catch(or({})),
  ]);
  return { info, model: models.data?.[0]?.id ?? info.model_id, indexes: indexes.indexes ?? [] };
}

function factViews({ info = {}, model, indexes = [] }, metrics) {
  const lookups = (metrics.hits ?? 0) + (metrics.misses ?? 0);
  const refused = Object.entries(metrics.rejected ?? {}).filter(([, count]) => count);
  const facts = [
    ["Model", model],
    ["Reads", info.max_input_length && `${format.whole(info.max_input_length)} tokens of a text`],
    ["Sparse encoder", info.model_type?.sparse?.model_id],
    ["Late interaction", info.model_type?.late_interaction?.model_id],
    ["Engine", metrics.engine],
    ["Version", info.version],
    ["Running for", metrics.uptime !== undefined && format.since(metrics.uptime)],
    ["Requests", metrics.requests !== undefined && `${format.short(metrics.requests)} per second`],
    ["Batch", Number.isFinite(metrics.batch) && `${format.texts(metrics.batch)} (median)`],
    ["Cache", lookups > 0 && `${Math.round((100 * metrics.hits) / lookups)} % of ${format.texts(lookups)} were cached`],
    ["Refused", refused.length > 0 && refused.map(([reason, count]) => `${format.whole(count)} for ${reason}`).join(", ")],
    ["Indexes", indexes.length > 0 && indexes.map((index) => indexLine(index)).join(", ")],
  ];
  return facts.filter(([, value]) => value).flatMap(([name, value]) => [el("dt", {}, name), el("dd", {}, value)]);
}

function indexLine(index) {
  return `${index.name} (${format.whole(index.documents)} documents)`;
}

function snippetViews(model = "model") {
  const { origin } = location;
  const header = storedKey() ? "  -H 'authorization: Bearer YOUR-KEY' \\\n" : "";
  const curl = `curl ${origin}/v1/embeddings \\\n${header}  -H 'content-type: application/json' \\\n  -d '{"model": "${model}", "input": "A man plays a guitar."}'`;
  const python = `from openai import OpenAI\n\nclient = OpenAI(\n    base_url="${origin}/v1",\n    api_key="${storedKey() ? "your key" : "none"}",\n)\nanswer = client.embeddings.create(\n    model="${model}", input=["A man plays a guitar."]\n)`;
  return [snippet("From a shell", curl), snippet("With the openai client", python)];
}

function snippet(title, code) {
  const button = el("button", { type: "button", class: "quiet", "aria-label": `Copy: ${title}` }, "Copy");
  button.addEventListener("click", async () => {
    try {
      await navigator.clipboard.writeText(code);
      button.textContent = "Copied";
    } catch {
      button.textContent = "Select it to copy"; // a browser may forbid the clipboard
    }
    setTimeout(() => (button.textContent = "Copy"), 2000);
  });
  return el("div", { class: "snippet" }, el("div", { class: "above" }, el("span", { class: "soft" }, title), button),
    el("pre", { tabindex: "0", "aria-label": title }, el("code", {}, code)));
}
