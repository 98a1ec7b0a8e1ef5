/* Allotment: theme, live updates, the log's tail. Pages work without it. */
(() => {
  "use strict";
  const root = document.documentElement;
  const $ = (selector, within = document) => within.querySelector(selector);
  const $$ = (selector, within = document) => [...within.querySelectorAll(selector)];

  /** At most one repaint of a page in this time. */
  const REPAINT_MS = 1000;
  /** What tells an age is asked for again after this time, though nothing has happened. */
  const AGE_MS = 5000;
  /** Lines that the log keeps on the page; older ones are in the download. */
  const LOG_LINES_MAX = 5000;
  /** What was done is told for this time, or until the page changes. */
  const TOAST_MS = 8000;

  /* Times stand in UTC on the page; here they turn to the reader's zone. */
  const localise = (within) => $$("time[data-moment]", within).forEach((element) => {
    const at = new Date(element.dateTime);
    if (Number.isNaN(at.getTime())) return;
    const time = at.toLocaleTimeString(root.lang, { hour: "2-digit", minute: "2-digit", hourCycle: "h23" });
    const now = new Date();
    const today = at.toDateString() === now.toDateString();
    const year = at.getFullYear() === now.getFullYear() ? undefined : "numeric";
    const day = at.toLocaleDateString(root.lang === "en" ? "en-GB" : root.lang, { day: "numeric", month: "short", year });
    const shown = today ? time : `${day} ${time}`;
    if (element.textContent !== shown) element.textContent = shown;
  });

  /* What only makes sense with or without scripts. */
  const reveal = (within) => {
    $$("[data-without-script]", within).forEach((element) => { element.hidden = true; });
    $$("[data-with-script]", within).forEach((element) => { element.hidden = false; });
  };

  /* The theme's button asks for the other theme; when the system decides, only the browser knows which that is. */
  const theme = () => $$("[data-theme-form] button").forEach((button) => {
    const dark = root.dataset.theme ? root.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
    button.value = dark ? "light" : "dark";
  });

  /* ---- live regions: an event says that something changed, the page is asked for again, and what differs is exchanged ---- */
  const region = () => $("[data-live-region]");
  let due = null;
  let last = 0;

  /* Rows do not move under the pointer or the focus: the changes wait behind a button. */
  const held = (element) => {
    const list = element.dataset.hold && $(element.dataset.hold);
    return Boolean(list) && (list.matches(":hover") || list.contains(document.activeElement));
  };
  const busy = () => document.activeElement?.matches("select, input:not([type=checkbox]), textarea") || Boolean($(".pop:popover-open"));

  const offer = (element) => {
    if ($("#waiting")) return;
    const button = document.createElement("button");
    button.id = "waiting";
    button.type = "button";
    button.className = "btn waiting";
    button.textContent = document.body.dataset.waiting;
    button.addEventListener("click", () => refresh(element));
    $("#main").insertBefore(button, $(element.dataset.hold));
    $(element.dataset.hold).addEventListener("pointerleave", () => { if (!held(element)) refresh(element); }, { once: true });
  };
  const refresh = (element) => {
    $("#waiting")?.remove();
    last = Date.now();
    window.htmx.trigger(element, "refresh");
  };

  /* What was done is told once: neither a reload nor a change of the page tells it again. */
  const toast = () => {
    const note = $("[data-toast]");
    if (!note) return;
    const address = new URL(location.href);
    address.searchParams.delete("done");
    history.replaceState(null, "", address);
    setTimeout(() => note.remove(), TOAST_MS);
  };
  const changed = () => {
    if (due) return;
    due = setTimeout(() => {
      due = null;
      const element = region();
      if (!element || document.hidden) return;
      if (busy()) { changed(); return; }
      if (held(element)) offer(element); else refresh(element);
    }, Math.max(0, last + REPAINT_MS - Date.now()));
  };

  const connect = () => {
    const address = document.body.dataset.events;
    const state = $("#live-state");
    if (!address || !state || !region() || !window.htmx) return;
    const source = new EventSource(address);
    const show = (live) => {
      state.hidden = false;
      state.classList.toggle("off", !live);
      const words = live ? document.body.dataset.live : document.body.dataset.notLive;
      if (state.textContent !== words) state.textContent = words;
    };
    // Whatever changed between the page's making and this moment was told to nobody: look again.
    source.addEventListener("open", () => { show(true); changed(); });
    source.addEventListener("error", () => show(false));
    // Events are named by what changed; a page listens to what it shows.
    const { nouns = "", job } = region().dataset;
    const concerns = (event) => {
      const item = JSON.parse(event.data);
      // An array's page shows its elements, whose ids begin with its own.
      if (!job || !item.job || item.job === job || item.job.startsWith(`${job}.`)) changed();
    };
    nouns.split(" ").forEach((noun) => source.addEventListener(noun, concerns));
    source.addEventListener("reset", changed);
    document.addEventListener("visibilitychange", () => { if (!document.hidden) changed(); });
    setInterval(() => { if (region()?.matches("[data-ages]")) changed(); }, AGE_MS);
    window.addEventListener("pagehide", () => source.close());
  };

  /* ---- the log: what follows arrives as finished lines ---- */
  let tail = null;
  const follow = () => {
    const panel = $("#live-log");
    const list = $("#log");
    if (!panel || !list || !panel.dataset.stream) return;
    if (tail && tail.key === panel.dataset.key) return;
    if (tail) tail.source.close();
    // From its beginning on: what is shown would come twice.
    if (new URL(panel.dataset.stream, location.href).searchParams.get("offset") === "0") list.replaceChildren();
    const source = new EventSource(panel.dataset.stream);
    tail = { key: panel.dataset.key, source };
    const append = (event) => {
      const near = $("#follow")?.checked ?? true;
      list.insertAdjacentHTML("beforeend", event.data);
      while (list.childElementCount > LOG_LINES_MAX) list.firstElementChild.remove();
      if (near) list.scrollTop = list.scrollHeight;
    };
    source.addEventListener("lines", append);
    source.addEventListener("end", (event) => { append(event); source.close(); changed(); });
    // Refused, not merely cut off: the next look at the page tries again.
    source.addEventListener("error", () => { if (source.readyState === EventSource.CLOSED) tail = null; });
    window.addEventListener("pagehide", () => source.close());
  };

  /* What is said of a refused value is not said of the next one: the dry run tells what is wrong with that. */
  document.addEventListener("input", ({ target }) => {
    const field = target.closest?.(".field");
    if (!field || !$(".err", field)) return;
    $$(".err", field).forEach((element) => element.remove());
    $$("[aria-invalid]", field).forEach((element) => {
      element.removeAttribute("aria-invalid");
      const left = (element.getAttribute("aria-describedby") ?? "").split(" ").filter((id) => document.getElementById(id));
      if (left.length) element.setAttribute("aria-describedby", left.join(" ")); else element.removeAttribute("aria-describedby");
    });
    if (!$(".field .err")) $(".lede .bad")?.remove();
  });

  /* What a try said is not true any more of what is typed now: while the next one has no answer that is marked,
     and where it fails, that stands in its place. */
  const TRIED_MS = 1000;
  let unanswered;
  const areaOf = ({ target }) => target?.matches?.("[data-failed]") ? target : target && $("[data-failed]", target);
  const noteIn = (area, tone, text) => {
    const note = document.createElement("p");
    note.className = `small ${tone}`;
    note.textContent = text;
    area.append(note);
    const words = $("#submit-words");
    if (words) words.textContent = words.dataset.plain;
  };
  const old = (area) => {
    if (!area.isConnected || area.hasAttribute("aria-busy")) return;
    area.setAttribute("aria-busy", "true");
    noteIn(area, "warn", area.dataset.waits);
  };
  const untried = ({ detail }) => {
    const area = areaOf(detail);
    if (!area) return;
    clearTimeout(unanswered);
    area.removeAttribute("aria-busy");
    [...area.children].slice(1).forEach((element) => element.remove());
    noteIn(area, "bad", area.dataset.failed);
  };
  document.addEventListener("htmx:beforeRequest", ({ detail }) => {
    const area = areaOf(detail);
    if (!area) return;
    clearTimeout(unanswered);
    unanswered = setTimeout(() => old(area), TRIED_MS);
  });
  document.addEventListener("htmx:beforeSwap", ({ detail }) => { if (areaOf(detail)) clearTimeout(unanswered); });
  ["htmx:responseError", "htmx:sendError", "htmx:timeout"].forEach((name) => document.addEventListener(name, untried));

  /* What scrolls sideways shows on which sides it goes on. */
  const SIDEWAYS = ".tabs, .seg, .box, .box-plain";
  const goesOn = (element) => {
    const left = element.scrollLeft;
    const more = [left > 1 ? "left" : "", element.scrollWidth - element.clientWidth - left > 1 ? "right" : ""].join(" ").trim();
    if ((element.dataset.more ?? "") === more) return;
    if (more) element.dataset.more = more; else delete element.dataset.more;
  };
  const sideways = () => $$(SIDEWAYS).forEach(goesOn);
  document.addEventListener("scroll", ({ target }) => { if (target.matches?.(SIDEWAYS)) goesOn(target); }, { capture: true, passive: true });
  document.addEventListener("toggle", sideways, true);
  window.addEventListener("resize", sideways);
  window.addEventListener("load", sideways);

  document.addEventListener("change", (event) => {
    if (event.target.matches?.("select[data-submit]")) event.target.form.requestSubmit();
  });

  document.addEventListener("DOMContentLoaded", () => {
    localise(document);
    reveal(document);
    theme();
    const list = $("#log");
    if (list) list.scrollTop = list.scrollHeight;
    if (window.Idiomorph) {
      // What the reader opened stays open, and what scripts revealed stays revealed.
      window.Idiomorph.defaults.callbacks.beforeAttributeUpdated = (name, node) =>
        !((name === "open" && node.matches("details, dialog")) || (name === "hidden" && node.matches("[data-with-script], [data-without-script]")));
    }
    toast();
    connect();
    follow();
  });
  document.addEventListener("htmx:afterSettle", () => { localise(document); reveal(document); follow(); sideways(); });
})();
