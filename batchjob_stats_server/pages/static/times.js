/* Show times in the reader's zone or in UTC: one click changes all, and the browser remembers the choice. */
"use strict";

(() => {
  const KEY = "batchjob-zone";
  const remembered = () => { try { return localStorage.getItem(KEY); } catch { return null; } };
  let utc = remembered() === "utc";
  const originals = new WeakMap();
  const two = (number) => String(number).padStart(2, "0");

  function localZone(date) {
    const parts = new Intl.DateTimeFormat("en", { timeZoneName: "short" }).formatToParts(date);
    return parts.find((part) => part.type === "timeZoneName").value;
  }
  const zone = (date) => (utc ? "UTC" : localZone(date));

  const day = (date) => (utc
    ? [date.getUTCFullYear(), two(date.getUTCMonth() + 1), two(date.getUTCDate())]
    : [date.getFullYear(), two(date.getMonth() + 1), two(date.getDate())]);
  const clock = (date) => (utc
    ? `${two(date.getUTCHours())}:${two(date.getUTCMinutes())}`
    : `${two(date.getHours())}:${two(date.getMinutes())}`);
  /* Seconds and milliseconds are the same in every time zone. */
  const seconds = (text) => (text.match(/\d\d:\d\d(:\d\d(\.\d+)?)/) || ["", ""])[1];

  /* Keep the server's format: with or without year, with or without zone. */
  function reformat(text, date) {
    if (/^\d\d:\d\d$/.test(text)) return clock(date);
    const [year, month, dayOfMonth] = day(date);
    const parts = [`${/^\d{4}-/.test(text) ? `${year}-` : ""}${month}-${dayOfMonth}`];
    if (text.includes(":")) parts.push(clock(date) + seconds(text));
    if (text.endsWith(" UTC")) parts.push(zone(date));
    return parts.join(" ");
  }

  function apply(root) {
    for (const each of root.querySelectorAll("time[datetime], text[data-time]")) {
      if (!originals.has(each)) originals.set(each, each.textContent);
      each.textContent = reformat(originals.get(each), new Date(each.dataset.time ?? each.dateTime));
    }
    for (const each of root.querySelectorAll(".zone")) each.textContent = zone(new Date());
    const button = document.getElementById("zone");
    if (button) {
      button.hidden = localZone(new Date()) === "UTC"; // no choice: local time is UTC
      button.textContent = utc ? "Show local times" : "Show UTC";
    }
  }

  /* For plots: epoch milliseconds as an ISO time without a zone. */
  window.batchjobTime = {
    wall: (at) => new Date(utc ? at : at - new Date(at).getTimezoneOffset() * 60000).toISOString().slice(0, 23),
    epoch: (text) => (utc ? Date.parse(`${text.replace(" ", "T")}Z`) : Date.parse(text.replace(" ", "T"))),
    zone: () => zone(new Date()),
  };

  document.addEventListener("batchjob:renewed", () => apply(document));
  document.getElementById("zone")?.addEventListener("click", () => {
    utc = !utc;
    try { localStorage.setItem(KEY, utc ? "utc" : "local"); } catch { /* the choice is not remembered */ }
    apply(document);
    document.dispatchEvent(new Event("batchjob:zone"));
  });
  apply(document);
})();
