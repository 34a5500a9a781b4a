// The Compare tab: two texts, their score, and what each word of them adds to it.

import { debounced, single } from "./api.js";
import { busy, el, parts, setStatus } from "./dom.js";
import * as format from "./format.js";
import { fitted, fromSpecial, heatTable, sentence, strongest } from "./heat.js";
import { COMPARED } from "./samples.js";

export function startCompare(panel) {
  const { form, results, examples } = parts(panel);
  const [left, right] = ["left", "right"].map((id) => document.getElementById(id));
  const requests = single();
  let pieces = false; // words unless the visitor chooses tokens
  let shown = null;

  function draw() {
    const views = tables(shown);
    const view = pieces && views.tokens ? views.tokens : views.words;
    const choose = (on) => () => {
      pieces = on;
      draw();
      results.querySelector('.pick [aria-pressed="true"]').focus();
    };
    results.replaceChildren(...verdict(shown, view, views.tokens ? picker(pieces, choose) : null));
  }
  const compare = debounced(async () => {
    const body = { left: left.value.trim(), right: right.value.trim() };
    if (!body.left || !body.right) {
      requests.cancel();
      busy(panel, false);
      setStatus(panel, "");
      results.replaceChildren(el("p", { class: "empty" }, "Write two texts, or press Examples, to see which words make them similar."));
      return;
    }
    busy(panel, true);
    try {
      const answer = await requests.latest("/explain", body);
      if (answer === null) return;
      shown = answer;
      draw();
      setStatus(panel, `The cosine is ${format.score(answer.score)}.`);
    } catch (error) {
      results.replaceChildren();
      setStatus(panel, error.message, true);
    }
    busy(panel, false);
  }, 250);

  for (const node of [left, right]) node.addEventListener("input", compare);
  form.addEventListener("submit", (event) => event.preventDefault());
  examples.addEventListener("click", () => {
    [left.value, right.value] = COMPARED;
    compare.now();
  });
  compare.now();
}

/** The tables of an answer: of words, and of tokens where they differ. */
function tables(answer) {
  const tokens = { left: answer.left_tokens, right: answer.right_tokens, table: answer.table };
  if (!answer.word_table) return { words: tokens, tokens: null };
  const words = { left: answer.left_words, right: answer.right_words, table: answer.word_table };
  const same = String(words.left) === String(tokens.left) && String(words.right) === String(tokens.right);
  return { words, tokens: same ? null : tokens };
}

function picker(pieces, choose) {
  return el("div", { class: "pick", role: "group", "aria-label": "Rows and columns" },
    el("button", { type: "button", "aria-pressed": String(!pieces), onclick: choose(false) }, "Words"),
    el("button", { type: "button", "aria-pressed": String(pieces), onclick: choose(true) }, "Tokens"));
}

function verdict(answer, view, pick) {
  const small = fitted(view);
  const rows = view.table.map((row) => row.reduce((sum, value) => sum + value, 0));
  const columns = view.right.map((_, at) => view.table.reduce((sum, row) => sum + row[at], 0));
  const pairs = strongest(view).map(({ left, right, value }) =>
    el("li", {}, `“${left}” and “${right}” ${value >= 0 ? "add" : "take"} ${format.cell(Math.abs(value))}`));
  const special = fromSpecial(view);
  return [
    el("div", { class: "card" },
      el("div", { class: "verdict" }, el("b", {}, format.score(answer.score)), el("span", { class: "soft" }, "cosine, the sum of all cells")),
      sentence(view.left, rows, "One text"), sentence(view.right, columns, "The other")),
    el("div", { class: "why" }, el("div", { class: "card" },
      pick,
      el("p", { class: "keys" }, el("span", {}, el("i", { class: "for" }), "raises the score"), el("span", {}, el("i", { class: "against" }), "lowers the score")),
      ...heatTable(small, answer.score)),
    el("div", { class: "card" }, el("h3", {}, "The strongest pairs"), el("ol", { class: "strong" }, pairs),
      special ? el("p", { class: "hint" }, `Special tokens of the model, such as [CLS], ${special > 0 ? "add" : "take"} ${format.cell(Math.abs(special))} in all.`) : null)),
  ];
}
