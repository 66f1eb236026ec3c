/* Updates the live parts of a visible page without flicker, and says if the server is unavailable. An
   element with `data-live` is replaced by the element of the same name. */
"use strict";

(() => {
  const SECONDS = 15;
  const parts = () => [...document.querySelectorAll("[data-live]")];
  if (!parts().length) return;
  const gone = document.getElementById("gone");
  let answered = new Date();

  /* Do not update while the user is selecting or editing something. */
  const isInUse = () => document.hidden || String(getSelection())
    || parts().some((part) => part.contains(document.activeElement) || part.querySelector("input:checked"));

  function showTrouble(trouble) {
    gone.hidden = !trouble;
    const words = trouble ? `${trouble} since ${answered.toLocaleTimeString()}. This page shows the state of that time.` : "";
    if (gone.textContent !== words) gone.textContent = words; // otherwise screen readers would repeat it
  }

  /* What is wrong with an answer; a server that is only busy is not unavailable. */
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
    if (isInUse()) return;
    let answer;
    try {
      answer = await fetch(location.href, { credentials: "same-origin", headers: { Accept: "text/html" } });
    } catch {
      return void showTrouble("The server has not answered");
    }
    showTrouble(troubleOf(answer.status));
    if (!answer.ok) return;
    answered = new Date();
    const page = new DOMParser().parseFromString(await answer.text(), "text/html");
    if (isInUse()) return;
    for (const part of parts()) replace(part, page.querySelector(`[data-live="${part.dataset.live}"]`));
    document.dispatchEvent(new Event("batchjob:renewed"));
  }

  const quietly = () => renew().catch(() => {});
  setInterval(quietly, SECONDS * 1000);
})();
