// Makes elements. A text only ever becomes a text node, so no text can become markup.

const SVG = "http://www.w3.org/2000/svg";

function filled(node, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else if (name === "vars") for (const [key, style] of Object.entries(value)) node.style.setProperty(key, style);
    else node.setAttribute(name, value === true ? "" : String(value));
  }
  node.append(...children.flat().filter((child) => child !== null && child !== undefined));
  return node;
}

/** An element: el("p", { class: "soft", onclick: f, vars: { width: "3em" } }, "a text", anotherElement). */
export function el(tag, attributes = {}, ...children) {
  return filled(document.createElement(tag), attributes, children);
}

export function svg(tag, attributes = {}, ...children) {
  return filled(document.createElementNS(SVG, tag), attributes, children);
}

/** The parts of a panel by their data- names: parts(panel).status is its [data-status]. */
export function parts(panel) {
  const named = {};
  for (const node of panel.querySelectorAll("*")) {
    for (const name of ["form", "status", "results", "examples", "texts", "cancel", "charts", "facts", "snippets"]) {
      if (name in node.dataset && !(name in named)) named[name] = node;
    }
  }
  return named;
}

/** Sets the status line of a panel, which screen readers follow. */
export function setStatus(panel, text, bad = false) {
  const line = panel.querySelector("[data-status]");
  line.classList.toggle("bad", bad);
  if (line.textContent !== text) line.textContent = text;
}

export function busy(panel, on) {
  panel.setAttribute("aria-busy", String(on));
}

/** A box in which `node` scrolls sideways. Where it is too wide for the screen, a line and a shaded edge say so. */
export function scrollable(node, label) {
  const box = el("div", { class: "scroll" }, node);
  const hint = el("p", { class: "sideways", hidden: true }, "Scroll sideways to see all of it ", el("span", { "aria-hidden": "true" }, "→"));
  const update = () => {
    const rest = box.scrollWidth - box.clientWidth;
    const wide = rest > 1;
    hint.hidden = !wide;
    box.classList.toggle("more", wide && box.scrollLeft < rest - 1);
    for (const [name, value] of [["tabindex", "0"], ["role", "group"], ["aria-label", label]]) {
      if (wide) box.setAttribute(name, value);
      else box.removeAttribute(name);
    }
  };
  box.addEventListener("scroll", update, { passive: true });
  new ResizeObserver(update).observe(box);
  return el("div", { class: "wide" }, hint, box);
}
