// Follows the orders while one of their jobs is unfinished, and stops when all have finished.
"use strict";
(() => {
  const live = document.getElementById("live");
  const news = document.getElementById("news");
  const EVERY = 1000; // milliseconds between an answer and the next question
  const SLOWEST = 15000; // the longest pause while the shop cannot be reached
  let pause = EVERY;

  const list = () => document.getElementById("newest-orders");
  const unfinished = () => list().dataset.unfinished === "yes";

  const states = () =>
    new Map(Array.from(list().querySelectorAll(".job"), (job) => [job.id, job.dataset.state]));

  // Read out what has changed, and not the whole list.
  const tell = (before) => {
    const changes = Array.from(list().querySelectorAll(".job"))
      .filter((job) => before.get(job.id) !== job.dataset.state)
      .map((job) => `${job.dataset.what}: ${job.dataset.state}.`);
    if (changes.length) news.textContent = changes.join(" ");
  };

  // Make one node like another, and touch nothing that is alike already: focus and selection stay.
  const morph = (old, fresh) => {
    if (old.isEqualNode(fresh)) return;
    if (old.nodeName !== fresh.nodeName || old.id !== fresh.id) return old.replaceWith(fresh);
    if (old.nodeType === Node.TEXT_NODE) return void (old.data = fresh.data);
    for (const { name } of [...old.attributes]) if (!fresh.hasAttribute(name)) old.removeAttribute(name);
    for (const { name, value } of fresh.attributes) old.setAttribute(name, value);
    let place = old.firstChild;
    for (const child of [...fresh.childNodes]) {
      const same = child.id ? [...old.children].find((one) => one.id === child.id) : !place?.id && place;
      if (!same) {
        old.insertBefore(child, place);
        continue;
      }
      if (same !== place) old.insertBefore(same, place);
      place = same.nextSibling;
      morph(same, child);
    }
    while (place) {
      const next = place.nextSibling;
      place.remove();
      place = next;
    }
  };

  // A focused button may have gone with the state of its job: then its card gets the focus.
  const show = (fresh) => {
    const focused = document.activeElement;
    const card = live.contains(focused) ? focused.closest(".card")?.id : null;
    morph(list(), fresh);
    if (card && !focused.isConnected) document.getElementById(card)?.focus({ preventScroll: true });
  };

  const look = async () => {
    const answer = await fetch(live.dataset.url, { cache: "no-store", signal: AbortSignal.timeout(10000) });
    if (!answer.ok) throw new Error(`the shop answered ${answer.status}`);
    const page = new DOMParser().parseFromString(await answer.text(), "text/html");
    const before = states();
    show(page.getElementById("newest-orders"));
    tell(before);
  };

  const follow = async () => {
    if (!unfinished()) return;
    if (!document.hidden) {
      try {
        await look();
        pause = EVERY;
      } catch {
        pause = Math.min(2 * pause, SLOWEST);
        document.getElementById("pace").textContent = "The shop cannot be reached. Trying again.";
      }
    }
    setTimeout(follow, pause);
  };

  document.documentElement.classList.add("scripted");
  setTimeout(follow, EVERY);
})();
