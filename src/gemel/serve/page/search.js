// The Search tab: results as you type, from an index of the server or from the texts in the box, in the chosen mode.

import { call, debounced, single } from "./api.js";
import { busy, el, parts, setStatus } from "./dom.js";
import * as format from "./format.js";
import { MODES, textModes } from "./modes.js";
import { QUERY } from "./samples.js";
import { textBox } from "./textbox.js";
import { whyView } from "./why.js";

export function startSearch(panel) {
  const { form, results, texts: host } = parts(panel);
  const field = (id) => document.getElementById(id);
  const [query, source, count, mode, where] = ["query", "source", "search-k", "mode", "where"].map(field);
  const requests = single();
  const indexOf = new Map(); // what is known of each index, by the value of its option
  let ownModes = textModes({});
  source.append(el("option", { value: "" }, "The texts below"));

  const search = debounced(() => run());
  const box = textBox(host, "search", { changed: search, examples: () => {
    source.value = "";
    shape();
    query.value ||= QUERY;
  } });

  function shape(changed = false) {
    const indexed = source.value !== "";
    host.hidden = indexed;
    const modes = indexed ? (indexOf.get(source.value)?.modes ?? textModes({})) : ownModes;
    const before = mode.value;
    mode.replaceChildren(...modes.map((each) => el("option", { value: each }, MODES[each] ?? each)));
    mode.value = modes.includes(before) && !changed ? before : (indexOf.get(source.value)?.mode ?? modes[0]);
    fieldsHint();
  }
  function requestBody() {
    const body = { query: query.value.trim(), k: Math.min(100, Math.max(1, Number(count.value) || 10)) };
    if (source.value === "") return { ...body, mode: mode.value, texts: box.texts() };
    const filter = where.value.trim();
    return { ...body, mode: mode.value, index: source.value.slice(1), ...(filter ? { where: filter } : {}) };
  }
  function blank(message) {
    requests.cancel();
    busy(panel, false);
    setStatus(panel, "");
    results.replaceChildren(el("li", { class: "empty" }, message));
  }
  async function run() {
    const body = requestBody();
    if (body.texts && !body.texts.length) return blank("Enter some texts, or press Examples; results appear as you type.");
    if (!body.query) return blank("Type a query: results appear as you type.");
    busy(panel, true);
    try {
      const answer = await requests.latest("/search", body);
      if (answer === null) return undefined; // a newer request is running
      show(answer, body);
    } catch (error) {
      // Half a condition is refused: while it is typed, the results stay and the message is no alarm.
      const typing = body.where && [400, 422].includes(error.status) && document.activeElement === where;
      if (!typing) results.replaceChildren();
      setStatus(panel, typing ? `The filter is not applied yet: ${error.message}` : error.message, !typing);
    }
    busy(panel, false);
    return undefined;
  }
  function show({ hits, scored_by: by, exact, seconds }, { query: asked, index, mode: chosen }) {
    const most = Math.max(by === "sparse" || by === "late" || by === "words" ? 0 : 1, ...hits.map(strength)) || 1;
    const kinds = chosen === "hybrid" ? [...mode.options].map(({ value }) => value).filter((value) => value !== "hybrid") : [chosen];
    results.replaceChildren(...hits.map((hit) => hitView(hit, most, by, { query: asked, index, kinds })));
    const count = hits.length === 1 ? "1 result" : `${format.whole(hits.length)} results`;
    const took = typeof seconds === "number" ? ` in ${format.seconds(seconds)}` : "";
    setStatus(panel, `${hits.length ? count : "Nothing found"}${took}${exact === false ? ", from an approximate search" : ""}.`);
  }

  function fieldsHint() {
    const fields = Object.entries(indexOf.get(source.value)?.fields ?? {});
    where.closest(".field").hidden = !fields.length;
    if (!fields.length) return;
    where.placeholder = fields.slice(0, 2).map(([name, type]) => `${name} ${EXAMPLE[type] ?? "= 'a text'"}`).join(" and ");
    document.getElementById("where-hint").textContent = `Fields: ${fields.map(([name, type]) => `${name} (${type})`).join(", ")}`;
  }
  for (const node of [query, count, where]) node.addEventListener("input", search);
  where.addEventListener("change", search.now);
  mode.addEventListener("change", search.now);
  source.addEventListener("change", () => {
    shape(true);
    search.now();
  });
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    search.now();
  });
  shape();
  run();
  call("/info").then((info) => {
    ownModes = textModes(info);
    shape();
  }, () => {});
  listIndexes(source, indexOf, () => {
    shape(true);
    run();
  });
}

/** Lists the indexes of the server, if any, before the entry of the visitor's own texts. */
async function listIndexes(source, indexOf, chosen) {
  const answer = await call("/indexes").catch(() => ({ indexes: [] }));
  const indexes = answer.indexes ?? [];
  if (!indexes.length) return;
  for (const index of indexes) indexOf.set(`=${index.name}`, index);
  const typed = document.getElementById("query").value || document.getElementById("search-texts").value;
  source.prepend(...indexes.map(({ name, documents }) => el("option", { value: `=${name}` }, `${name}, ${format.whole(documents)} documents`)));
  if (typed) return; // the visitor has started with other texts
  source.value = `=${indexes[0].name}`;
  chosen();
}

const EXAMPLE = { int: ">= 10", float: ">= 0.5", bool: "= true" };

const strength = (hit) => hit.cosine ?? hit.score;

const SCORES = { cosine: "Cosine", sparse: "Product of weights", late: "MaxSim", words: "BM25", fusion: "Fused", cross: "Reranked" };

function hitView(hit, most, by, why) {
  const share = Math.max(0, Math.min(1, strength(hit) / most));
  const dense = typeof hit.cosine === "number";
  const other = dense && by && by !== "cosine" && hit.score !== hit.cosine;
  const calibrated = typeof hit.percentile === "number";
  const text = el("p", {}, hit.text ?? hit.id);
  const { button, panel } = hit.text ? whyView({ ...why, found: hit.text, text }) : {};
  return el(
    "li", { class: "hit" },
    text,
    el(
      "div", { class: "meta" },
      el("span", { class: "bar", "aria-hidden": "true" }, el("i", { vars: { width: `${(100 * share).toFixed(1)}%` } })),
      el("span", {}, `${dense ? "Cosine" : (SCORES[by] ?? "Score")} `, el("b", {}, format.score(strength(hit)))),
      other ? el("span", {}, `${SCORES[by] ?? "Score"} `, el("b", {}, format.score(hit.score))) : null,
      calibrated ? el("span", { title: "of random pairs of these texts score lower" }, "Above ", el("b", {}, format.percentile(hit.percentile)), " of random pairs") : null,
      relationView(hit.relation),
      Object.entries(hit.fields ?? {}).filter(([, value]) => value !== null)
        .map(([name, value]) => el("span", { class: "chip key" }, `${name}: ${value}`)),
      hit.part ? el("span", {}, `Passage ${format.whole(hit.part + 1)}`) : null,
      button,
    ),
    panel,
  );
}

function relationView(relation) {
  const [label, share] = Object.entries(relation ?? {}).sort((a, b) => b[1] - a[1])[0] ?? [];
  return label === undefined ? null : el("span", { class: "chip" }, `${label} ${Math.round(100 * share)} %`);
}
