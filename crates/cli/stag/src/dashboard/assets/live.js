// Draws what the daemon does, second by second, and keeps the tiles below at the values of now.
"use strict";
(() => {
  const place = document.getElementById("charts"), words = document.getElementById("live");
  if (!place || !words || !window.uPlot) return;
  const most = 300, columns = [[], [], [], [], [], [], []];
  const style = getComputedStyle(document.documentElement);
  const colour = name => style.getPropertyValue(name).trim();
  const number = value => value.toLocaleString("en", { maximumFractionDigits: value < 10 ? 1 : 0 });
  const scaled = (value, step, units) => {
    let at = 0;
    while (value >= step && at + 1 < units.length) { value /= step; at += 1; }
    return number(value) + " " + units[at];
  };
  const rate = value => scaled(value, 1000, ["B/s", "kB/s", "MB/s", "GB/s", "TB/s"]);
  const latency = ms => scaled(ms * 1000, 1000, ["µs", "ms", "s"]);
  const clock = second => new Date(second * 1000).toLocaleTimeString("en-GB");
  const shown = [clock, number, number, number, rate, rate, latency];
  const tiles = [...document.querySelectorAll("[data-column]")];
  const marks = [colour("--chart-1"), colour("--chart-2"), colour("--chart-3")];
  const font = "12px system-ui, sans-serif", height = 170;
  const charts = [];
  function chart(title, lines) {
    const quiet = { stroke: colour("--quiet"), font, grid: { stroke: colour("--line"), width: 1 }, ticks: { show: false } };
    const show = shown[lines[0][1]];
    const figure = document.createElement("figure"), caption = document.createElement("figcaption");
    caption.textContent = title;
    figure.append(caption);
    place.append(figure);
    const series = lines.map(([name, column], at) => ({
      label: name, stroke: marks[at], width: 2, dash: at ? [6 - 2 * at, 3] : undefined, points: { show: false },
      value: (_, value) => value == null ? "–" : shown[column](value),
    }));
    // The last five minutes at most, and half a minute at least: a chart grows to the right.
    const time = (_, low, high) => [Math.min(low ?? 0, (high ?? 0) - 30), high ?? 0];
    const options = {
      width: figure.clientWidth || 320, height, padding: [null, 30, null, null], cursor: { drag: { x: false, y: false }, y: false },
      scales: { x: { range: time }, y: { range: (_, low, high) => [0, high > 0 ? high * 1.1 : 1] } },
      axes: [{ ...quiet, space: 80, values: (_, all) => all.map(clock) }, { ...quiet, size: 64, values: (_, all) => all.map(value => show(value)) }],
      series: [{ label: "time" }, ...series],
    };
    const data = () => [columns[0], ...lines.map(([, column]) => columns[column])];
    const drawn = new uPlot(options, data(), figure);
    charts.push(() => drawn.setData(data()));
    new ResizeObserver(() => drawn.setSize({ width: figure.clientWidth, height })).observe(figure);
  }
  chart("Operations a second", [["reads", 1], ["writes", 2], ["NFS calls", 3]]);
  chart("Throughput", [["read", 4], ["written", 5]]);
  chart("Mean latency of iSCSI commands", [["latency", 6]]);
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
    if (columns[0].length) {
      for (const tile of tiles) {
        const value = columns[tile.dataset.column].at(-1);
        tile.textContent = value == null ? "–" : shown[tile.dataset.column](value);
      }
      words.textContent = "Live: these are the values of the last second.";
    }
    return true;
  }
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => location.reload());
  (async function again() { if (await look()) setTimeout(again, 1000); })();
})();
