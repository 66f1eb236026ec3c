/* Tables with `data-file` can be sorted by clicking a heading and downloaded as CSV; buttons copy text. */
"use strict";

(() => {
  const value = (row, place) => {
    const cell = row.cells[place];
    const text = cell?.dataset.value ?? cell?.textContent.trim() ?? "";
    const number = Number(text);
    return text !== "" && !Number.isNaN(number) ? number : text;
  };

  /* Numbers before text, and unknown values last in both directions. */
  function compare(a, b, direction) {
    if (a === "" || b === "") return (a === "") - (b === "");
    if (typeof a !== typeof b) return typeof a === "number" ? -1 : 1;
    return direction * (typeof a === "number" ? a - b : a.localeCompare(b, "en", { numeric: true }));
  }

  function sort(table, head) {
    const direction = head.getAttribute("aria-sort") === "descending" ? 1 : -1;
    const place = head.cellIndex;
    for (const each of table.tHead.rows[0].cells) each.removeAttribute("aria-sort");
    head.setAttribute("aria-sort", direction < 0 ? "descending" : "ascending");
    const rows = [...table.tBodies[0].rows];
    rows.sort((a, b) => compare(value(a, place), value(b, place), direction));
    table.tBodies[0].append(...rows);
  }

  /* Spreadsheets would interpret text that starts like a formula as one. */
  const quoted = (text) => `"${(/^[=+@\t]|^-(?![\d.])/.test(text) ? `'${text}` : text).replaceAll('"', '""')}"`;
  const cellText = (cell) => cell.dataset.value ?? cell.innerText.trim();

  function download(table) {
    const lines = [...table.rows].map((row) => [...row.cells].map((cell) => quoted(cellText(cell))).join(","));
    const link = document.createElement("a");
    link.href = URL.createObjectURL(new Blob([`${lines.join("\r\n")}\r\n`], { type: "text/csv" }));
    link.download = table.dataset.file;
    link.click();
    setTimeout(() => URL.revokeObjectURL(link.href), 1000);
  }

  function prepare(table) {
    if (table.dataset.ready || !table.tHead) return;
    table.dataset.ready = "yes";
    for (const head of table.tHead.querySelectorAll("th")) {
      const button = document.createElement("button");
      button.type = "button";
      button.className = "sorter";
      button.append(...head.childNodes);
      button.addEventListener("click", () => sort(table, head));
      head.append(button);
    }
    const button = document.createElement("button");
    button.type = "button";
    button.className = "quiet file";
    button.textContent = "Download as CSV";
    button.addEventListener("click", () => download(table));
    (table.closest(".scroll") ?? table).after(button);
  }

  /* Copy the text of an element, or the page's URL with its zoom. */
  function copies(button) {
    button.hidden = false;
    button.addEventListener("click", async () => {
      const text = button.dataset.copies === "address" ? location.href : document.getElementById(button.dataset.copies).textContent;
      await navigator.clipboard.writeText(text);
      const before = button.textContent;
      button.textContent = "Copied";
      setTimeout(() => { button.textContent = before; }, 2000);
    });
  }
  const copiers = () => document.querySelectorAll("button.copy[hidden]").forEach(copies);
  if (navigator.clipboard) {
    copiers();
    document.addEventListener("batchjob:renewed", copiers);
  }

  const all = () => document.querySelectorAll("table[data-file]").forEach(prepare);
  document.addEventListener("batchjob:tables", all);
  all();
})();
