// Downloads of results, made in the browser.

import { el } from "./dom.js";

// A text that begins like a formula would be run by a spreadsheet that opens the file: an apostrophe makes it text.
// Numbers stay as they are.
const withoutFormula = (value) => (typeof value === "string" && /^[=+\-@\t\r\n]/.test(value) ? `'${value}` : value);

const quoted = (value) => {
  const cell = value === null || value === undefined ? "" : String(withoutFormula(value));
  return /[",\r\n]/.test(cell) ? `"${cell.replaceAll('"', '""')}"` : cell;
};

export const csv = (names, rows) => [names, ...rows].map((row) => row.map(quoted).join(",")).join("\r\n") + "\r\n";

function save(name, type, content) {
  const address = URL.createObjectURL(new Blob([content], { type }));
  const link = el("a", { href: address, download: name });
  link.click();
  setTimeout(() => URL.revokeObjectURL(address), 10_000);
}

/** Two buttons; `content` is called when one is pressed and gives {names, rows, json}. */
export function downloads(name, content) {
  const button = (kind, act) => el("button", { type: "button", class: "quiet", onclick: act, "aria-label": `Download ${name} as ${kind}` }, `Download ${kind}`);
  return el(
    "div", { class: "row" },
    button("CSV", () => {
      const { names, rows } = content();
      save(`${name}.csv`, "text/csv", csv(names, rows));
    }),
    button("JSON", () => save(`${name}.json`, "application/json", JSON.stringify(content().json, null, 1))),
  );
}
