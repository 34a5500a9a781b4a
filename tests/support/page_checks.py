"""Checks that run inside the browser: contrast of every visible text, and controls without a name."""

CONTRAST = """least => {
  const luminance = ([r, g, b]) => [r, g, b].map(v => v / 255)
    .map(v => v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4)
    .reduce((sum, v, at) => sum + v * [0.2126, 0.7152, 0.0722][at], 0);
  const canvas = document.createElement("canvas");
  canvas.width = canvas.height = 1;
  const context = canvas.getContext("2d", { willReadFrequently: true });
  // Painting the colors over one another gives the color that is seen, whatever notation they have.
  const painted = colors => {
    context.clearRect(0, 0, 1, 1);
    for (const color of colors) { context.fillStyle = color; context.fillRect(0, 0, 1, 1); }
    return [...context.getImageData(0, 0, 1, 1).data].slice(0, 3);
  };
  const behind = node => {
    const found = [];
    for (let at = node; at; at = at.parentElement) found.unshift(getComputedStyle(at).backgroundColor);
    return found;
  };
  const bad = [];
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (walker.nextNode()) {
    const node = walker.currentNode.parentElement;
    if (!walker.currentNode.textContent.trim() || ["SCRIPT", "NOSCRIPT", "OPTION"].includes(node.tagName)) continue;
    if (node.closest(".visually-hidden, .skip, .aside")) continue;
    if (!node.checkVisibility({ visibilityProperty: true })) continue;
    const paper = behind(node);
    const [a, b] = [painted(paper), painted([...paper, getComputedStyle(node).color])].map(luminance);
    const ratio = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
    const message = `${ratio.toFixed(2)} ${node.tagName}.${node.className}: ${node.textContent.slice(0, 30)}`;
    if (ratio < least) bad.push(message);
  }
  return bad;
}"""

UNNAMED = """() => {
  const bad = [];
  const visible = node => node.checkVisibility();
  const named = node => node.getAttribute("aria-label") || node.textContent.trim() ||
    [...(node.labels ?? [])].map(label => label.textContent).join("").trim();
  for (const node of document.querySelectorAll("input, select, textarea, button, a, [role=application], [role=grid]"))
    if (visible(node) && !named(node)) bad.push(`no name: ${node.outerHTML.slice(0, 80)}`);
  for (const node of document.querySelectorAll("[aria-controls], [aria-labelledby], label[for]"))
    for (const name of ["aria-controls", "aria-labelledby", "for"])
      if (node.hasAttribute(name) && !document.getElementById(node.getAttribute(name)))
        bad.push(`leads nowhere: ${node.outerHTML}`);
  const ids = [...document.querySelectorAll("[id]")].map(node => node.id);
  for (const id of new Set(ids.filter((id, at) => ids.indexOf(id) !== at))) bad.push(`twice: ${id}`);
  for (const tab of document.querySelectorAll("[role=tab]"))
    if ((tab.tabIndex === 0) !== (tab.getAttribute("aria-selected") === "true")) bad.push(`stop of ${tab.id}`);
  for (const node of document.querySelectorAll("button, input, select"))
    if (visible(node) && node.type !== "checkbox" && node.getBoundingClientRect().height < 24)
      bad.push(`too small: ${node.outerHTML.slice(0, 80)}`);
  if (document.querySelectorAll("h1").length !== 1 || !document.documentElement.lang) bad.push("one h1 and a language");
  return bad;
}"""
