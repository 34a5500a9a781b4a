// The box for texts: typed or pasted, one per line, or a file that is chosen or dropped.

import { el } from "./dom.js";
import { likely, lines, parsed } from "./files.js";
import * as format from "./format.js";
import { TEXTS } from "./samples.js";

const ACCEPT = ".txt,.csv,.tsv,.jsonl,.ndjson,.json";
const MOST_BYTES = 50_000_000;

/** Fills `host` and gives { texts(), onExamples }. `changed` is called when the texts change. */
export function textBox(host, id, { changed, examples }) {
  const area = el("textarea", { id: `${id}-texts`, rows: 7, spellcheck: "false", placeholder: "One text per line, or drop a file here" });
  const fileBox = el("div", { class: "file", hidden: true });
  const picker = el("input", { type: "file", accept: ACCEPT, hidden: true, tabindex: "-1", "aria-hidden": "true" });
  const count = el("span", { class: "count", "aria-live": "polite" });
  const label = el("label", { for: `${id}-texts` }, "Texts");
  let file = null;

  const texts = () => (file ? file.texts : lines(area.value));
  function refresh() {
    count.textContent = texts().length ? format.texts(texts().length) : "";
    changed();
  }
  function drop() {
    file = null;
    fileBox.hidden = true;
    area.hidden = label.hidden = false;
    refresh();
  }
  async function take(chosen) {
    try {
      if (chosen.size > MOST_BYTES) throw new Error("It is larger than 50 MB. Use the command line for such files: gemel pairs, gemel cluster.");
      const content = parsed(chosen.name, await chosen.text());
      file = { name: chosen.name, content, header: content.header, column: likely(content.columns(content.header)), texts: [] };
      showFile();
    } catch (error) {
      file = null;
      count.textContent = `${chosen.name} cannot be read. ${error.message}`;
    }
  }
  function showFile() {
    const columns = file.content.columns(file.header);
    file.column = Math.min(file.column, Math.max(0, columns.length - 1));
    file.texts = columns[file.column]?.texts ?? [];
    fileBox.replaceChildren(...fileView(id, file, columns, { drop, showFile }));
    fileBox.hidden = false;
    area.hidden = label.hidden = true;
    refresh();
  }

  const tools = el(
    "div", { class: "row" },
    el("button", { type: "button", class: "quiet", onclick: () => picker.click() }, "Choose a file"),
    el("button", { type: "button", class: "quiet", "data-examples": true, onclick: () => {
      drop();
      area.value = TEXTS.join("\n");
      examples?.();
      refresh();
    } }, "Examples"),
    count,
  );
  const box = el("div", { class: "texts" }, label, area, fileBox, picker, tools);
  picker.addEventListener("change", () => {
    if (picker.files.length) take(picker.files[0]);
    picker.value = "";
  });
  area.addEventListener("input", refresh);
  acceptDrops(box, take);
  host.replaceChildren(box);
  return { texts };
}

function fileView(id, file, columns, { drop, showFile }) {
  const choice = el("select", { id: `${id}-column`, onchange: (event) => {
    file.column = Number(event.target.value);
    showFile();
    document.getElementById(`${id}-column`)?.focus();
  } }, columns.map(({ name }, at) => el("option", { value: at, selected: at === file.column }, name)));
  const header = el("input", { type: "checkbox", id: `${id}-header`, onchange: (event) => {
    file.header = event.target.checked;
    showFile();
    document.getElementById(`${id}-header`)?.focus();
  } });
  header.checked = Boolean(file.header);
  return [
    el("b", {}, file.name),
    el("ul", {}, file.texts.slice(0, 3).map((text) => el("li", {}, text))),
    el(
      "div", { class: "row" },
      columns.length > 1 ? el("div", { class: "field" }, el("label", { for: `${id}-column` }, "Column of the texts"), choice) : null,
      file.header === null ? null : el("div", { class: "check" }, header, el("label", { for: `${id}-header` }, "The first row has names")),
      el("button", { type: "button", class: "quiet", onclick: drop }, "Remove the file"),
    ),
  ];
}

function acceptDrops(box, take) {
  let depth = 0; // enter and leave come for every child too
  const over = (by) => {
    depth = Math.max(0, depth + by);
    box.classList.toggle("over", depth > 0);
  };
  box.addEventListener("dragenter", () => over(1));
  box.addEventListener("dragleave", () => over(-1));
  box.addEventListener("dragover", (event) => event.preventDefault());
  box.addEventListener("drop", (event) => {
    depth = 0;
    over(0);
    const chosen = event.dataTransfer.files[0];
    if (!chosen) return; // a dragged text goes into the field as usual
    event.preventDefault();
    take(chosen);
  });
}
