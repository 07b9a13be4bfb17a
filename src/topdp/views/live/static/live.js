// Events from the server. Reconnects after a lost connection.
// dash.js handles the events; this file is independent of the content of pages.
"use strict";
(() => {
  const topdp = window.topdp;
  const FIRST = 500, LONGEST = 5000; // milliseconds between two attempts
  const SILENT = 30000; // longer than the server's heartbeat of ten seconds
  const LOST = "connection lost, trying again";
  const KINDS = ["run", "agent", "gone", "federation"];

  // say(words, lost): reports the state of the connection. heard(kind, facts): receives an event. The kind "reset"
  // stands for a new connection: events may have been missed, so the page must be read again completely.
  topdp.live = (say, heard) => {
    let source = null, wait = FIRST, timer = null, watchdog = null, lost = false;

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
      source = new EventSource("/api/events");
      source.onopen = () => heard("reset", {});
      source.onerror = () => retry();
      source.addEventListener("beat", () => {
        alive();
        lost = false;
        wait = FIRST;
        say("live", false);
      });
      KINDS.forEach((kind) => source.addEventListener(kind, (event) => {
        alive();
        heard(kind, JSON.parse(event.data));
      }));
      alive();
    };
    // An event stream does not report why it was refused; another request does.
    const refusal = async () => {
      try {
        const answer = await fetch("/api/runs");
        return answer.ok ? null : (await answer.json()).problem;
      } catch {
        return LOST;
      }
    };
    // A browser has six connections to a server for all its tabs, so hidden tabs close theirs.
    document.addEventListener("visibilitychange", () => (document.hidden ? close() : open()));
    open();
  };
})();
