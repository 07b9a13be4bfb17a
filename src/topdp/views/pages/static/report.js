// The report: reads the facts that the page contains, and shows each run in its own element.
"use strict";
(() => {
  const topdp = window.topdp;
  document.querySelector(".top").append(topdp.themeSwitch());
  const all = JSON.parse(document.getElementById("facts").textContent);
  if (all.length > 1) topdp.compareRuns(document.getElementById("comparison"), all);
  all.forEach((facts, place) => {
    const root = document.getElementById(`run-${place}`), fold = root.closest("details");
    if (!fold) return topdp.showRun(root, facts);
    // With several runs, each is drawn when it is first opened.
    fold.addEventListener("toggle", () => fold.open && !root.childElementCount && topdp.showRun(root, facts));
  });
  document.documentElement.setAttribute("data-ready", "");
})();
