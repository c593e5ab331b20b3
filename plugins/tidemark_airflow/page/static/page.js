// One page on every pipeline: what the API below `api/` says, and Airflow's own API on its runs, drawn without a build.
//
// Nothing that comes from a server becomes markup: `h` makes elements and text nodes only. What acts asks twice, and
// what starts a run is Airflow's own API with the form of the DAG, so that its rights, its checks and its audit log hold.

const REFRESH_S = 15;
const PAGE_ROWS = 50;
const SHOWN_NAMES = 12;
const SHOWN_CONCERNS = 8;
const AIRFLOW = new URL("..", location.href);
const RANGES = { "6 h": 6, "24 h": 24, "7 d": 168, "30 d": 720, "90 d": 2160 };

const view = {
  pipelines: [], chosen: "", status: null, figures: null, runs: null, hours: 24,
  search: "", state: "", sort: "attention", descending: false, page: 0, open: new Set(), details: new Map(), failed: "", allConcerns: false,
};

// --- elements ---------------------------------------------------------------------------------------------------------

function h(tag, properties, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(properties ?? {})) {
    if (value === undefined || value === null || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (name === "class") element.className = value;
    else if (name === "style") Object.assign(element.style, value);
    else if (name in element && name !== "list") element[name] = value;
    else element.setAttribute(name, value === true ? "" : value);
  }
  element.append(...children.flat(Infinity).filter((child) => child !== undefined && child !== null && child !== false));
  return element;
}

const pill = (kind, text) => h("span", { class: `pill ${kind}` }, text);

// A link into Airflow's own pages. The frame that this page stands in may not navigate the window, an element of the
// window's own document may.
function airflowLink(path, text, properties) {
  const href = new URL(path, AIRFLOW).href;
  return h("a", { href, ...properties, onclick: (event) => {
    event.stopPropagation();
    if (event.ctrlKey || event.metaKey || event.shiftKey || window.parent === window) return;
    event.preventDefault();
    goTo(href);
  } }, text);
}

function goTo(href) {
  try {
    const anchor = window.parent.document.createElement("a");
    anchor.href = href;
    window.parent.document.body.append(anchor);
    anchor.click();
    anchor.remove();
  } catch { location.assign(href); }
}

function toast(kind, ...children) {
  const shown = h("div", { class: kind }, ...children);
  document.getElementById("toasts").append(shown);
  setTimeout(() => shown.remove(), 12000);
}

// --- words ------------------------------------------------------------------------------------------------------------

const UNITS = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];

function bytes(size) {
  if (size === null || size === undefined) return "–";
  let unit = 0;
  while (size >= 1024 && unit < UNITS.length - 1) { size /= 1024; unit += 1; }
  return `${size >= 100 || unit === 0 ? Math.round(size) : size.toFixed(1)} ${UNITS[unit]}`;
}

const count = (number) => (number === null || number === undefined ? "–" : Math.round(number).toLocaleString("en-US"));
const counted = (number, noun) => `${count(number)} ${number === 1 ? noun : /(ch|s|x)$/.test(noun) ? `${noun}es` : `${noun}s`}`;

function short(number) {
  if (number === null || number === undefined) return "–";
  if (number < 10000) return count(number);
  for (const [size, letter] of [[1e12, "T"], [1e9, "G"], [1e6, "M"], [1e3, "k"]]) {
    if (number >= size) return `${(number / size).toFixed(number >= 100 * size ? 0 : 1)} ${letter}`;
  }
  return count(number);
}

function duration(seconds) {
  if (seconds === null || seconds === undefined) return "–";
  seconds = Math.max(0, seconds);
  if (seconds < 90) return `${seconds < 10 && seconds % 1 ? seconds.toFixed(1) : Math.round(seconds)} s`;
  if (seconds < 5400) return `${Math.round(seconds / 60)} min`;
  if (seconds < 172800) return `${(seconds / 3600).toFixed(seconds < 36000 ? 1 : 0)} h`;
  return `${Math.round(seconds / 86400)} days`;
}

const ageOf = (moment) => (Date.parse(view.status.now) - Date.parse(moment)) / 1000;
const stamp = (moment) => new Date(moment).toISOString().replace("T", " ").slice(0, 19) + " UTC";
const ago = (moment) => moment ? h("span", { title: stamp(moment), class: "nowrap" }, `${duration(ageOf(moment))} ago`) : "–";

// --- the servers ------------------------------------------------------------------------------------------------------

class Refused extends Error {
  constructor(status, message) { super(message); this.status = status; }
}

async function ask(url, body, method = "POST") {
  const options = { headers: { Accept: "application/json" }, credentials: "same-origin" };
  if (body !== undefined) {
    options.method = method;
    options.headers["Content-Type"] = "application/json";
    options.body = JSON.stringify(body);
  }
  const answer = await fetch(url, options);
  const said = await answer.json().catch(() => ({}));
  if (!answer.ok) throw new Refused(answer.status, worded(said.detail) || `The server answered ${answer.status}.`);
  return said;
}

function worded(detail) {
  if (Array.isArray(detail)) return detail.map((one) => one.msg ?? String(one)).join("; ");
  return typeof detail === "object" && detail !== null ? detail.reason ?? JSON.stringify(detail) : detail;
}

const airflow = (path, body, method) => ask(new URL(`api/v2/${path}`, AIRFLOW), body, method);
const api = (path, parameters) => ask(`api/${path}${parameters ? `?${new URLSearchParams(parameters)}` : ""}`);
const dagOf = (kind) => view.status.dags[kind];

// --- what is read, and when -------------------------------------------------------------------------------------------

