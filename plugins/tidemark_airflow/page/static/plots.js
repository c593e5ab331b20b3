// Plots of what the runs left, by uPlot, which is loaded when the first of them comes into sight.

import { draw } from "./page.js";
import { bytes, duration, h, short, stamp } from "./elements.js";
import { api, view } from "./servers.js";

const RANGES = { "6 h": 6, "24 h": 24, "7 d": 168, "30 d": 720, "90 d": 2160 };

export const readFigures = () => api(`pipelines/${encodeURIComponent(view.chosen)}/figures`, { hours: view.hours });


const PLOTS = [
  { title: "Lag", series: [["lag_s", "lag"]], said: duration },
  { title: "WAL kept by the slot", series: [["retained_bytes", "kept"]], said: bytes },
  { title: "Changes per minute", series: [["changes_min", "changes"]], said: short, bars: true },
  { title: "How long runs take", series: [["drain_s", "drain"], ["merge_s", "merge"], ["run_s", "whole run"]], said: duration },
];

let library;
let plotted = { key: "", section: null };

function loadLibrary() {
  library ??= new Promise((resolve, reject) => {
    document.head.append(h("script", { src: "static/uPlot.iife.min.js", onload: () => resolve(window.uPlot), onerror: reject }));
  });
  return library;
}

// Drawn anew only where there is something new to draw: the rest of the page is, every few seconds.
export function plots() {
  const dark = document.documentElement.classList.contains("dark");
  const key = JSON.stringify([view.chosen, view.hours, view.figures?.at.length, view.figures?.at.at(-1), dark]);
  if (plotted.key !== key) plotted = { key, section: drawPlots() };
  return plotted.section;
}

function drawPlots() {
  const drawn = view.figures;
  const section = h("section", { id: "plots" },
    h("div", { class: "head" }, h("h2", {}, "Over time"), h("span", { class: "spring" }), h("span", { class: "ranges" },
      Object.entries(RANGES).map(([name, hours]) => h("button", { id: `range-${hours}`, "aria-pressed": String(view.hours === hours), onclick: async () => {
        view.hours = hours;
        view.figures = await readFigures();
        draw();
      } }, name)))));
  if (!drawn || drawn.at.length < 2) {
    section.append(h("p", { class: "quiet" }, "Every run leaves one row of figures; there are not two of this time yet."));
    return section;
  }
  const places = PLOTS.map((plot) => [plot, h("div", { class: "card plot" }, plotHead(plot))]);
  section.append(h("div", { class: "plots" }, places.map(([, place]) => place)));
  whenSeen(section, async () => {
    const uPlot = await loadLibrary();
    for (const [plot, place] of places) plotInto(uPlot, plot, place, drawn);
  });
  return section;
}

function plotHead(plot) {
  return h("h3", {}, plot.title, plot.series.length > 1 && h("span", { class: "legend" }, plot.series.map(([, name], i) =>
    h("span", {}, h("i", { style: { background: `var(--plot-${i + 1})` } }), name))), h("span", { class: "said" }));
}

function whenSeen(element, act) {
  new IntersectionObserver((entries, observer) => {
    if (entries.some((entry) => entry.isIntersecting)) { observer.disconnect(); act(); }
  }, { rootMargin: "200px" }).observe(element);
}

function plotInto(uPlot, plot, place, drawn) {
  const style = getComputedStyle(document.documentElement);
  const colour = (name) => style.getPropertyValue(name).trim();
  const spread = drawn.at.at(-1) - drawn.at[0];
  const clock = (_, ticks) => ticks.map((tick) => {
    const text = new Date(tick * 1000).toISOString();
    return spread > 3 * 86400 || text.slice(11, 16) === "00:00" ? text.slice(5, 10) : text.slice(11, 16);
  });
  const axis = { stroke: colour("--quiet"), grid: { stroke: colour("--line"), width: 1 }, ticks: { show: false }, font: "11px system-ui, sans-serif" };
  const said = place.querySelector(".said");
  const width = () => place.clientWidth - 28;
  const chart = new uPlot({
    width: width(), height: 170, cursor: { y: false, points: { size: 6 } }, legend: { show: false },
    scales: { y: { range: (_, low, high) => [0, high > 0 ? high * 1.08 : 1] } },
    tzDate: (at) => uPlot.tzDate(new Date(at * 1000), "Etc/UTC"),
    axes: [{ ...axis, size: 30, values: clock }, { ...axis, size: 62, values: (_, ticks) => ticks.map((tick) => plot.said(tick)) }],
    series: [{}, ...plot.series.map(([, name], i) => ({
      label: name, stroke: colour(`--plot-${i + 1}`), width: 1.6, spanGaps: true, points: { show: drawn.at.length < 40, size: 4 },
      fill: plot.series.length === 1 ? `${colour("--plot-1")}22` : undefined,
      paths: plot.bars ? uPlot.paths.bars({ size: [0.7, 24] }) : undefined,
    }))],
    hooks: { setCursor: [(u) => {
      const at = u.cursor.idx;
      said.textContent = at === null || at === undefined || !u.data[0][at] ? "" :
        `${stamp(u.data[0][at] * 1000).slice(0, 16)}: ${plot.series.map(([, name], i) => `${plot.series.length > 1 ? `${name} ` : ""}${plot.said(u.data[i + 1][at])}`).join(", ")}`;
    }] },
  }, [drawn.at, ...plot.series.map(([key]) => drawn[key] ?? drawn.at.map(() => null))], place);
  new ResizeObserver(() => { if (width() > 0 && width() !== chart.width) chart.setSize({ width: width(), height: 170 }); }).observe(place);
}
