// The Pairs tab: which texts of a list mean the same.

import { el } from "./dom.js";
import { downloads } from "./download.js";
import * as format from "./format.js";
import { startJob } from "./job.js";
import { sortable } from "./table.js";

const WAYS = {
  expected_false: {
    label: "False pairs", value: 1, least: 0,
    hint: "Scores that unrelated texts of this list rarely reach: with 1, expect about one pair by chance. Needs no threshold, but about fifty texts.",
  },
  k: { label: "How many", value: 20, least: 1, most: 10000, hint: "The pairs with the highest scores, even if these are low." },
  min_score: { label: "Score", value: 0.7, least: -1, most: 1, hint: "Every pair with at least this cosine. What a good score is depends on the model." },
};

export function startPairs(panel) {
  startJob(panel, { path: "/pairs", ways: WAYS, least: 2, show });
}

function show(answer, texts) {
  const pairs = answer.pairs.map((pair) => ({
    ...pair,
    left_text: pair.left_text ?? texts[pair.left],
    right_text: pair.right_text ?? texts[pair.right],
  }));
  const count = pairs.length === 1 ? "1 pair" : `${format.whole(pairs.length)} pairs`;
  const compared = typeof answer.compared === "number" ? ` out of ${format.whole(answer.compared)} compared` : "";
  const took = typeof answer.seconds === "number" ? ` in ${format.seconds(answer.seconds)}` : "";
  const status = `${count}${compared}${took}.${answer.complete === false ? " There may be more: the search was not complete." : ""}`;
  if (!pairs.length) return { nodes: [el("p", { class: "empty" }, "No pair is that similar. Try a lower score or more expected false pairs.")], status };
  const head = el("div", { class: "above" }, el("h3", {}, count), downloads("pairs", () => content(pairs, answer)));
  return { nodes: [el("div", { class: "card" }, head, sortable("Sort by the headers of the columns.", columns(pairs), pairs))], status };
}

function columns(pairs) {
  const list = [
    { name: "Score", number: true, value: (pair) => pair.score, view: (pair) => [format.score(pair.score), bar(pair.score)] },
    { name: "Percentile", number: true, value: (pair) => pair.percentile, view: (pair) => format.percentile(pair.percentile) },
    { name: "Expected false", number: true, value: (pair) => pair.expected_false, view: (pair) => format.short(pair.expected_false) },
    { name: "One text", value: (pair) => pair.left_text, view: (pair) => pair.left_text },
    { name: "The other", value: (pair) => pair.right_text, view: (pair) => pair.right_text },
  ];
  const has = (key) => pairs.some((pair) => typeof pair[key] === "number");
  return list.filter(({ name }) => (name !== "Percentile" || has("percentile")) && (name !== "Expected false" || has("expected_false")));
}

const bar = (score) => el("span", { class: "bar", vars: { display: "block" }, "aria-hidden": "true" },
  el("i", { vars: { width: `${(100 * Math.max(0, Math.min(1, score))).toFixed(1)}%` } }));

function content(pairs, answer) {
  const names = ["left", "right", "score", "percentile", "expected_false", "left_text", "right_text"];
  return { names, rows: pairs.map((pair) => names.map((name) => pair[name])), json: { ...answer, pairs } };
}
