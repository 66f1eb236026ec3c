/* A heat map of many lines: one row per node or GPU, time to the right, darker for larger values. */
"use strict";

window.batchjobHeat = (() => {
  const LEFT = 110, BOTTOM = 22;
  const css = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
  const byName = (a, b) => a.line.localeCompare(b.line, "en", { numeric: true });

  function drawCells(context, rows, box, times, top) {
    const width = box.width / times.length;
    const place = new Map(times.map((time, i) => [time, i]));
    rows.forEach((row, y) => {
      for (const point of row.points) {
        context.globalAlpha = 0.06 + 0.94 * Math.min(1, point.mean / top);
        context.fillRect(LEFT + place.get(point.time) * width, y * box.row, width + 0.5, box.row - (box.row > 4 ? 1 : 0));
      }
    });
    context.globalAlpha = 1;
  }

  function drawNames(context, rows, box) {
    let last = -20;
    rows.forEach((row, y) => {
      const at = y * box.row;
      if (at - last < 13 || (y && row.node === rows[y - 1].node && rows.length > 64)) return;
      context.fillText(rows.length > 64 ? row.node : row.line, LEFT - 6, at + box.row / 2, LEFT - 10);
      last = at;
    });
  }

  function draw(target, found, { write, label, clock, pick }) {
    const rows = [...found].sort(byName);
    const times = [...new Set(rows.flatMap((row) => row.points.map((point) => point.time)))].sort((a, b) => a - b);
    const top = Math.max(1e-12, ...rows.flatMap((row) => row.points.map((point) => point.mean)));
    const row = Math.max(1, Math.min(14, Math.floor(520 / rows.length)));
    const canvas = document.createElement("canvas");
    const width = Math.max(300, target.clientWidth), height = rows.length * row + BOTTOM;
    const ratio = window.devicePixelRatio || 1;
    canvas.width = width * ratio;
    canvas.height = height * ratio;
    canvas.className = "heat";
    canvas.setAttribute("role", "img");
    canvas.setAttribute("aria-label", label);
    const context = canvas.getContext("2d");
    context.scale(ratio, ratio);
    const box = { width: width - LEFT, row };
    context.fillStyle = css("--main");
    drawCells(context, rows, box, times, top);
    context.fillStyle = css("--soft");
    context.font = "11px system-ui, sans-serif";
    context.textAlign = "right";
    context.textBaseline = "middle";
    drawNames(context, rows, box);
    context.textAlign = "left";
    context.fillText(clock(times[0]), LEFT, height - 8);
    context.textAlign = "right";
    context.fillText(clock(times.at(-1)), width, height - 8);
    const at = (event) => rows[Math.floor(event.offsetY / row)];
    canvas.addEventListener("mousemove", (event) => {
      const over = at(event);
      const time = times[Math.floor(((event.offsetX - LEFT) / box.width) * times.length)];
      const point = over?.points.find((each) => each.time === time);
      canvas.title = point ? `${over.line}: ${write(over.unit, point.mean)}` : over?.line ?? "";
    });
    canvas.addEventListener("click", (event) => { if (at(event)) pick(at(event).node); });
    target.replaceChildren(canvas);
    return top;
  }

  return { draw };
})();
