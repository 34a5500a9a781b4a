// Browsers start no worker for pages that are opened from a disk. The search then runs in a hidden frame instead.
if (location.protocol === "file:") {
  window.Worker = class {
    constructor(url) {
      this.onmessage = this.onerror = this.onmessageerror = null;
      this.frame = document.createElement("iframe");
      this.frame.hidden = true;
      document.documentElement.append(this.frame);
      const inside = this.frame.contentWindow;
      inside.postMessage = (data) => setTimeout(() => this.onmessage?.({ data: structuredClone(data) }));
      this.ready = new Promise((resolve) => {
        const script = inside.document.createElement("script");
        script.onload = resolve;
        script.onerror = () => this.onerror?.(new Event("error"));
        script.src = url;
        inside.document.documentElement.append(script);
      });
    }

    postMessage(message) {
      const data = structuredClone(message);
      this.ready.then(() => this.frame?.contentWindow.onmessage({ data }));
    }

    terminate() {
      this.frame.remove();
      this.frame = null;
    }
  };
}
