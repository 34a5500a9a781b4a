// The map of texts: a canvas for the pointer and the arrow keys.

import { el } from "./dom.js";
import { COLORS, colorClass, trace } from "./symbols.js";

const EDGE = 18;
const HIT_RADIUS = 26; // pixels around the pointer within which the nearest text is chosen

/** points: [{x, y, label, text, title}]. Gives {node, highlight(label or null)}; `chosen(label)` on Enter or click. */
export function textMap(points, chosen) {
  const canvas = el("canvas");
  const tip = el("div", { class: "tip", hidden: true });
  const spoken = el("p", { class: "visually-hidden", "aria-live": "polite" });
  const node = el("div", { class: "map", tabindex: "0", role: "application", "aria-roledescription": "map",
    "aria-label": `Map of ${points.length} texts, similar ones near each other. Arrow keys move from text to text, Enter opens the cluster. The list of clusters has the same texts.` },
    canvas, tip, spoken);
  const positions = framed(points);
  const state = { current: -1, highlighted: null };
  const at = (index) => pixelOf(positions[index], node);

  const draw = () => paint(canvas, node, points, positions, state);
  function show(index, { aloud = false } = {}) {
    if (index === state.current) return;
    state.current = index;
    tip.hidden = index < 0;
    if (index >= 0) {
      const { text, title } = points[index];
      tip.replaceChildren(el("span", {}, title), text.length > 220 ? `${text.slice(0, 220)}…` : text);
      const [x, y] = at(index);
      const [width, height] = [node.clientWidth, node.clientHeight];
      const left = Math.min(Math.max(6, x + 14), Math.max(6, width - tip.offsetWidth - 6));
      const top = y + 14 + tip.offsetHeight > height ? y - tip.offsetHeight - 12 : y + 14;
      Object.assign(tip.style, { left: `${left}px`, top: `${Math.max(6, top)}px` });
      if (aloud) spoken.textContent = `${title}: ${text}`;
    }
    draw();
  }

  node.addEventListener("pointermove", (event) => show(nearest(positions, node, event)));
  node.addEventListener("pointerleave", () => show(-1));
  node.addEventListener("click", (event) => {
    const index = nearest(positions, node, event);
    if (index >= 0) chosen(points[index].label);
  });
  node.addEventListener("blur", () => show(-1));
  node.addEventListener("keydown", (event) => {
    const step = { ArrowRight: [1, 0], ArrowLeft: [-1, 0], ArrowDown: [0, 1], ArrowUp: [0, -1] }[event.key];
    if (step && points.length) show(state.current < 0 ? 0 : along(positions, state.current, step), { aloud: true });
    else if (event.key === "Enter" && state.current >= 0) chosen(points[state.current].label);
    else if (event.key === "Escape") show(-1);
    else return;
    event.preventDefault();
  });
  new ResizeObserver(draw).observe(node);
  new MutationObserver(draw).observe(document.documentElement, { attributeFilter: ["data-theme"] });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", draw);
  return { node, highlight(label) {
    state.highlighted = label;
    draw();
  } };
}

/** Positions from 0 to 1 that fill the square, both directions to the same scale. */
function framed(points) {
  let [low, high] = [[Infinity, Infinity], [-Infinity, -Infinity]];
  for (const { x, y } of points) {
    low = [Math.min(low[0], x), Math.min(low[1], y)];
    high = [Math.max(high[0], x), Math.max(high[1], y)];
  }
  const side = Math.max(high[0] - low[0], high[1] - low[1]) || 1;
  return points.map(({ x, y }) => [(x - (low[0] + high[0]) / 2) / side + 0.5, (y - (low[1] + high[1]) / 2) / side + 0.5]);
}

function pixelOf([x, y], node) {
  const [width, height] = [node.clientWidth, node.clientHeight];
  const side = Math.min(width, height) - 2 * EDGE;
  return [width / 2 + (x - 0.5) * side, height / 2 + (y - 0.5) * side];
}

function nearest(positions, node, event) {
  const frame = node.getBoundingClientRect();
  let [best, closest] = [HIT_RADIUS ** 2, -1];
  positions.forEach((position, index) => {
    const [x, y] = pixelOf(position, node);
    const far = (x - event.clientX + frame.left) ** 2 + (y - event.clientY + frame.top) ** 2;
    if (far < best) [best, closest] = [far, index];
  });
  return closest;
}

/** The next text in a direction: near, and not too far to the side. Stays where there is none. */
function along(positions, from, [right, down]) {
  const [x, y] = positions[from];
  let [best, closest] = [Infinity, from];
  positions.forEach(([px, py], index) => {
    const ahead = (px - x) * right + (py - y) * down;
    const aside = Math.abs((px - x) * down) + Math.abs((py - y) * right);
    if (index === from || ahead <= 0 || aside > 2 * ahead) return;
    const far = ahead + 2 * aside;
    if (far < best) [best, closest] = [far, index];
  });
  return closest;
}

function colorsOf(node) {
  const probe = el("i");
  node.append(probe);
  const read = (name) => {
    probe.className = name;
    return getComputedStyle(probe).color;
  };
  const list = Array.from({ length: COLORS }, (_, at) => read(colorClass(at)));
  const others = { none: read(colorClass(-1)), ink: getComputedStyle(node).color };
  probe.remove();
  return { of: (label) => (label < 0 ? others.none : list[label % COLORS]), ink: others.ink };
}

function paint(canvas, node, points, positions, state) {
  const [width, height] = [node.clientWidth, node.clientHeight];
  if (!width) return; // its tab is hidden
  const dense = devicePixelRatio || 1;
  [canvas.width, canvas.height] = [Math.round(width * dense), Math.round(height * dense)];
  const context = canvas.getContext("2d");
  context.scale(dense, dense);
  const colors = colorsOf(node);
  const radius = points.length > 3000 ? 2.2 : points.length > 400 ? 3.4 : 5.5;
  points.forEach(({ label }, index) => {
    const [x, y] = pixelOf(positions[index], node);
    const faint = state.highlighted !== null && state.highlighted !== label;
    context.globalAlpha = faint ? 0.14 : label < 0 ? 0.5 : 0.85;
    context.fillStyle = colors.of(label);
    context.beginPath();
    trace(context, label, x, y, label < 0 ? radius * 0.7 : radius);
    context.fill();
  });
  context.globalAlpha = 1;
  if (state.current < 0) return;
  const [x, y] = pixelOf(positions[state.current], node);
  context.strokeStyle = colors.ink;
  context.lineWidth = 2;
  context.beginPath();
  context.arc(x, y, radius + 5, 0, 2 * Math.PI);
  context.stroke();
}
