// Runs before the first paint, so that a chosen theme does not flash. Not a module: those run later.
(() => {
  let kept = null;
  try {
    kept = localStorage.getItem("gemel-theme");
  } catch {
    // Storage may be forbidden; the system's theme is then the one.
  }
  if (kept === "light" || kept === "dark") document.documentElement.dataset.theme = kept;
})();
