/* Brings what changes up to date while somebody looks at it, without a flicker, and says when the
   server is gone. A part with `data-live` is replaced by the part of the same name. */
"use strict";

(() => {
  const SECONDS = 15;
  const parts = () => [...document.querySelectorAll("[data-live]")];
  if (!parts().length) return;
  const gone = document.getElementById("gone");
  let answered = new Date();

  /* Not while it would take something out of somebody's hand. */
  const held = () => document.hidden || String(getSelection())
    || parts().some((part) => part.contains(document.activeElement) || part.querySelector("input:checked"));

  function tell(lost) {
    gone.hidden = !lost;
    if (lost && !gone.textContent) {
      gone.textContent = `The server has not answered since ${answered.toLocaleTimeString()}. This page is as it was then.`;
    }
    if (!lost) gone.textContent = "";
  }

  function replace(part, fresh) {
    if (!fresh || fresh.innerHTML === part.dataset.seen) return;
    const sideways = [...part.querySelectorAll(".scroll")].map((each) => each.scrollLeft);
    part.dataset.seen = fresh.innerHTML;
    part.replaceChildren(...fresh.childNodes);
    [...part.querySelectorAll(".scroll")].forEach((each, i) => { each.scrollLeft = sideways[i] || 0; });
  }

  async function renew() {
    if (held()) return;
    let answer;
    try {
      answer = await fetch(location.href, { credentials: "same-origin", headers: { Accept: "text/html" } });
    } catch {
      return void tell(true);
    }
    if (answer.status >= 502) return void tell(true);
    answered = new Date();
    tell(false);
    if (!answer.ok) return;
    const page = new DOMParser().parseFromString(await answer.text(), "text/html");
    if (held()) return;
    for (const part of parts()) replace(part, page.querySelector(`[data-live="${part.dataset.live}"]`));
    document.dispatchEvent(new Event("batchjob:renewed"));
  }

  setInterval(() => { renew().catch(() => {}); }, SECONDS * 1000);
})();
