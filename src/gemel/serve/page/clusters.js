// The Clusters tab: groups of similar texts, as a map and as a list.

import { el, svg } from "./dom.js";
import { downloads } from "./download.js";
import * as format from "./format.js";
import { startJob } from "./job.js";
import { textMap } from "./map.js";
import { colorClass, outline } from "./symbols.js";

const WAYS = {
  min_score: { label: "Score", value: 0.4, least: -1, most: 1, hint: "Each text of a cluster has at least this cosine with its center. Other texts are in no cluster." },
  k: { label: "How many", value: 8, least: 1, most: 10000, hint: "Every text belongs to the nearest of this many clusters." },
};
const MEMBERS = 200; // of one cluster in the list; the download has all

export function startClusters(panel) {
  startJob(panel, { path: "/clusters", ways: WAYS, least: 2, show });
}

function show(answer, texts) {
  const clusters = answer.clusters.filter(({ label }) => label >= 0);
  const titles = new Map(clusters.map(({ label, title }) => [label, title || `Cluster ${label}`]));
  const points = (answer.points ?? []).map(({ x, y, cluster, index }) => ({
    x, y, label: cluster ?? -1, index, text: texts[index] ?? "", title: titles.get(cluster) ?? "In no cluster",
  }));
  const groups = groupsOf(clusters, points, texts);
  const list = el("ul", { class: "groups", "aria-label": "Clusters" });
  const map = textMap(points, (label) => open(label, true));

  function open(label, focus = false) {
    const button = list.querySelector(`button[data-label="${label}"]`);
    const closing = !focus && button?.getAttribute("aria-expanded") === "true";
    for (const each of list.querySelectorAll(":scope > li > button")) {
      const on = each === button && !closing;
      each.setAttribute("aria-expanded", String(on));
      each.nextElementSibling.hidden = !on;
    }
    map.highlight(closing ? null : label);
    if (focus) button?.focus();
  }
  list.append(...groups.map((group) => groupView(group, open)));
  const alone = groups.find(({ label }) => label < 0)?.members.length ?? 0;
  const count = clusters.length === 1 ? "1 cluster" : `${format.whole(clusters.length)} clusters`;
  const head = el("div", { class: "above" }, el("h3", {}, count), downloads("clusters", () => content(answer, texts, points, titles)));
  return {
    nodes: [el("div", { class: "card" }, head, el("div", { class: "atlas" }, points.length ? map.node : null, list))],
    status: `${count} of ${format.texts(texts.length)}${alone ? `, ${format.whole(alone)} in none` : ""}.`,
  };
}

/** The clusters with the positions of their texts, and a last group of the texts that are in none. */
function groupsOf(clusters, points, texts) {
  const position = (member) => (typeof member === "object" && member !== null ? (member.index ?? member.id) : member);
  const groups = clusters.map(({ label, size, title, text, members }) => ({
    label, size, central: text, title: title || `Cluster ${label}`, members: (members ?? []).map(position).filter((at) => Number.isInteger(at)),
  }));
  const taken = new Set(groups.flatMap(({ members }) => members));
  const alone = points.filter(({ label, index }) => label < 0 && !taken.has(index)).map(({ index }) => index);
  if (alone.length) groups.push({ label: -1, size: alone.length, title: "In no cluster", members: alone });
  return groups.map((group) => ({ ...group, texts: group.members.map((at) => texts[at]) }));
}

function groupView({ label, size, title, central, texts }, open) {
  const symbol = svg("svg", { viewBox: "-8 -8 16 16", class: colorClass(label), "aria-hidden": "true" }, svg("path", { d: outline(label, label < 0 ? 3.5 : 5) }));
  const rest = texts.length - MEMBERS;
  return el(
    "li", {},
    el("button", { type: "button", "aria-expanded": "false", "data-label": label, onclick: () => open(label) },
      symbol, el("span", { class: "name" }, title, central && central !== title ? el("span", { class: "soft" }, central) : null), el("span", { class: "size" }, format.whole(size), el("span", { class: "visually-hidden" }, " texts"))),
    el("ul", { hidden: true }, texts.slice(0, MEMBERS).map((text) => el("li", {}, text)), rest > 0 ? el("li", {}, `and ${format.whole(rest)} more in the download`) : null),
  );
}

function content(answer, texts, points, titles) {
  const byIndex = new Map(points.map((point) => [point.index, point]));
  const rows = texts.map((text, index) => {
    const { label = -1, x = "", y = "" } = byIndex.get(index) ?? {};
    return [index, label, titles.get(label) ?? "", x, y, text];
  });
  return { names: ["index", "cluster", "title", "x", "y", "text"], rows, json: { ...answer, texts } };
}
