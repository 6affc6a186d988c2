// The search of the site runs in a worker, which browsers refuse to pages that are opened as files.
// There a hidden frame takes its place: the theme asks for a shim of this name.
if (location.protocol === "file:") {
  window.IFrameWorker = window.Worker = class extends EventTarget {
    constructor(url) {
      super();
      const frame = document.createElement("iframe");
      frame.hidden = true;
      document.body.append(frame);
      this.inner = frame.contentWindow;
      const load = (src) => new Promise((done, failed) => {
        const script = this.inner.document.createElement("script");
        script.src = new URL(src, new URL(url, document.baseURI)).href;
        script.onload = done;
        script.onerror = failed;
        this.inner.document.body.append(script);
      });
      this.inner.importScripts = (...sources) =>
        sources.reduce((before, src) => before.then(() => load(src)), Promise.resolve());
      this.inner.postMessage = (data) => {
        const event = new MessageEvent("message", { data });
        this.dispatchEvent(event);
        if (this.onmessage) this.onmessage(event);
      };
      this.ready = load("");
    }

    postMessage(data) {
      this.ready.then(() => {
        const event = new this.inner.MessageEvent("message", { data });
        this.inner.dispatchEvent(event);
      });
    }

    terminate() {
      this.inner.frameElement.remove();
    }
  };
}
