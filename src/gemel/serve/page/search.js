// The Search tab: results as you type, from an index of the server or from the texts in the box.

import { call, debounced, single } from "./api.js";
import { busy, el, parts, setStatus } from "./dom.js";
import * as format from "./format.js";
import { QUERY } from "./samples.js";
import { textBox } from "./textbox.js";

export function startSearch(panel) {
  const { form, results, texts: host } = parts(panel);
  const field = (id) => document.getElementById(id);
  const [query, source, count, hybrid, where] = ["query", "source", "search-k", "hybrid", "where"].map(field);
  const requests = single();
  const fieldsOf = new Map(); // the fields of each index, by the value of its option
  source.append(el("option", { value: "" }, "The texts below"));

  const search = debounced(() => run());
  const box = textBox(host, "search", { changed: search, examples: () => {
    source.value = "";
    shape();
    query.value ||= QUERY;
  } });

  function shape() {
    const indexed = source.value !== "";
    for (const node of panel.querySelectorAll("[data-index-only]")) node.hidden = !indexed;
    host.hidden = indexed;
    fieldsHint();
  }
  function requestBody() {
    const body = { query: query.value.trim(), k: Math.min(100, Math.max(1, Number(count.value) || 10)) };
    if (source.value === "") return { ...body, texts: box.texts() };
    const filter = where.value.trim();
    return { ...body, index: source.value.slice(1), hybrid: hybrid.checked, ...(filter ? { where: filter } : {}) };
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
      show(answer);
    } catch (error) {
      // Half a condition is refused: while it is typed, the results stay and the message is no alarm.
      const typing = body.where && [400, 422].includes(error.status) && document.activeElement === where;
      if (!typing) results.replaceChildren();
      setStatus(panel, typing ? `The filter is not applied yet: ${error.message}` : error.message, !typing);
    }
    busy(panel, false);
    return undefined;
  }
  function show({ hits, scored_by: by, exact, seconds }) {
    const most = Math.max(1, ...hits.map(strength));
    results.replaceChildren(...hits.map((hit) => hitView(hit, most, by)));
    const count = hits.length === 1 ? "1 result" : `${format.whole(hits.length)} results`;
    const took = typeof seconds === "number" ? ` in ${format.seconds(seconds)}` : "";
    setStatus(panel, `${hits.length ? count : "Nothing found"}${took}${exact === false ? ", from an approximate search" : ""}.`);
  }

  function fieldsHint() {
    const fields = Object.entries(fieldsOf.get(source.value) ?? {});
    where.closest(".field").hidden = !fields.length;
    if (!fields.length) return;
    where.placeholder = fields.slice(0, 2).map(([name, type]) => `${name} ${EXAMPLE[type] ?? "= 'a text'"}`).join(" and ");
    document.getElementById("where-hint").textContent = `Fields: ${fields.map(([name, type]) => `${name} (${type})`).join(", ")}`;
  }
  for (const node of [query, count, where]) node.addEventListener("input", search);
  where.addEventListener("change", search.now);
  for (const node of [source, hybrid]) {
    node.addEventListener("change", () => {
      shape();
      search.now();
    });
  }
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    search.now();
  });
  shape();
  run();
  listIndexes(source, fieldsOf, () => {
    shape();
    run();
  });
}

/** Lists the indexes of the server, if any, before the entry of the visitor's own texts. */
async function listIndexes(source, fieldsOf, chosen) {
  const answer = await call("/indexes").catch(() => ({ indexes: [] }));
  const indexes = answer.indexes ?? [];
  if (!indexes.length) return;
  for (const { name, fields } of indexes) fieldsOf.set(`=${name}`, fields ?? {});
  const typed = document.getElementById("query").value || document.getElementById("search-texts").value;
  source.prepend(...indexes.map(({ name, documents }) => el("option", { value: `=${name}` }, `${name}, ${format.whole(documents)} documents`)));
  if (typed) return; // the visitor has started with other texts
  source.value = `=${indexes[0].name}`;
  chosen();
}

const EXAMPLE = { int: ">= 10", float: ">= 0.5", bool: "= true" };

const strength = (hit) => hit.cosine ?? hit.score;

function hitView(hit, most, by) {
  const share = Math.max(0, Math.min(1, strength(hit) / most));
  const named = { cosine: "Cosine", fusion: "Cosine", cross: "Cosine" }[by] ?? "Score";
  const other = by && by !== "cosine" && hit.score !== hit.cosine;
  const calibrated = typeof hit.percentile === "number";
  return el(
    "li", { class: "hit" },
    el("p", {}, hit.text ?? hit.id),
    el(
      "div", { class: "meta" },
      el("span", { class: "bar", "aria-hidden": "true" }, el("i", { vars: { width: `${(100 * share).toFixed(1)}%` } })),
      el("span", {}, `${named} `, el("b", {}, format.score(strength(hit)))),
      other ? el("span", {}, by === "cross" ? "Reranked " : "Fused ", el("b", {}, format.score(hit.score))) : null,
      calibrated ? el("span", { title: "of random pairs of these texts score lower" }, "Above ", el("b", {}, format.percentile(hit.percentile)), " of random pairs") : null,
      relationView(hit.relation),
      Object.entries(hit.fields ?? {}).filter(([, value]) => value !== null)
        .map(([name, value]) => el("span", { class: "chip key" }, `${name}: ${value}`)),
      hit.part ? el("span", {}, `Passage ${format.whole(hit.part + 1)}`) : null,
    ),
  );
}

function relationView(relation) {
  const [label, share] = Object.entries(relation ?? {}).sort((a, b) => b[1] - a[1])[0] ?? [];
  return label === undefined ? null : el("span", { class: "chip" }, `${label} ${Math.round(100 * share)} %`);
}
