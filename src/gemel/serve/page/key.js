// The API key: requested from the visitor after a 401, stored for this browser tab only.

const NAME = "gemel-key";
let waiting = null;

export function storedKey() {
  try {
    return sessionStorage.getItem(NAME);
  } catch {
    return null;
  }
}

function store(key) {
  try {
    sessionStorage.setItem(NAME, key);
  } catch {
    // Without storage the key is not remembered, and the visitor is asked again.
  }
}

const TITLES = { none: "This server needs an API key", refused: "This key was not accepted", another: "Use another API key" };
const MESSAGES = {
  none: "Ask the person who runs the server for a key.",
  refused: "The server does not know the key that you entered. Check it for a missing or an extra character, or ask the person who runs the server.",
  another: "It replaces the key that you entered before.",
};

function opened(why) {
  const dialog = document.getElementById("key-dialog");
  const field = document.getElementById("key");
  document.getElementById("key-button").hidden = false;
  document.getElementById("key-title").textContent = TITLES[why];
  document.getElementById("key-message").textContent = MESSAGES[why];
  field.value = "";
  return new Promise((resolve) => {
    dialog.returnValue = "";
    dialog.addEventListener(
      "close",
      () => {
        const key = field.value.trim();
        const used = dialog.returnValue === "use" && key !== "";
        if (used) store(key);
        field.value = "";
        resolve(used);
      },
      { once: true },
    );
    dialog.showModal();
    field.focus();
  });
}

/** True once a key was entered, false when the visitor declined. Several requests share one dialog. */
export function askForKey(why = storedKey() ? "refused" : "none") {
  waiting ??= opened(why).finally(() => {
    waiting = null;
  });
  return waiting;
}
