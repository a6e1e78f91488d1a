// The only script: it keeps what is marked with data-live fresh, and counts what is selected. Every page works without it.
(() => {
  "use strict";
  const parts = () => document.querySelectorAll("[data-live]");

  // A part that somebody is about to use stays as it is until he leaves it.
  const busy = (part) => {
    const chosen = document.getSelection();
    return part.contains(document.activeElement) || (chosen && !chosen.isCollapsed && part.contains(chosen.anchorNode));
  };

  const show = (fresh) => {
    for (const part of parts()) {
      const html = fresh[part.dataset.live];
      if (html !== undefined && part.innerHTML !== html && !busy(part)) part.innerHTML = html; // made and escaped by the server
    }
  };

  const stream = document.querySelector("[data-stream]");
  if (stream && window.EventSource) {
    let source;
    const open = () => {
      if (source || document.hidden) return;
      source = new EventSource(stream.dataset.stream);
      source.onmessage = (e) => show(JSON.parse(e.data));
      source.addEventListener("end", () => { source.close(); window.location.reload(); });
    };
    const close = () => { if (source) source.close(); source = undefined; };
    document.addEventListener("visibilitychange", () => { if (document.hidden) close(); else open(); });
    window.addEventListener("pagehide", close);
    window.addEventListener("pageshow", open);
    open();
  }

  for (const form of document.querySelectorAll("form[data-selection]")) {
    const boxes = [...form.querySelectorAll("tbody input[type=checkbox]")];
    const all = form.querySelector("thead input[type=checkbox]");
    const count = form.querySelector("[data-count]");
    const tell = () => {
      const n = boxes.filter((b) => b.checked).length;
      const every = form.querySelector("[name=all]").checked;
      count.textContent = every ? "All that match" : n === 0 ? "Nothing selected" : n + " selected";
      if (all) { all.checked = n > 0 && n === boxes.length; all.indeterminate = n > 0 && n < boxes.length; }
      form.classList.toggle("chosen", every || n > 0);
    };
    if (all) {
      all.closest("label").hidden = false;
      all.addEventListener("change", () => { for (const b of boxes) b.checked = all.checked; tell(); });
    }
    form.addEventListener("change", tell);
    tell();
  }
})();
