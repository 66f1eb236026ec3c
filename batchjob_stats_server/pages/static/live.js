/* Brings what changes up to date while somebody looks at it, without a flicker, and says when the
   server is gone. A part with `data-live` is replaced by the part of the same name. */
"use strict";

(() => {
  const SECONDS = 15;
  const SOON = 3; // where something did not come in time for the page
  const parts = () => [...document.querySelectorAll("[data-live]")];
  if (!parts().length) return;
  const gone = document.getElementById("gone");
  let answered = new Date();

  /* Not while it would take something out of somebody's hand. */
  const held = () => document.hidden || String(getSelection())
    || parts().some((part) => part.contains(document.activeElement) || part.querySelector("input:checked"));

  function tell(trouble) {
    gone.hidden = !trouble;
    const words = trouble ? `${trouble} since ${answered.toLocaleTimeString()}. This page shows the state of that time.` : "";
    if (gone.textContent !== words) gone.textContent = words; // or it would be read aloud again
  }

  /* What is wrong with an answer; a server that lets others go first is not gone. */
  function troubleOf(status) {
    if (status >= 502) return "The server has not answered";
    if (status === 401) return "You have been signed out";
    if (status === 403 || status === 404) return "This page has not been available to you";
    return "";
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
      return void tell("The server has not answered");
    }
    tell(troubleOf(answer.status));
    if (!answer.ok) return;
    answered = new Date();
    const page = new DOMParser().parseFromString(await answer.text(), "text/html");
    if (held()) return;
    for (const part of parts()) replace(part, page.querySelector(`[data-live="${part.dataset.live}"]`));
    document.dispatchEvent(new Event("batchjob:renewed"));
  }

  const quietly = () => renew().catch(() => {});
  setInterval(quietly, SECONDS * 1000);
  if (document.querySelector("[data-live] .late")) setTimeout(quietly, SOON * 1000);
})();
