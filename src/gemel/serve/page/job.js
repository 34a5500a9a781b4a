// What Pairs and Clusters share: a form that asks once, can be cancelled, and says what became of it.

import { single } from "./api.js";
import { busy, el, parts, say } from "./dom.js";
import * as format from "./format.js";
import { textBox } from "./textbox.js";

/**
 * ways: {name: {label, value, hint, least, most, step}}, what the number in the form means for each way to ask.
 * `show(answer, texts)` gives the nodes of the result and the line to say.
 */
export function startJob(panel, { path, ways, least, show }) {
  const { form, results, texts: host, cancel } = parts(panel);
  const id = panel.id;
  const [by, value, hint] = ["by", "value", "hint"].map((name) => document.getElementById(`${id}-${name}`));
  const submit = form.querySelector('[type="submit"]');
  const label = form.querySelector(`label[for="${id}-value"]`);
  const asking = single();
  const box = textBox(host, id, { changed: () => {}, examples: () => form.requestSubmit() });

  function shape() {
    const way = ways[by.value];
    label.textContent = way.label;
    hint.textContent = way.hint;
    value.value = way.value;
    for (const [name, limit] of [["min", way.least], ["max", way.most]]) {
      if (limit === undefined) value.removeAttribute(name);
      else value.setAttribute(name, limit);
    }
  }
  function working(on) {
    busy(panel, on);
    submit.disabled = on;
    cancel.hidden = !on;
  }
  async function run() {
    const texts = box.texts();
    if (texts.length < least) {
      say(panel, `Give at least ${least} texts, one a line, or press Examples.`, true);
      return;
    }
    say(panel, `Working on ${format.texts(texts.length)} …`);
    working(true);
    try {
      const answer = await asking.latest(path, { texts, [by.value]: Number(value.value) });
      if (answer === null) return;
      const { nodes, said } = show(answer, texts);
      results.replaceChildren(...nodes);
      say(panel, said);
    } catch (error) {
      results.replaceChildren();
      say(panel, error.message, true);
    }
    working(false);
  }
  by.addEventListener("change", shape);
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    run();
  });
  cancel.addEventListener("click", () => {
    asking.cancel();
    working(false);
    say(panel, "Cancelled.");
    submit.focus();
  });
  results.replaceChildren(el("p", { class: "empty" }, "Paste texts or drop a file. Examples show what comes out."));
  shape();
}
