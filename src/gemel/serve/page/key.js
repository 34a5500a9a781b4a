// The API key: asked for when the server says 401, kept for this browser tab only.

const NAME = "gemel-key";
let waiting = null;

export function keptKey() {
  try {
    return sessionStorage.getItem(NAME);
  } catch {
    return null;
  }
}

function keep(key) {
  try {
    sessionStorage.setItem(NAME, key);
  } catch {
    // Without storage the key cannot be kept; the server will ask again.
  }
}

function opened(message) {
  const dialog = document.getElementById("key-dialog");
  const field = document.getElementById("key");
  document.getElementById("key-button").hidden = false;
  document.getElementById("key-message").textContent = message;
  field.value = "";
  return new Promise((resolve) => {
    dialog.returnValue = "";
    dialog.addEventListener(
      "close",
      () => {
        const key = field.value.trim();
        const used = dialog.returnValue === "use" && key !== "";
        if (used) keep(key);
        field.value = "";
        resolve(used);
      },
      { once: true },
    );
    dialog.showModal();
    field.focus();
  });
}

/** True once a key was given, false when the visitor declined. Several askers share one dialog. */
export function askForKey(message) {
  waiting ??= opened(message).finally(() => {
    waiting = null;
  });
  return waiting;
}
