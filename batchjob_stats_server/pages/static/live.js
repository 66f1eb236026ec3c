/* Brings lists of jobs up to date while somebody looks at them, without a flicker. */
"use strict";

(() => {
  const SECONDS = 30;
  const form = document.querySelector("form.live");
  if (!form) return;

  /* Not while it would take something out of somebody's hand. */
  const busy = () => document.hidden || form.contains(document.activeElement) || form.querySelector("input:checked") || String(getSelection());

  async function renew() {
    if (busy()) return;
    const answer = await fetch(location.href, { credentials: "same-origin", headers: { Accept: "text/html" } });
    if (!answer.ok || busy()) return;
    const page = new DOMParser().parseFromString(await answer.text(), "text/html");
    const fresh = page.querySelector("form.live");
    if (!fresh || fresh.innerHTML === form.innerHTML) return;
    const sideways = [...form.querySelectorAll(".scroll")].map((each) => each.scrollLeft);
    form.replaceChildren(...fresh.children);
    [...form.querySelectorAll(".scroll")].forEach((each, i) => { each.scrollLeft = sideways[i] || 0; });
  }

  setInterval(() => { renew().catch(() => {}); }, SECONDS * 1000);
})();
