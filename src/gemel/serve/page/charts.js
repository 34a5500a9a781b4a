// A metric over the last minute: its current value, its range, and a small line chart.

import { el, svg } from "./dom.js";

const WIDTH = 240;
const HEIGHT = 56;
export const HISTORY = 60;

/** Two values, each [number, unit], as "3 to 8 ms" or "8 ms". */
function between(low, high) {
  if (low[0] === high[0] && low[1] === high[1]) return `${high[0]} ${high[1]}`;
  return low[1] === high[1] ? `${low[0]} to ${high[0]} ${high[1]}` : `${low[0]} ${low[1]} to ${high[0]} ${high[1]}`;
}

/** {node, add(value)}; `write(value)` gives [number, unit]. A null value is a gap. */
export function chart(title, write) {
  const values = [];
  const now = el("p", { class: "now" }, "–");
  const range = el("p", { class: "range" }, " ");
  const area = svg("path", { class: "area" });
  const line = svg("path", { class: "line" });
  const base = svg("path", { class: "base", d: `M0 ${HEIGHT}H${WIDTH}` });
  const picture = svg("svg", { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, preserveAspectRatio: "none", "aria-hidden": "true" }, base, area, line);
  const node = el("figure", { class: "chart" }, el("figcaption", {}, title), now, picture, range);

  function add(value) {
    values.push(Number.isFinite(value) ? value : null);
    if (values.length > HISTORY) values.shift();
    const real = values.filter((each) => each !== null);
    const last = values.at(-1);
    const [number, unit] = last === null ? ["–", ""] : write(last);
    now.replaceChildren(number, el("small", {}, unit));
    if (!real.length) return;
    const most = Math.max(...real);
    range.textContent = `Last minute: ${between(write(Math.min(...real)), write(most))}`;
    draw(most);
  }
  function draw(most) {
    const top = most > 0 ? most : 1;
    const first = HISTORY - values.length;
    const x = (at) => (((first + at) * WIDTH) / (HISTORY - 1)).toFixed(1);
    const y = (value) => (HEIGHT - 3 - ((HEIGHT - 8) * value) / top).toFixed(1);
    let [path, fill, begun] = ["", "", null];
    values.forEach((value, at) => {
      if (value !== null) {
        path += `${begun === null ? "M" : "L"}${x(at)} ${y(value)}`;
        fill += begun === null ? `M${x(at)} ${HEIGHT}L${x(at)} ${y(value)}` : `L${x(at)} ${y(value)}`;
        begun ??= at;
      }
      const closes = begun !== null && (value === null || at === values.length - 1);
      if (closes) {
        fill += `L${x(value === null ? at - 1 : at)} ${HEIGHT}Z`;
        begun = null;
      }
    });
    line.setAttribute("d", path);
    area.setAttribute("d", fill);
  }
  return { node, add };
}