async function begin() {
  followTheme();
  const asked = new URLSearchParams(location.search);
  try {
    const all = await api("pipelines");
    view.pipelines = all.pipelines;
    view.problems = all.problems;
    const dag = asked.get("dag_id");
    view.within = dag;
    const named = dag ? view.pipelines.find((one) => Object.values(one.dags).includes(dag)) : undefined;
    if (dag && !named) {
      show(h("p", { class: "quiet" }, `${dag} is not one of Tidemark's DAGs.`));
      return;
    }
    view.chosen = named?.pipeline ?? asked.get("pipeline") ?? sessionStorage.getItem("tidemark pipeline") ?? "";
    view.search = asked.get("table") ?? "";
    if (!view.pipelines.some((one) => one.pipeline === view.chosen)) view.chosen = view.pipelines[0]?.pipeline ?? "";
  } catch (error) { show(failure(error)); return; }
  if (!view.chosen) { show(nothingThere()); return; }
  await refresh();
  setInterval(() => { if (!document.hidden && !document.querySelector("dialog[open]")) refresh(); }, REFRESH_S * 1000);
}

async function refresh() {
  const wanted = view.chosen;
  const results = await Promise.allSettled([api(`pipelines/${encodeURIComponent(wanted)}`), readFigures(), readRuns()]);
  if (wanted !== view.chosen) return;
  const [status, figures, runs] = results;
  view.failed = status.status === "rejected" ? status.reason : "";
  if (status.status === "fulfilled") view.status = status.value;
  if (figures.status === "fulfilled") view.figures = figures.value;
  if (runs.status === "fulfilled") view.runs = runs.value;
  for (const table of view.open) readDetails(table);
  draw();
}

const readFigures = () => api(`pipelines/${encodeURIComponent(view.chosen)}/figures`, { hours: view.hours });

async function readRuns() {
  const dags = view.pipelines.find((one) => one.pipeline === view.chosen).dags;
  const lists = await Promise.all(Object.entries(dags).map(([kind, dag]) =>
    airflow(`dags/${encodeURIComponent(dag)}/dagRuns?order_by=-run_after&limit=${kind === "capture" ? 8 : 2}`)
      .catch(() => ({ dag_runs: [] }))));
  const runs = lists.flatMap((list) => list.dag_runs);
  if (!runs.length) return [];
  const tasks = await airflow("dags/~/dagRuns/~/taskInstances/list", {
    dag_ids: [...new Set(runs.map((run) => run.dag_id))], dag_run_ids: [...new Set(runs.map((run) => run.dag_run_id))],
    page_limit: 300,
  });
  const key = (one) => `${one.dag_id} ${one.dag_run_id}`;
  const byRun = Map.groupBy(tasks.task_instances, key);
  return runs.map((run) => ({ ...run, tasks: byRun.get(key(run)) ?? [] }));
}

async function readDetails(table) {
  try {
    view.details.set(table, await api(`pipelines/${encodeURIComponent(view.chosen)}/table`, { table }));
  } catch (error) { view.details.set(table, { error }); }
  const place = document.querySelector(`tr.detail[data-table="${CSS.escape(table)}"] > td`);
  if (place) place.replaceChildren(details(table));
}

// --- the whole --------------------------------------------------------------------------------------------------------

function show(...children) {
  const page = document.getElementById("page");
  page.replaceChildren(...children);
  page.removeAttribute("aria-busy");
}

function failure(error) {
  const said = error.status === 401 ? "You are not logged in any more. Reload Airflow." : error.message;
  return h("div", { class: "card concern red" }, h("b", {}, "This cannot be shown now"), h("p", {}, said));
}

function nothingThere() {
  return h("div", {}, ...problems(), h("p", { class: "quiet" },
    "There is no pipeline whose capture DAG you may read. A pipeline is a file in the folder that TIDEMARK_PIPELINES names; the API server has to see it too."));
}

function problems() {
  return (view.problems ?? []).map((problem) => h("div", { class: "card concern red" },
    h("b", {}, "A pipeline file is broken"), h("p", {}, h("code", {}, problem))));
}

function draw() {
  if (!view.status) { show(failure(view.failed)); return; }
  const focus = document.activeElement?.id;
  const caret = document.activeElement?.selectionStart;
  show(...[
    top(), view.failed && failure(view.failed), ...problems(), firstSteps(), figures(), concerns(), positions(), backfills(), plots(), runs(),
    tables(), putAside(),
  ].filter(Boolean));
  const again = focus && document.getElementById(focus);
  if (again) { again.focus(); if (caret !== undefined && caret !== null) again.setSelectionRange?.(caret, caret); }
}

function top() {
  const s = view.status;
  const many = view.pipelines.length > 1 && !view.within;
  const name = many
    ? h("select", { id: "pipeline", "aria-label": "Pipeline", onchange: (event) => choose(event.target.value) },
      view.pipelines.map((one) => h("option", { value: one.pipeline, selected: one.pipeline === view.chosen }, one.pipeline)))
    : h("h1", {}, s.pipeline);
  const isNew = s.health === "warning" && s.concerns.some((one) => one.kind === "new");
  const verdict = isNew ? "new" : { ok: "exact", warning: "warning", red: "needs somebody" }[s.health];
  return h("header", { class: "top" },
    name, pill(s.health, verdict), h("span", { class: "quiet line" }, s.line.replace(`${s.pipeline}: `, "")),
    h("span", { class: "spring" }),
    h("nav", { "aria-label": "DAGs" }, Object.entries(s.dags).map(([kind, dag]) => airflowLink(`dags/${dag}`, kind))),
    h("button", { class: "small", id: "refresh", title: `As of ${stamp(s.now)}; it is read again every ${REFRESH_S} s`, onclick: refresh }, "Refresh"));
}

