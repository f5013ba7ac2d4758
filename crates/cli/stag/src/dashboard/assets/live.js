// Draws what the daemon does, second by second, above the table that has the same in numbers.
"use strict";
(() => {
  const place = document.getElementById("charts"), words = document.getElementById("live");
  if (!place || !window.uPlot) return;
  const most = 300, columns = [[], [], [], [], [], [], []];
  const colour = name => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
  const charts = [];
  function chart(title, unit, lines) {
    const axis = { stroke: colour("--quiet"), grid: { stroke: colour("--line"), width: 1 }, ticks: { stroke: colour("--line"), width: 1 } };
    const figure = document.createElement("figure"), caption = document.createElement("figcaption");
    figure.style.margin = "0";
    caption.textContent = title + ", " + unit;
    figure.append(caption);
    place.append(figure);
    const marks = [colour("--link"), colour("--bad"), colour("--good")];
    const series = lines.map(([name, , factor], at) => ({
      label: name, stroke: marks[at], width: 2, dash: at ? [4 * at, 3] : undefined,
      value: (_, value) => value == null ? "–" : value.toLocaleString("en", { maximumFractionDigits: 2 }),
    }));
    const options = {
      width: figure.clientWidth || 320, height: 180, cursor: { drag: { x: false, y: false } },
      scales: { y: { range: (_, low, high) => [0, Math.max(high || 0, 1)] } },
      axes: [axis, { ...axis, size: 60 }], series: [{}, ...series],
    };
    const data = () => [columns[0], ...lines.map(([, column, factor]) => columns[column].map(value => value == null ? null : value * factor))];
    const drawn = new uPlot(options, data(), figure);
    charts.push(() => drawn.setData(data()));
    new ResizeObserver(() => drawn.setSize({ width: figure.clientWidth, height: 180 })).observe(figure);
  }
  chart("Commands", "a second", [["reads", 1, 1], ["writes", 2, 1], ["NFS calls", 3, 1]]);
  chart("Data", "MB/s", [["read", 4, 1e-6], ["written", 5, 1e-6]]);
  chart("Mean latency of iSCSI commands", "ms", [["latency", 6, 1]]);
  let since = 0;
  async function look() {
    if (document.hidden) return true;
    let answer;
    try { answer = await fetch("/live.json?since=" + since); } catch { words.textContent = "The daemon does not answer."; return true; }
    if (!answer.ok) { words.textContent = "The session has ended: log in again."; return false; }
    for (const sample of await answer.json()) {
      since = Math.round(sample[0] * 1000);
      columns.forEach((column, at) => { column.push(sample[at]); if (column.length > most) column.shift(); });
    }
    charts.forEach(draw => draw());
    words.textContent = "";
    return true;
  }
  (async function again() { if (await look()) setTimeout(again, 1000); })();
})();
