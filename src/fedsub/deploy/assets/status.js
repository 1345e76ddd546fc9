"use strict";
// The page fetches its own content anew. What was opened stays open, and silence is said.
(() => {
  const EVERY = 2000;
  const main = document.getElementById("main");
  let heard = new Date();
  let shown = "";

  const opened = () => [...main.querySelectorAll("details")].map((one) => one.open);

  const show = (text) => {
    if (text === shown) return;
    shown = text;
    const before = opened();
    const scrolled = [...main.querySelectorAll(".scroll")].map((one) => one.scrollLeft);
    main.innerHTML = text;
    main.querySelectorAll("details").forEach((one, i) => { one.open = before[i] ?? one.open; });
    main.querySelectorAll(".scroll").forEach((one, i) => { one.scrollLeft = scrolled[i] ?? 0; });
    const state = main.querySelector(".state");
    const name = main.querySelector("h1");
    if (state && name) document.title = `${name.textContent}: ${state.textContent}`;
  };

  const silent = (yes) => {
    let note = document.getElementById("silent");
    document.body.classList.toggle("silent", yes);
    if (!yes) { note?.remove(); return; }
    if (!note) {
      note = document.createElement("p");
      note.id = "silent";
      note.setAttribute("role", "alert");
      document.body.prepend(note);
    }
    note.textContent = `No answer since ${heard.toLocaleTimeString()}: the supervisor has ended, or is being started again.`;
  };

  const again = async () => {
    try {
      const answer = await fetch("/main", { cache: "no-store", signal: AbortSignal.timeout(10000) });
      if (!answer.ok) throw new Error(answer.statusText);
      show(await answer.text());
      heard = new Date();
      silent(false);
    } catch {
      silent(true);
    }
    setTimeout(again, EVERY);
  };
  setTimeout(again, EVERY);
})();
