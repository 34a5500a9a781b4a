// The form of Pairs and Clusters: one request at a time, which can be canceled, and its result.

import { single } from "./api.js";
import { busy, el, parts, setStatus } from "./dom.js";
import * as format from "./format.js";
import { textBox } from "./textbox.js";

/**
 * ways: {name: {label, value, hint, least, most, step}}, what the number in the form means for each way.
 * `show(answer, texts)` gives the nodes of the result and the status line.
 */
export function startJob(panel, { path, ways, least, show }) {
  const { form, results, texts: host, cancel } = parts(panel);
  const id = panel.id;
  const [by, value, hint] = ["by", "value", "hint"].map((name) => document.getElementById(`${id}-${name}`));
  const submit = form.querySelector('[type="submit"]');
  const label = form.querySelector(`label[for="${id}-value"]`);
  const requests = single();
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
      setStatus(panel, `Give at least ${least} texts, one per line, or press Examples.`, true);
      return;
    }
    setStatus(panel, `Working on ${format.texts(texts.length)} …`);
    working(true);
    try {
      const answer = await requests.latest(path, { texts, [by.value]: Number(value.value) });
      if (answer === null) return;
      const { nodes, status } = show(answer, texts);
      results.replaceChildren(...nodes);
      setStatus(panel, status);
    } catch (error) {
      results.replaceChildren();
      setStatus(panel, error.message, true);
    }
    working(false);
  }
  by.addEventListener("change", shape);
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    run();
  });
  cancel.addEventListener("click", () => {
    requests.cancel();
    working(false);
    setStatus(panel, "Canceled.");
    submit.focus();
  });
  results.replaceChildren(el("p", { class: "empty" }, "Paste texts or drop a file. Examples show what the results look like."));
  shape();
}