function choose(pipeline) {
  Object.assign(view, { chosen: pipeline, status: null, figures: null, runs: null, page: 0, search: "", state: "" });
  view.open.clear();
  view.details.clear();
  sessionStorage.setItem("tidemark pipeline", pipeline);
  show(h("p", { class: "quiet" }, "Loading…"));
  refresh();
}

// --- the first steps of a new pipeline --------------------------------------------------------------------------------

function firstSteps() {
  const steps = view.status.first_steps;
  const next = steps.find((one) => !one.done);
  if (!next) return null;
  return h("section", { id: "first-steps", class: "card concern warning" }, h("div", { class: "said" },
    h("div", { class: "title" }, pill("warning", "new"), h("b", {}, "First steps")),
    h("ol", { class: "steps" }, steps.map((one) => h("li", { class: one.done ? "done" : one === next ? "next" : "" },
      h("b", {}, one.name), " ", h("span", { class: "quiet" }, one.said), one === next && h("p", {}, one.way))))),
    h("div", { class: "acts" }, stepButton(next)));
}

function stepButton(step) {
  const kind = { slot: "capture", capture: "capture", backfill: "backfill", "first proof": "verify" }[step.name];
  if (!kind) return null;
  const allowed = view.status.may[kind];
  const why = allowed ? undefined : `You need the right to trigger ${dagOf(kind)}.`;
  const title = { capture: `Start ${dagOf(kind)}`, backfill: `Backfill all ${step.tables}…`, verify: "Verify every table…" }[kind];
  const act = { capture: startCapture, backfill: () => openForm("backfill", null), verify: () => openForm("verify", null, { share: "1" }) }[kind];
  return h("button", { class: "small main", "data-action": `first-${kind}`, disabled: !allowed, title: why, onclick: act }, title);
}

// A DAG that is paused by its creation gets its schedule, and a run now.
async function startCapture() {
  const dag = dagOf("capture");
  try {
    await airflow(`dags/${encodeURIComponent(dag)}`, { is_paused: false }, "PATCH");
    const run = await airflow(`dags/${encodeURIComponent(dag)}/dagRuns`, { logical_date: null, conf: {} });
    toast("ok", "Started: ", airflowLink(`dags/${encodeURIComponent(dag)}/runs/${encodeURIComponent(run.dag_run_id)}`, run.dag_run_id));
  } catch (error) { toast("red", error.message); }
  await refresh();
}

// --- what needs somebody ----------------------------------------------------------------------------------------------

function concerns() {
  const wanted = view.status.concerns.filter((one) => one.severity !== "note" && one.kind !== "new");
  if (!wanted.length) return null;
  const groups = [...Map.groupBy(wanted, (one) => `${one.severity}/${one.kind}/${one.group}`).values()];
  const rest = groups.slice(SHOWN_CONCERNS);
  return h("section", { id: "concerns" }, groups.slice(0, SHOWN_CONCERNS).map(concern),
    rest.length > 0 && h("details", { open: view.allConcerns, ontoggle: (event) => { view.allConcerns = event.target.open; } }, h("summary", { class: "quiet" }, `and ${rest.length} more`), rest.map(concern)));
}

function concern(group) {
  const [first] = group;
  const alone = group.length === 1;
  const named = group.filter((one) => one.table);
  const heading = alone && first.table ? first.table : named.length ? counted(named.length, "table") : "";
  return h("div", { class: `card concern ${first.severity}` }, h("div", { class: "said" },
    h("div", { class: "title" },
      pill(first.severity, first.kind), heading && h("b", {}, heading), h("span", { class: "quiet" }, first.since ? h("span", {}, "since ", ago(first.since)) : "")),
    h("p", {}, first.message),
    !alone && named.length > 0 && h("div", { class: "names" }, named.slice(0, SHOWN_NAMES).map((one) => tableLink(one)),
      named.length > SHOWN_NAMES && h("span", { class: "quiet" }, `and ${named.length - SHOWN_NAMES} more`)),
    first.ways.length > 0 && h("ul", { class: "ways" }, first.ways.map((way) => h("li", {}, h("span", {}, way))))),
    alone && first.table_id && h("div", { class: "acts" }, actsFor(first.table_id, REMEDIES[first.kind])),
    first.kind === "slot" && first.group === "SlotUnknown" && h("div", { class: "acts" }, upgraded()));
}

const tableLink = (one) => h("button", { class: "plain", onclick: () => { view.search = one.table; view.state = ""; view.page = 0; draw(); document.getElementById("tables").scrollIntoView(); } }, one.table);

// --- figures and positions --------------------------------------------------------------------------------------------

function figure(title, value, ...rest) {
  return h("div", { class: "card figure" }, h("h3", {}, title), h("div", { class: "value" }, value), ...rest);
}

function meter(share, kind) {
  return h("div", { class: `meter ${kind}`, role: "meter", "aria-valuenow": Math.round(100 * share), "aria-valuemin": 0, "aria-valuemax": 100 },
    h("i", { style: { width: `${Math.max(0, Math.min(100, 100 * share))}%` } }));
}

function figures() {
  const s = view.status;
  return h("section", { class: "figures" }, lagFigure(s), walFigure(s), figure("Changes", h("span", {}, short(s.rates?.changes_min), h("small", {}, " / min")),
    h("p", {}, s.rates?.over_s ? `staged over the last ${duration(s.rates.over_s)}` : "no two runs of the last hour to tell")),
  figure("Queue", h("span", {}, short(s.queue.changes), h("small", {}, ` ${s.queue.changes === 1 ? "change" : "changes"}`)),
    h("p", {}, s.queue.tables ? `of ${counted(s.queue.tables, "table")}, in up to ${counted(s.queue.batches, "batch")} each, ${bytes(s.queue.bytes)}` : "everything staged is merged"),
    s.queue.since && h("p", {}, "oldest ", ago(s.queue.since))),
  provenFigure(s));
}

