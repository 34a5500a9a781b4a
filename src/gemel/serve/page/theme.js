// Runs before the first paint, so that a chosen theme does not flash. Not a module: those run later.
(() => {
  let stored = null;
  try {
    stored = localStorage.getItem("gemel-theme");
  } catch {
    // Storage may be forbidden; then the theme of the system is used.
  }
  if (stored === "light" || stored === "dark") document.documentElement.dataset.theme = stored;
})();
