// The token table of two texts as a heat map whose cells sum to the score: a grid for the arrow keys.

import { el, scrollable } from "./dom.js";
import * as format from "./format.js";

const MOST = 36; // rows and columns; the rest of longer texts is summed in one

const total = (numbers) => numbers.reduce((sum, value) => sum + value, 0);

/** At most MOST rows: the heaviest, in their order, and one row with the sum of the others. */
function folded(names, rows) {
  if (names.length <= MOST) return { names, rows };
  const weight = rows.map((row) => Math.abs(total(row)));
  const heaviest = names.map((_, at) => at).sort((a, b) => weight[b] - weight[a]).slice(0, MOST - 1).sort((a, b) => a - b);
  const left = names.map((_, at) => at).filter((at) => !heaviest.includes(at));
  const rest = rows[0].map((_, column) => total(left.map((at) => rows[at][column])));
  return { names: [...heaviest.map((at) => names[at]), `(${left.length} others)`], rows: [...heaviest.map((at) => rows[at]), rest] };
}

const transposed = (rows) => rows[0].map((_, at) => rows.map((row) => row[at]));

/** {left, right, table}, small enough to be shown; the sum is the same. */
export function fitted({ left, right, table }) {
  const first = folded(left, table);
  const second = folded(right, transposed(first.rows));
  return { left: first.names, right: second.names, table: transposed(second.rows) };
}

function tinted(value, most) {
  const share = most ? (100 * Math.abs(value)) / most : 0;
  return { class: value >= 0 ? "for" : "against", vars: { "--a": `${share.toFixed(0)}%` } };
}

/** A text whose words are colored by what each adds to the score. */
export function sentence(names, sums, label) {
  const most = Math.max(...sums.map(Math.abs));
  const words = names.map((name, at) => el("span", { ...tinted(sums[at], most), title: `adds ${format.cell(sums[at])}` }, name));
  return el("p", { class: "sentence" }, el("b", { class: "visually-hidden" }, `${label}: `), words.flatMap((word) => [word, " "]));
}

// [CLS], <s>, <|endoftext|>: tokens of the model, which nobody wrote; (offset): what the last layer adds to every text.
const SPECIAL = /^(\[[A-Z]+\] ?|\[unused\d+\]|<\/?\w+>|<\|.*\|>|\(offset\))$/;
export const written = (name) => !SPECIAL.test(name);

/** What special tokens add to the score, alone or together with a word. */
export function fromSpecial({ left, right, table }) {
  return total(table.flatMap((row, i) => row.filter((_, j) => !written(left[i]) || !written(right[j]))));
}

/** The words with the largest cells, as sentences: the table for those who cannot see it. */
export function strongest({ left, right, table }, count = 5) {
  const cells = table.flatMap((row, i) => row.map((value, j) => ({ value, i, j })))
    .filter(({ i, j }) => written(left[i]) && written(right[j]));
  return cells.sort((a, b) => Math.abs(b.value) - Math.abs(a.value)).slice(0, count)
    .map(({ value, i, j }) => ({ left: left[i], right: right[j], value }));
}

export function heatTable({ left, right, table }, score) {
  const most = Math.max(...table.flat().map(Math.abs));
  const reading = el("p", { class: "reading soft", "aria-live": "polite" }, "Point at a cell, or use the arrow keys, to read it.");
  const head = el("tr", {}, el("td"), right.map((name) => el("th", { scope: "col", title: name }, name)), el("th", { scope: "col", class: "sum" }, "sum"));
  const body = table.map((row, i) => el(
    "tr", {},
    el("th", { scope: "row", title: left[i] }, left[i]),
    row.map((value, j) => el("td", { ...tinted(value, most), tabindex: i + j ? "-1" : "0", "data-i": i, "data-j": j }, format.cell(value))),
    el("td", { class: "sum" }, format.cell(total(row))),
  ));
  const foot = el("tr", {}, el("th", { scope: "row", class: "sum" }, "sum"), transposed(table).map((column) => el("td", { class: "sum" }, format.cell(total(column)))),
    el("td", { class: "sum" }, el("b", {}, format.cell(total(table.flat())))));
  const grid = el("table", { class: "heat", role: "grid", "aria-readonly": "true", "aria-label": "What each pair of words adds to the score" },
    el("thead", {}, head), el("tbody", {}, body, foot));
  const read = (cell) => {
    if (cell?.dataset.i === undefined) return;
    const value = table[cell.dataset.i][cell.dataset.j];
    const part = score ? `, ${((100 * value) / score).toFixed(1)} % of the score` : "";
    const verb = value >= 0 ? "add" : "take";
    reading.textContent = `“${left[cell.dataset.i]}” and “${right[cell.dataset.j]}” ${verb} ${format.cell(Math.abs(value))}${value >= 0 ? part : ""}.`;
  };
  grid.addEventListener("pointerover", (event) => read(event.target.closest("td")));
  grid.addEventListener("focusin", (event) => read(event.target.closest("td")));
  grid.addEventListener("keydown", (event) => walk(event, grid));
  return [scrollable(grid, "The table of words"), reading];
}

function walk(event, grid) {
  const from = event.target.closest("td[data-i]");
  if (!from) return;
  const [i, j] = [Number(from.dataset.i), Number(from.dataset.j)];
  const last = Math.max(...[...grid.querySelectorAll("tbody tr:first-child td[data-j]")].map((cell) => Number(cell.dataset.j)));
  const to = { ArrowRight: [i, j + 1], ArrowLeft: [i, j - 1], ArrowDown: [i + 1, j], ArrowUp: [i - 1, j], Home: [i, 0], End: [i, last] }[event.key];
  const cell = to && grid.querySelector(`td[data-i="${to[0]}"][data-j="${to[1]}"]`);
  if (to) event.preventDefault();
  if (!cell) return;
  from.tabIndex = -1;
  cell.tabIndex = 0;
  cell.focus();
}