// How bad it is, is said in one place: `tidemark.capture.health`.
function severityOf(s, ...kinds) {
  return s.concerns.find((one) => kinds.includes(one.kind))?.severity;
}

function lagFigure(s) {
  if (!s.lag) return figure("Lag", "–", h("p", {}, s.unseen.ledger ? "the ledger cannot be seen" : "nothing was captured yet"));
  const kind = severityOf(s, "lag", "no run") ?? "";
  return figure("Lag", h("span", { class: kind }, duration(s.lag.s)), h("p", {}, s.lag.s ? `${bytes(s.lag.bytes)} of WAL to apply` : "no change waits", ", as of ", ago(s.lag.as_of)),
    s.delays && h("p", { title: `what was merged since ${stamp(s.delays.since)}` }, `half of the changes took ${duration(s.delays.p50_s)} or less, 99 of 100 ${duration(s.delays.p99_s)}`),
    kind && s.lag.s > s.lag.max_s && h("p", { class: kind }, `more than max_lag_s, ${duration(s.lag.max_s)}`));
}

function walFigure(s) {
  const slot = s.slot;
  if (!slot) return figure("WAL kept by the slot", "–", h("p", {}, s.unseen.source ? "the source cannot be seen" : "the slot does not exist yet"));
  const limit = slot.limit_bytes;
  const share = limit ? slot.retained_bytes / limit : slot.retained_bytes / slot.valve_bytes;
  const kind = severityOf(s, "slot") ?? "ok";
  const grows = s.rates?.retained_bytes_s ?? 0;
  const until = grows > 0 ? ((limit ?? slot.valve_bytes) - slot.retained_bytes) / grows : null;
  const state = slot.wal_status === "reserved" || slot.wal_status === "extended" ? "ok" : "red";
  return figure("WAL kept by the slot", h("span", {}, bytes(slot.retained_bytes), h("small", {}, ` of ${bytes(limit ?? slot.valve_bytes)}`)),
    meter(share, kind),
    h("p", {}, limit ? "max_slot_wal_keep_size" : "wal_valve_bytes; the server sets no limit", " · slot ", h("span", { class: state }, slot.wal_status ?? "unknown"), slot.active ? ", being read" : ""),
    until !== null && h("p", { class: until < 86400 ? "red" : "" }, `at the present rate reached in ${duration(until)}`));
}

function provenFigure(s) {
  const captured = s.tables.filter((one) => one.state !== "not captured");
  const proven = captured.filter((one) => one.verified_at);
  const oldest = proven.map((one) => one.verified_at).sort()[0];
  return figure("Proven equal", h("span", {}, count(proven.length), h("small", {}, ` of ${counted(captured.length, "table")}`)),
    meter(captured.length ? proven.length / captured.length : 0, "ok"),
    h("p", {}, oldest ? h("span", {}, "oldest proof ", ago(oldest)) : "no table was proven as a whole yet"));
}

function positions() {
  const p = view.status.positions;
  if (!p) return null;
  const between = (from, to) => (from && to ? `${bytes(Math.max(0, lsn(to) - lsn(from)))} to the next` : "");
  const place = (name, position, next, said) => h("div", {}, h("b", {}, name), h("code", {}, position ?? "–"), h("span", {}, said, said && between(position, next) ? " · " : "", between(position, next)));
  const held = p.held_back_by.length ? `held back by ${p.held_back_by.slice(0, 2).join(", ")}${p.held_back_by.length > 2 ? ` and ${p.held_back_by.length - 2} more` : ""}` : "";
  return h("div", { class: "card positions", id: "positions" },
    place("Confirmed", p.confirmed_lsn, p.applied_lsn, held), place("Applied", p.applied_lsn, p.staged_lsn, "the table furthest behind"),
    place("Staged", p.staged_lsn, p.source_lsn, p.staged_at ? h("span", {}, "heartbeat ", ago(p.staged_at)) : ""), place("Source", p.source_lsn, null, "WAL now"));
}

function lsn(text) {
  const [high, low] = text.split("/");
  return parseInt(high, 16) * 2 ** 32 + parseInt(low, 16);
}

// --- backfills --------------------------------------------------------------------------------------------------------

function backfills() {
  const open = view.status.backfills;
  if (!open.length) return null;
  return h("section", { id: "backfills" }, h("div", { class: "head" }, h("h2", {}, "Backfills and verifies under way")), open.map((one) => h("div", { class: "card backfill" },
    h("b", {}, one.name, " ", h("span", { class: "quiet" }, one.purpose === "fill" ? "" : one.purpose)), meter(one.share, one.read_by ? "ok" : "warning"),
    h("span", { class: "number" }, one.left_s === null ? `${Math.round(100 * one.share)} %` : one.left_s === 0 ? "read; waits for its merge" : `${duration(one.left_s)} left`),
    progress(one))));
}

function progress(one) {
  if (one.ranges_done === one.ranges) return h("p", {}, `${counted(one.rows, "row")} read; waits for its merge, open since `, ago(one.opened_at));
  const rate = one.rate_rows_s ? `${short(one.rate_rows_s)} rows/s` : "nothing read in the last minutes";
  return h("p", {}, `${short(one.rows)} of about ${short(one.estimated_rows)} rows, ${rate}; ${one.ranges_done} of ${counted(one.ranges, "range")}; `,
    one.read_by ? `read by ${one.read_by}` : h("span", { class: "warning" }, "nobody reads it"), one.left_s ? `, about ${duration(one.left_s)} left` : "", ", open since ", ago(one.opened_at));
}

