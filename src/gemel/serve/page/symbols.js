// The symbol of a cluster on the map and in the list: eight colors and four shapes, so that 32 differ.

export const COLORS = 8;
const SHAPES = [
  (r) => [["M", r, 0], ["A", r]], // a disc
  (r) => [["M", -r, -r], ["L", r, -r], ["L", r, r], ["L", -r, r]],
  (r) => [["M", 0, -1.3 * r], ["L", 1.2 * r, r], ["L", -1.2 * r, r]],
  (r) => [["M", 0, -1.4 * r], ["L", 1.4 * r, 0], ["L", 0, 1.4 * r], ["L", -1.4 * r, 0]],
];

/** The name of the CSS class with the color of a cluster; -1 is no cluster. */
export const colorClass = (label) => (label < 0 ? "c-none" : `c${label % COLORS}`);

const shape = (label, radius) => SHAPES[label < 0 ? 0 : Math.floor(label / COLORS) % SHAPES.length](radius);

/** Adds the symbol to the open path of a canvas. */
export function trace(context, label, x, y, radius) {
  for (const [step, first, second] of shape(label, radius)) {
    if (step === "M") context.moveTo(x + first, y + second);
    else if (step === "L") context.lineTo(x + first, y + second);
    else context.arc(x, y, first, 0, 2 * Math.PI);
  }
}

/** The symbol as the `d` of an SVG path around 0, 0. */
export function outline(label, radius) {
  const steps = shape(label, radius).map(([step, first, second]) =>
    step === "A" ? `A${first} ${first} 0 1 1 ${-first} 0A${first} ${first} 0 1 1 ${first} 0` : `${step}${first} ${second}`);
  return `${steps.join("")}Z`;
}
