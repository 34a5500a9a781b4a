// Light or dark: as the system, until the visitor chooses.

const NAME = "gemel-theme";

export function startTheme(button) {
  const system = matchMedia("(prefers-color-scheme: dark)");
  const root = document.documentElement;
  const dark = () => (root.dataset.theme ? root.dataset.theme === "dark" : system.matches);
  const show = () => button.setAttribute("aria-checked", String(dark()));
  button.addEventListener("click", () => {
    const next = dark() ? "light" : "dark";
    root.dataset.theme = next;
    try {
      localStorage.setItem(NAME, next);
    } catch {
      // Storage may be forbidden; the choice then lasts until the page is left.
    }
    show();
  });
  system.addEventListener("change", show);
  show();
}
