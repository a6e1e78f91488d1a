// The only script: it keeps elements marked with data-live fresh, copies commands, and counts the selection. Every page
// works without it.
(() => {
  "use strict";
  document.documentElement.classList.add("scripted"); // shows the buttons that copy

  // A browser gives its clipboard only to pages by https or from this machine; elsewhere the command is copied as a
  // selected text is.
  const copy = async (code) => {
    if (navigator.clipboard) return navigator.clipboard.writeText(code.textContent);
    document.getSelection().selectAllChildren(code);
    if (!document.execCommand("copy")) throw new Error("refused");
  };
  document.addEventListener("click", async (e) => {
    const button = e.target.closest("[data-copy]");
    if (!button) return;
    button.textContent = await copy(button.previousElementSibling).then(() => "Copied", () => "Select it");
    setTimeout(() => { button.textContent = "Copy"; button.blur(); }, 2000); // the part in use is not kept fresh
  });

  // Times are in UTC. Beside some, and under the pointer, they are in the zone of the browser too; in Swedish, which
  // writes the year first.
  const zone = Intl.DateTimeFormat().resolvedOptions().timeZone;
  const local = (time) => new Date(time.dateTime).toLocaleString("sv-SE", { timeZoneName: "short" });
  if (zone !== "UTC") {
    for (const time of document.querySelectorAll("time[data-local]")) {
      const here = document.createElement("small");
      here.textContent = local(time);
      time.append(here);
    }
    document.addEventListener("pointerover", (e) => {
      const time = e.target.closest("time");
      if (time) time.title = time.dateTime.replace("T", " ").replace("Z", " UTC, ") + local(time);
    });
  }

  const parts = () => document.querySelectorAll("[data-live]");

  // A part in use stays as it is until the user leaves it.
  const busy = (part) => {
    const chosen = document.getSelection();
    return part.contains(document.activeElement) || (chosen && !chosen.isCollapsed && part.contains(chosen.anchorNode));
  };

  const shown = new Map(); // by part
  const show = (fresh) => {
    for (const part of parts()) {
      const html = fresh[part.dataset.live];
      if (html === undefined || shown.get(part) === html || busy(part)) continue;
      part.innerHTML = html; // the server made and escaped it
      shown.set(part, html);
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
