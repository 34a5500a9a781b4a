// A table that is sorted by its headers and shows more rows by a button, so that thousands of rows stay fast.

import { el, scrollable } from "./dom.js";
import * as format from "./format.js";

const STEP = 100;

/**
 * columns: [{name, value(row), view(row), number, text}]; number: right-aligned, largest first when chosen.
 * On a phone each row is a small card, and a select sorts instead of the headers.
 */
export function sortable(caption, columns, rows) {
  let shown = STEP;
  let sorting = { at: 0, down: Boolean(columns[0].number) };
  const body = el("tbody", { role: "rowgroup" });
  const more = el("button", { type: "button", class: "quiet", onclick: () => {
    shown += STEP * 4;
    draw();
  } });
  const headers = columns.map((column, at) => el("th", { scope: "col", role: "columnheader", class: column.number ? "number" : null },
    el("button", { type: "button", onclick: () => sortBy(at) }, column.name)));
  const choice = el("select", { "aria-label": "Sort by", onchange: (event) => sortBy(Number(event.target.value)) },
    columns.map((column, at) => el("option", { value: at }, `Sorted by ${column.name.toLowerCase()}`)));

  function sortBy(at) {
    sorting = { at, down: sorting.at === at ? !sorting.down : Boolean(columns[at].number) };
    choice.value = String(at);
    draw();
  }
  function ordered() {
    const { value } = columns[sorting.at];
    const sign = sorting.down ? -1 : 1;
    const compare = (a, b) => (typeof a === "number" && typeof b === "number" ? a - b : String(a ?? "").localeCompare(String(b ?? "")));
    return [...rows].sort((a, b) => sign * compare(value(a), value(b)));
  }
  function draw() {
    headers.forEach((header, at) => {
      if (at === sorting.at) header.setAttribute("aria-sort", sorting.down ? "descending" : "ascending");
      else header.removeAttribute("aria-sort");
    });
    body.replaceChildren(...ordered().slice(0, shown).map((row) => el("tr", { role: "row" }, columns.map((column) =>
      el("td", { role: "cell", class: column.number ? "number" : "text", "data-label": column.name }, column.view(row))))));
    more.hidden = shown >= rows.length;
    more.textContent = `Show more of ${format.whole(rows.length)}`;
  }
  draw();
  const table = el("table", { class: "list stack", role: "table" }, el("caption", {}, caption),
    el("thead", { role: "rowgroup" }, el("tr", { role: "row" }, headers)), body);
  return el("div", {}, el("div", { class: "sorter" }, choice), scrollable(table, caption), more);
}
