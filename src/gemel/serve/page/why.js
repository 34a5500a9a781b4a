// Why a text was found: its words that match the query are marked, and what each of them adds is listed below it.

import { call } from "./api.js";
import { el } from "./dom.js";
import * as format from "./format.js";
import { fromSpecial, sentence, strongest, written } from "./heat.js";
import { MODES } from "./modes.js";

const MOST = 8; // matches that are listed

/** A button and the element for its answer; `text` is the element with the text that was found. */
export function whyView({ query, found, index, kinds, text }) {
  const panel = el("div", { class: "matches", hidden: true });
  const status = el("p", { class: "soft", role: "status" });
  const name = `Why it matches: ${found.slice(0, 60)}`; // the results have one such button each
  const button = el("button", { type: "button", class: "link", "aria-expanded": "false", "aria-label": name }, "Why it matches");
  const answers = new Map();
  let kind = kinds[0];

  async function show() {
    text.replaceChildren(found);
    panel.replaceChildren(...(kinds.length > 1 ? [picker()] : []), status);
    status.textContent = "";
    try {
      if (!answers.has(kind)) {
        const body = { left: query, right: found, mode: kind, ...(index ? { index } : {}) };
        answers.set(kind, await call("/explain", { body }));
      }
    } catch (error) {
      status.textContent = error.message;
      return;
    }
    if (panel.hidden) return; // closed meanwhile
    const answer = answers.get(kind);
    if (answer.matches) text.replaceChildren(...marked(found, weights(answer)));
    panel.append(...(answer.matches ? matchList(answer) : wordPairs(answer)));
  }
  function picker() {
    const choose = (each) => () => {
      kind = each;
      show().then(() => panel.querySelector('[aria-pressed="true"]').focus());
    };
    return el("div", { class: "pick", role: "group", "aria-label": "Explained by" },
      kinds.map((each) => el("button", { type: "button", "aria-pressed": String(each === kind), onclick: choose(each) }, MODES[each])));
  }
  button.addEventListener("click", () => {
    const open = panel.hidden;
    panel.hidden = !open;
    button.setAttribute("aria-expanded", String(open));
    text.classList.toggle("whole", open);
    if (open) show();
    else text.replaceChildren(found);
  });
  return { button, panel };
}

/** What the matches add at each span of the text: [start, stop, sum], in order and without overlaps. */
function weights({ matches }) {
  const byStart = new Map();
  for (const { left, adds, spans } of matches) {
    if (!written(left)) continue;
    for (const [start, stop] of spans) {
      const [, last, sum] = byStart.get(start) ?? [start, stop, 0];
      byStart.set(start, [start, Math.max(stop, last), sum + adds]);
    }
  }
  const ordered = [...byStart.values()].sort((a, b) => a[0] - b[0]);
  return ordered.filter(([start], at) => at === 0 || start >= Math.max(...ordered.slice(0, at).map(([, stop]) => stop)));
}

/** The text with its matching spans marked; the server counts whole characters, not the units of JavaScript. */
function marked(found, spans) {
  const characters = [...found];
  const most = Math.max(...spans.map(([, , sum]) => sum));
  const nodes = [];
  let at = 0;
  for (const [start, stop, sum] of spans) {
    if (start > at) nodes.push(characters.slice(at, start).join(""));
    const share = most > 0 ? Math.max(20, (100 * sum) / most) : 20;
    nodes.push(el("mark", { class: "for", vars: { "--a": `${share.toFixed(0)}%` }, title: `adds ${format.score(sum)}` }, characters.slice(start, stop).join("")));
    at = stop;
  }
  return [...nodes, characters.slice(at).join("")];
}

const shown = (token) => token.replace(/^(##|Ġ|▁)/, "") || token;

function matchList({ mode, score, matches, missing }) {
  const own = matches.filter(({ left }) => written(left));
  const special = matches.filter(({ left }) => !written(left)).reduce((sum, { adds }) => sum + adds, 0);
  const items = own.slice(0, MOST).map(({ left, right, adds, spans }) => {
    const pair = mode === "late" ? `“${shown(left)}” finds “${shown(right)}” and` : `“${shown(left)}”${spans.length ? "" : " (not written, but meant)"}`;
    return el("li", {}, pair, mode === "words" ? (spans.length > 1 ? `, ${spans.length} times` : "") : [" adds ", el("b", {}, format.score(adds))]);
  });
  const what = { sparse: "The score is the sum over shared words", late: "The score is the sum over the tokens of the query", words: "Words of the query in this text" }[mode];
  return [
    el("p", {}, mode === "words" ? `${what}: ${format.whole(score)}.` : `${what}: ${format.score(score)}.`),
    items.length ? el("ul", {}, items) : el("p", { class: "soft" }, "No word of the query matches."),
    own.length > MOST ? el("p", { class: "soft" }, `${format.whole(own.length - MOST)} more add ${format.score(own.slice(MOST).reduce((sum, { adds }) => sum + adds, 0))}.`) : null,
    special ? el("p", { class: "soft" }, `Special tokens of the model add ${format.score(special)}.`) : null,
    missing.length ? el("p", { class: "soft" }, `Not in this text: ${missing.slice(0, MOST).map(shown).join(", ")}${missing.length > MOST ? ", …" : "."}`) : null,
  ].filter((node) => node !== null);
}

function wordPairs({ score, left_words: left, right_words: right, word_table: table }) {
  const sums = right.map((_, at) => table.reduce((sum, row) => sum + row[at], 0));
  const pairs = strongest({ left, right, table });
  const own = right.map((_, at) => at).filter((at) => written(right[at]));
  const special = fromSpecial({ left, right, table });
  return [
    el("p", {}, `The cosine is ${format.score(score)}. What each word adds to it:`),
    sentence(own.map((at) => right[at]), own.map((at) => sums[at]), "The text"),
    el("ul", {}, pairs.map((pair) => el("li", {}, `“${pair.left}” and “${pair.right}” ${pair.value >= 0 ? "add" : "take"} `, el("b", {}, format.cell(Math.abs(pair.value)))))),
    special ? el("p", { class: "soft" }, `Special tokens of the model ${special > 0 ? "add" : "take"} ${format.cell(Math.abs(special))} in all.`) : null,
  ].filter((node) => node !== null);
}
