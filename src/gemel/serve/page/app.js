// Starts the page, and each tab when it is opened for the first time.

import { call } from "./api.js";
import { startClusters } from "./clusters.js";
import { startCompare } from "./compare.js";
import { askForKey } from "./key.js";
import { startPairs } from "./pairs.js";
import { startSearch } from "./search.js";
import { startServer } from "./server.js";
import { startTabs } from "./tabs.js";
import { startTheme } from "./theme_switch.js";

const STARTS = { search: startSearch, compare: startCompare, pairs: startPairs, clusters: startClusters, server: startServer };
const started = {};

async function nameModel() {
  const { data } = await call("/v1/models").catch(() => ({}));
  document.getElementById("model").textContent = data?.[0]?.id ?? "";
}

startTheme(document.getElementById("theme"));
startTabs(document.querySelector('[role="tablist"]'), {
  onShow(name) {
    started[name] ??= STARTS[name](document.getElementById(name)) ?? {};
    started[name].show?.();
  },
  onHide(name) {
    started[name]?.hide?.();
  },
});
document.getElementById("key-button").addEventListener("click", async () => {
  if (await askForKey("another")) nameModel();
});
// A file dropped outside of a box would make the browser leave the page.
for (const kind of ["dragover", "drop"]) {
  addEventListener(kind, (event) => {
    if (event.dataTransfer?.types.includes("Files")) event.preventDefault();
  });
}
nameModel();
