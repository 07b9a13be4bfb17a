// Events from the server: comes again by itself after a lost connection, with what was seen last.
// What is done with them is dash.js's; nothing here knows what is on a page.
"use strict";
(() => {
  const topdp = window.topdp;
  const FIRST = 500, LONGEST = 5000; // milliseconds between two attempts
  const SILENT = 30000; // the server says something every ten seconds
  const LOST = "connection lost, trying again";
  const KINDS = ["run", "agent", "gone", "federation", "reset"];

  // say(words, lost): how the connection is. heard(kind, facts): an event; "reset": everything has to be read anew.
  topdp.live = (say, heard) => {
    let source = null, last = null, wait = FIRST, timer = null, watchdog = null, lost = false;

    const close = () => {
      clearTimeout(watchdog);
      clearTimeout(timer);
      if (source) source.close();
      source = null;
    };
    const retry = (words = LOST) => {
      close();
      lost = true;
      say(words, true);
      timer = setTimeout(open, wait);
      wait = Math.min(LONGEST, 2 * wait);
    };
    const alive = () => {
      clearTimeout(watchdog);
      watchdog = setTimeout(retry, SILENT);
    };
    const open = async () => {
      close();
      if (lost) {
        const refused = await refusal();
        if (refused) return retry(refused);
        if (source || document.hidden) return;
      }
      source = new EventSource(`/api/events${last ? `?after=${encodeURIComponent(last)}` : ""}`);
      source.onerror = () => retry();
      source.addEventListener("beat", (event) => {
        alive();
        last = event.lastEventId || last;
        lost = false;
        wait = FIRST;
        say("live", false);
      });
      KINDS.forEach((kind) => source.addEventListener(kind, (event) => {
        alive();
        last = event.lastEventId;
        heard(kind, JSON.parse(event.data));
      }));
      alive();
    };
    // An event stream does not say why it was refused; another request does.
    const refusal = async () => {
      try {
        const answer = await fetch("/api/runs");
        return answer.ok ? null : (await answer.json()).problem;
      } catch {
        return LOST;
      }
    };
    // A browser has six connections to a server for all its tabs: those that nobody looks at let go of theirs.
    document.addEventListener("visibilitychange", () => (document.hidden ? close() : open()));
    open();
  };
})();
