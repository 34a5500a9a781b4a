// Tabs by the ARIA pattern: one stop for the Tab key, arrows, Home and End move; the address remembers the tab.

/** `onShow` and `onHide` are called with the panel's id. */
export function startTabs(list, { onShow, onHide }) {
  const tabs = [...list.querySelectorAll('[role="tab"]')];
  let current = null;

  function select(tab, { focus = false, address = true } = {}) {
    if (tab === current) return;
    const before = current;
    current = tab;
    for (const each of tabs) {
      const on = each === tab;
      each.setAttribute("aria-selected", String(on));
      each.tabIndex = on ? 0 : -1;
      panelOf(each).hidden = !on;
    }
    if (focus) tab.focus();
    tab.scrollIntoView({ block: "nearest", inline: "nearest" });
    const name = panelOf(tab).id;
    if (address) history.replaceState(null, "", `#${name}`);
    document.title = `${tab.textContent} · gemel`;
    if (before) onHide(panelOf(before).id);
    onShow(name);
  }

  const panelOf = (tab) => document.getElementById(tab.getAttribute("aria-controls"));
  const named = () => tabs.find((tab) => `#${panelOf(tab).id}` === location.hash);

  list.addEventListener("click", (event) => {
    const tab = event.target.closest('[role="tab"]');
    if (tab) select(tab);
  });
  list.addEventListener("keydown", (event) => {
    const at = tabs.indexOf(current);
    const to = { ArrowRight: at + 1, ArrowLeft: at - 1, Home: 0, End: tabs.length - 1 }[event.key];
    if (to === undefined) return;
    event.preventDefault();
    select(tabs[(to + tabs.length) % tabs.length], { focus: true });
  });
  addEventListener("hashchange", () => {
    const tab = named();
    if (tab) select(tab, { address: false });
  });
  select(named() ?? tabs[0], { address: false });
}