// --- plots ------------------------------------------------------------------------------------------------------------

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
function plots() {
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

// --- runs -------------------------------------------------------------------------------------------------------------

const STATES = { success: "ok", failed: "red", running: "note", queued: "note" };

function runs() {
  if (!view.runs?.length) return null;
  const sorted = [...view.runs].sort((a, b) => Date.parse(b.run_after) - Date.parse(a.run_after));
  return h("section", { id: "runs" }, h("div", { class: "head" }, h("h2", {}, "Last runs")),
    h("div", { class: "card scroll", style: { padding: "4px 0" } }, h("table", { class: "runs" }, h("tbody", {}, sorted.map(runRow)))));
}

function runRow(run) {
  const started = run.start_date ?? run.run_after;
  const seconds = ((run.end_date ? Date.parse(run.end_date) : Date.parse(view.status.now)) - Date.parse(started)) / 1000;
  const kind = run.dag_id.slice(view.status.pipeline.length + 1);
  const path = `dags/${encodeURIComponent(run.dag_id)}/runs/${encodeURIComponent(run.dag_run_id)}`;
  return h("tr", {},
    h("td", {}, pill(STATES[run.state] ?? "note", run.state)), h("td", {}, airflowLink(path, kind)),
    h("td", { class: "quiet nowrap", title: stamp(started) }, ago(started)), h("td", { class: "number nowrap wide" }, duration(seconds)),
    h("td", { style: { width: "60%" } }, stages(run.tasks)));
}

function stages(tasks) {
  const order = (task) => Date.parse(task.start_date ?? "9999-01-01");
  const byTask = [...Map.groupBy([...tasks].sort((a, b) => order(a) - order(b)), (task) => task.task_id).entries()];
  const took = ([, some]) => Math.max(...some.map((task) => task.duration ?? 0), 0);
  const whole = byTask.reduce((sum, one) => sum + took(one), 0) || 1;
  return h("div", { class: "stages" }, byTask.map(([name, some]) => {
    const state = some.find((task) => task.state === "failed")?.state ?? some[0].state ?? "none";
    return h("i", { class: state, title: `${name}: ${state}, ${duration(took([name, some]))}`, style: { flex: `${Math.max(0.05, took([name, some]) / whole)} 1 0` } }, name);
  }));
}

// --- tables -----------------------------------------------------------------------------------------------------------

const SEVERITY_OF = (table) => table.severity ?? "ok";
const WEIGHT = { red: 0, warning: 1, note: 2, ok: 3 };
const COLUMNS = [
  ["name", "Table", (one) => one.name],
  ["attention", "State", (one) => [WEIGHT[SEVERITY_OF(one)], one.state]],
  ["rows", "Rows", (one) => one.rows ?? -1, "number"],
  ["changed_at", "Last change", (one) => one.changed_at ?? ""],
  ["waiting", "Waiting", (one) => one.waiting_changes, "number"],
  ["verified", "Proven", (one) => one.verified_at ?? ""],
  ["bytes", "Size", (one) => one.bytes ?? -1, "number wide"],
  ["why", "", null, "wide"],
];

function chosenTables() {
  const needle = view.search.trim().toLowerCase();
  const [, , value] = COLUMNS.find(([key]) => key === view.sort);
  const compare = (a, b) => {
    const [x, y] = [[value(a)].flat(), [value(b)].flat()];
    for (let i = 0; i < x.length; i += 1) if (x[i] !== y[i]) return x[i] < y[i] ? -1 : 1;
    return a.name < b.name ? -1 : 1;
  };
  const sorted = view.status.tables
    .filter((one) => (!view.state || one.state === view.state) && one.name.toLowerCase().includes(needle)).sort(compare);
  return view.descending ? sorted.reverse() : sorted;
}

function tables() {
  const all = view.status.tables;
  const states = [...Map.groupBy(all, (one) => one.state).entries()].sort((a, b) => WEIGHT[SEVERITY_OF(a[1][0])] - WEIGHT[SEVERITY_OF(b[1][0])]);
  const section = h("section", { id: "tables" },
    h("div", { class: "head" }, h("h2", {}, "Tables"),
      h("span", { class: "chips" }, states.length > 1 && [["", all], ...states].map(([state, some]) => h("button", {
        id: `state-${state.replaceAll(" ", "-") || "all"}`, "aria-pressed": String(view.state === state), onclick: () => { view.state = state; view.page = 0; redrawTables(); },
      }, `${state || "all"} ${count(some.length)}`))),
      h("span", { class: "spring" }),
      h("input", { type: "search", id: "search", placeholder: "Search tables", "aria-label": "Search tables", value: view.search, oninput: (event) => { view.search = event.target.value; view.page = 0; redrawTables(); } })));
  section.append(...tableRows());
  return section;
}

function redrawTables() {
  const focus = document.activeElement?.id;
  const place = document.getElementById("tables");
  const fresh = tables();
  place.replaceWith(fresh);
  const again = focus && document.getElementById(focus);
  if (again) { again.focus(); if (again.type === "search") again.setSelectionRange(again.value.length, again.value.length); }
}

function tableRows() {
  const chosen = chosenTables();
  const last = Math.max(0, Math.ceil(chosen.length / PAGE_ROWS) - 1);
  view.page = Math.min(view.page, last);
  const first = view.page * PAGE_ROWS;
  const rows = chosen.slice(first, first + PAGE_ROWS);
  if (!view.status.tables.length) return [h("p", { class: "quiet" }, "No table was captured yet.")];
  if (!rows.length) return [h("p", { class: "quiet" }, "No table of this name.")];
  const turn = (to) => () => { view.page = to; redrawTables(); };
  return [
    h("div", { class: "card tables" }, h("table", {}, h("thead", {}, h("tr", {}, COLUMNS.map(heading))), h("tbody", {}, rows.flatMap(tableRow)))),
    last > 0 && h("div", { class: "pages" }, h("span", { class: "quiet" }, `${first + 1}–${first + rows.length} of ${count(chosen.length)}`),
      h("button", { class: "small", id: "previous", disabled: view.page === 0, onclick: turn(view.page - 1) }, "Previous"),
      h("button", { class: "small", id: "next", disabled: view.page === last, onclick: turn(view.page + 1) }, "Next")),
  ].filter(Boolean);
}

function heading([key, title, value, kind]) {
  if (!value) return h("th", { class: kind });
  const sorted = view.sort === key ? (view.descending ? "descending" : "ascending") : undefined;
  return h("th", { class: kind, "aria-sort": sorted }, h("button", { id: `sort-${key}`, onclick: () => {
    view.descending = view.sort === key ? !view.descending : ["rows", "bytes", "waiting", "changed_at"].includes(key);
    view.sort = key;
    view.page = 0;
    redrawTables();
  } }, title));
}

function tableRow(one) {
  const open = view.open.has(one.table);
  const toggle = () => {
    if (open) view.open.delete(one.table); else { view.open.add(one.table); readDetails(one.table); }
    redrawTables();
  };
  const proof = one.verified_at ? ago(one.verified_at) : one.parts ? h("span", { class: "quiet nowrap" }, `${one.proven_parts} of ${counted(one.parts, "part")}`) : h("span", { class: "quiet" }, "–");
  const row = h("tr", { class: open ? "row open" : "row", tabIndex: 0, "aria-expanded": String(open), onclick: toggle, onkeydown: (event) => {
    if (event.target === row && ["Enter", " "].includes(event.key)) { event.preventDefault(); toggle(); }
  } },
  h("td", { class: "name" }, one.name), h("td", { class: "nowrap" }, pill(SEVERITY_OF(one), one.state)), h("td", { class: "number" }, one.rows === null ? h("span", { class: "quiet" }, "–") : short(one.rows)),
  h("td", {}, ago(one.changed_at)), h("td", { class: "number" }, one.waiting_changes ? short(one.waiting_changes) : h("span", { class: "quiet" }, "–")), h("td", {}, proof),
  h("td", { class: "number wide" }, one.bytes === null ? h("span", { class: "quiet" }, "–") : bytes(one.bytes)), h("td", { class: "why wide" }, h("div", { title: one.why }, one.why)));
  if (!open) return [row];
  return [row, h("tr", { class: "detail", "data-table": one.table }, h("td", { colSpan: COLUMNS.length }, details(one.table)))];
}

// --- what was put aside -----------------------------------------------------------------------------------------------

function putAside() {
  const pairs = view.status.put_aside;
  if (!pairs.length) return null;
  const becomes = (one) => (one.removed_from ? `maintenance removes it from ${stamp(one.removed_from)} on` : "kept for good");
  return h("section", { id: "put-aside" }, h("h2", {}, "Put aside"),
    h("p", { class: "quiet" }, "Delta tables of dropped tables whose name another one has, and those whose place another shape took. Nothing is merged into them any more."),
    h("div", { class: "card tables" }, h("table", {}, h("tbody", {}, pairs.map((one) => h("tr", {}, h("td", { class: "name" }, one.name),
      h("td", {}, "since ", ago(one.since)), h("td", {}, one.lsn && h("span", {}, "all of it below ", h("code", {}, one.lsn))),
      h("td", { class: "number" }, one.bytes === null ? h("span", { class: "quiet" }, "–") : bytes(one.bytes)), h("td", {}, becomes(one))))))));
}

// --- one table --------------------------------------------------------------------------------------------------------

function block(title, ...children) {
  return h("div", {}, h("h3", {}, title), ...children);
}

function wholeBlock(title, ...children) {
  return h("div", { class: "whole" }, h("h3", {}, title), ...children);
}

const pairs = (entries) => h("dl", {}, entries.filter(([, value]) => value !== null && value !== undefined && value !== "").map(([name, value]) => [h("dt", {}, name), h("dd", {}, value)]));

function details(table) {
  const one = view.status.tables.find((each) => each.table === table);
  const more = view.details.get(table);
  if (!one) return h("p", { class: "quiet" }, "It is not captured any more.");
  if (!more) return h("p", { class: "quiet" }, "Loading…");
  if (more.error) return failure(more.error);
  return h("div", {}, h("div", { class: "acts" }, actsFor(table)), h("div", { class: "details" },
    one.error && wholeBlock(one.state === "parked" ? `Parked: ${one.error.kind}` : `Last failure: ${one.error.kind}`, h("p", {}, one.error.message), h("p", { class: "quiet" }, "since ", ago(one.error.since)),
      more.ways.length > 0 && h("ul", {}, more.ways.map((way) => h("li", {}, way)))),
    one.paused_by && wholeBlock("Paused", h("p", {}, `by ${one.paused_by}, `, ago(one.since)), h("p", { class: "quiet" }, "Its changes are staged; resume lets the next run apply them.")),
    one.needs_backfill && wholeBlock("Needs a backfill", h("p", {}, one.needs_backfill), h("p", { class: "quiet" }, "since ", ago(one.needs_backfill_since))),
    one.differences && wholeBlock("Differs from its source", h("p", { class: "red" }, one.differences)),
    view.status.backfills.filter((each) => each.table === table).map((each) => wholeBlock(each.purpose === "fill" ? "Backfill under way" : "Verify under way",
      meter(each.share, each.read_by ? "ok" : "warning"), progress(each))),
    block("Positions", pairs([["applied", h("code", {}, one.applied_lsn)], ["history", more.history_lsn && h("code", {}, more.history_lsn)], ["current", more.current_lsn && h("code", {}, more.current_lsn)],
      ["behind", one.lag_bytes ? `${bytes(one.lag_bytes)} of WAL${one.lag_s ? `, ${duration(one.lag_s)}` : ""}` : "level with what is staged"], ["waiting", one.waiting_batches ? `${counted(one.waiting_changes, "change")} in ${counted(one.waiting_batches, "batch")}, ${bytes(one.waiting_bytes)}` : ""],
      ["due by choice", one.due_at && stamp(one.due_at)], ["merged now by", one.held_by], ["last change", one.changed_at && ago(one.changed_at)]])),
    block("Proof", one.parts ? pairs([["parts", `${one.proven_parts} of ${one.parts} proven`], ["through", one.verified_through && h("code", {}, one.verified_through)], ["oldest", one.verified_at && ago(one.verified_at)]]) : h("p", { class: "quiet" }, "Not proven yet.")),
    block("Delta tables", more.delta.length ? pairs(more.delta.map((each) => [each.kind, h("span", {}, `${each.rows === null ? "" : `${short(each.rows)} rows, `}${bytes(each.bytes)} in ${counted(each.files, "file")}, seen `, ago(each.as_of))])) : h("p", { class: "quiet" }, "Size and files are known after the first merge.")),
    more.merged && block("Merged", pairs([...more.merged.steps.map((one) => [one.step, `${one.way}: ${one.why}`]), ["left to Spark", more.merged.fall_backs.join(", ")]])),
    more.columns.length > 0 && block("Columns", h("div", { class: "columns" }, h("table", {}, h("tbody", {}, more.columns.map((column) => h("tr", {}, h("td", { class: "name" }, column.name), h("td", {}, column.type), h("td", {}, "→ ", column.target),
      h("td", { class: column.unfit ? "warning" : "quiet" }, column.mask ? `masked: ${column.mask}` : column.unfit ? `${counted(column.unfit, "value")} did not fit` : "")))))),
      pairs([["not captured", more.not_captured.map((one) => `${one.column} (${one.why})`).join(", ")]])),
    block("Values", pairs([["did not fit", Object.keys(more.unfit).length ? Object.entries(more.unfit).map(([column, number]) => `${column} (${count(number)})`).join(", ") : "none in what is staged"],
      ["holes", Object.keys(more.holes).length ? Object.entries(more.holes).map(([column, number]) => `${column} (${count(number)})`).join(", ") : "none"]])),
    more.definition_changes.length > 0 && block("Changes of its definition", h("dl", {}, more.definition_changes.map((change) => [h("dt", {}, change.decided), h("dd", {}, change.reason, change.by ? `, by ${change.by}, ` : ", ", ago(change.at), ", at ", h("code", {}, change.lsn))]))),
    block("Schema versions", h("dl", {}, more.versions.map((version) => [h("dt", {}, version.version), h("dd", {}, version.changed.join("; "))]))),
  ));
}

// --- what acts --------------------------------------------------------------------------------------------------------

const REMEDIES = { parked: "unpark", paused: "resume", differs: "verify", "needs a backfill": "backfill" };

function actsFor(table, remedy) {
  const one = view.status.tables.find((each) => each.table === table);
  if (!one) return [];
  const may = (kind) => view.status.may[kind];
  const needs = (kind) => (may(kind) ? undefined : `You need the right to trigger ${dagOf(kind)}.`);
  const buttons = [];
  if (one.parked) buttons.push(acting("unpark", "Unpark", { table: one.table }, may("capture"), needs("capture"), remedy === "unpark"));
  if (one.paused_by) buttons.push(acting("resume", "Resume merging", { table: one.table }, may("capture"), needs("capture"), remedy === "resume"));
  buttons.push(
    h("button", { class: remedy === "backfill" ? "small main" : "small", "data-action": "backfill", disabled: !may("backfill"), title: needs("backfill"), onclick: (event) => { event.stopPropagation(); openForm("backfill", one); } }, "Backfill…"),
    h("button", { class: remedy === "verify" ? "small main" : "small", "data-action": "verify", disabled: !may("verify"), title: needs("verify"), onclick: (event) => { event.stopPropagation(); openForm("verify", one, one.differences ? { share: "1", repair: true } : { share: "1" }); } }, one.differences ? "Repair…" : "Verify…"));
  if (!one.parked && !one.paused_by) buttons.push(acting("pause", "Pause merging", { table: one.table }, may("capture"), needs("capture")));
  return buttons;
}

// After a pg_upgrade that kept the slot; then a verify compares every table and repairs what differs.
function upgraded() {
  const allowed = view.status.may.capture && view.status.may.verify;
  const why = allowed ? undefined : `You need the right to trigger ${dagOf("capture")} and ${dagOf("verify")}.`;
  return acting("upgraded", "pg_upgrade made this server", {}, allowed, why, true, () => openForm("verify", null, { share: "1", repair: true }));
}

// The first click arms the button, the second acts.
function acting(action, title, body, allowed, why, main, next) {
  const button = h("button", { class: main ? "small main" : "small", disabled: !allowed, title: why, "data-action": action, onclick: async (event) => {
    event.stopPropagation();
    if (!button.classList.contains("sure")) {
      button.classList.add("sure");
      button.textContent = `${title}: sure?`;
      setTimeout(() => { button.classList.remove("sure"); button.textContent = title; }, 5000);
      return;
    }
    button.disabled = true;
    try {
      const said = await ask(`api/dags/${encodeURIComponent(dagOf("capture"))}/${action}`, body);
      toast("ok", said.said);
      next?.();
    } catch (error) { toast("red", error.message); }
    await refresh();
  } }, title);
  return button;
}

// The form of a DAG, as Airflow has it, filled in for a table, or for all of them. Airflow itself checks the values and starts the run.
async function openForm(kind, one, filled = {}) {
  const dag = dagOf(kind);
  const dialog = h("dialog", { "aria-label": `Trigger ${dag}` }, h("p", { class: "quiet" }, "Loading the form…"));
  dialog.addEventListener("close", () => dialog.remove());
  document.body.append(dialog);
  dialog.showModal();
  try {
    const known = await airflow(`dags/${encodeURIComponent(dag)}/details`);
    fillForm(dialog, dag, known, { tables: one ? [one.name] : [], ...filled });
  } catch (error) {
    dialog.replaceChildren(h("h2", {}, `Trigger ${dag}`), h("p", { class: "said" }, error.message), h("div", { class: "foot" }, h("button", { onclick: () => dialog.close() }, "Close")));
  }
}

function fillForm(dialog, dag, known, filled) {
  const fields = Object.entries(known.params ?? {}).map(([name, param]) => field(name, param, filled[name] ?? param.value));
  const rare = fields.filter((one) => one.section);
  const said = h("p", { class: "said", hidden: true });
  const send = h("button", { class: "main", type: "submit" }, "Trigger");
  const form = h("form", { method: "dialog", onsubmit: async (event) => {
    event.preventDefault();
    said.hidden = true;
    send.disabled = true;
    try {
      const conf = {};
      for (const one of fields) {
        const value = one.value();
        if (JSON.stringify(value) !== JSON.stringify(one.initially)) conf[one.name] = value;
      }
      const run = await airflow(`dags/${encodeURIComponent(dag)}/dagRuns`, { logical_date: null, conf });
      dialog.close();
      toast("ok", "Triggered: ", airflowLink(`dags/${encodeURIComponent(dag)}/runs/${encodeURIComponent(run.dag_run_id)}`, run.dag_run_id));
      refresh();
    } catch (error) {
      said.textContent = error.message;
      said.hidden = false;
      send.disabled = false;
    }
  } },
  h("h2", {}, `Trigger ${dag}`), known.is_paused && h("p", { class: "said warning" }, "This DAG is paused: the run waits until somebody unpauses it."),
  fields.filter((one) => !one.section).map((one) => one.element),
  rare.length > 0 && h("details", {}, h("summary", {}, rare[0].section), rare.map((one) => one.element)),
  said, h("div", { class: "foot" }, h("button", { type: "button", onclick: () => dialog.close() }, "Cancel"), send));
  dialog.replaceChildren(form);
  send.focus();
}

// One field of a form by its JSON Schema: the element, and how its value is read.
function field(name, param, value) {
  const schema = param.schema ?? {};
  const types = [schema.type].flat();
  const labelled = (input, kind) => h("label", { class: kind }, kind ? input : null, schema.title ?? name, h("small", {}, param.description ?? schema.description ?? ""), kind ? null : input);
  const common = { name, section: schema.section, initially: param.value };
  if (types.includes("boolean")) {
    const input = h("input", { type: "checkbox", name, checked: Boolean(value) });
    return { ...common, element: labelled(input, "check"), value: () => input.checked };
  }
  if (schema.enum) {
    const input = h("select", { name }, schema.enum.map((each) => h("option", { value: each, selected: each === value }, schema.values_display?.[each] ?? each)));
    return { ...common, element: labelled(input), value: () => input.value };
  }
  if (types.includes("array")) {
    const texts = schema.items?.type !== "object";
    const input = h("textarea", { name, value: texts ? (value ?? []).join("\n") : value?.length ? JSON.stringify(value) : "" });
    const element = labelled(input);
    if (name === "tables") element.append(...offered(input));
    return { ...common, element, value: () => (texts ? input.value.split("\n").map((line) => line.trim()).filter(Boolean) : input.value.trim() ? JSON.parse(input.value) : []) };
  }
  if (types.includes("integer") || types.includes("number")) {
    const input = h("input", { type: "number", name, value: value ?? "", min: schema.minimum, max: schema.maximum });
    return { ...common, element: labelled(input), value: () => (input.value === "" ? null : Number(input.value)) };
  }
  const input = h(schema.format === "multiline" ? "textarea" : "input", { name, value: value ?? "" });
  return { ...common, element: labelled(input), value: () => (input.value === "" && types.includes("null") ? null : input.value) };
}

// The tables that the ledger knows now, where Airflow's form offers those of the last run: each that is chosen is one
// more line.
function offered(input) {
  const names = view.status.tables.map((one) => one.name);
  const chosen = h("input", { list: "offered", name: "offered", placeholder: "Add a table…", "aria-label": "Add a table", autocomplete: "off" });
  chosen.addEventListener("input", () => {
    if (!names.includes(chosen.value)) return;
    const lines = input.value.split("\n").map((line) => line.trim()).filter(Boolean);
    if (!lines.includes(chosen.value)) input.value = [...lines, chosen.value].join("\n");
    chosen.value = "";
  });
  return [chosen, h("datalist", { id: "offered" }, names.map((name) => h("option", { value: name })))];
}

// --- light and dark ---------------------------------------------------------------------------------------------------

function followTheme() {
  const system = matchMedia("(prefers-color-scheme: dark)");
  const apply = () => {
    const dark = isDark(system);
    if (document.documentElement.classList.contains("dark") === dark) return;
    document.documentElement.classList.toggle("dark", dark);
    if (view.status) draw();
  };
  apply();
  system.addEventListener("change", apply);
  window.addEventListener("storage", apply);
  try {
    if (window.parent !== window) new MutationObserver(apply).observe(window.parent.document.documentElement, { attributes: true, attributeFilter: ["class"] });
  } catch { /* another origin's frame: the system's choice then */ }
}

function isDark(system) {
  try {
    const chosen = window.parent.document.documentElement.classList;
    if (window.parent !== window && (chosen.contains("dark") || chosen.contains("light"))) return chosen.contains("dark");
  } catch { /* as above */ }
  const stored = localStorage.getItem("theme");
  return stored === "dark" || stored === "light" ? stored === "dark" : system.matches;
}

begin();
