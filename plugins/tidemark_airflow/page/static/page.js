// One page on every pipeline: what the API below `api/` says, and Airflow's own API on its runs, drawn without a build.
//
// elements    elements, links into Airflow, words for figures
// servers     the state of the page, and what it asks
// overview    all pipelines, the worst on top
// flow        the picture of one: source → staged → lake
// actions     what acts, which says first what it will do
// tables      its tables; table_details: one of them, opened
// plots       what its runs left

import { actsFor, actsForMany, runNow, stepButton, unpause, upgraded } from "./actions.js";
import { airflowLink, bytes, counted, duration, h, meter, pill, short, stamp } from "./elements.js";
import { flow } from "./flow.js";
import { VERDICTS, drawOverview, readOverview } from "./overview.js";
import { plots, readFigures } from "./plots.js";
import { ago, airflow, api, dagOf, view } from "./servers.js";
import { tables } from "./tables.js";
import { readDetails } from "./table_details.js";

const REFRESH_S = 15;
const SHOWN_NAMES = 12;
const SHOWN_CONCERNS = 8;

// --- what is read, and when ------------------------------------------------------------------------------------------

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
    view.search = asked.get("table") ?? "";
    view.chosen = named?.pipeline ?? (isThere(asked.get("pipeline")) ? asked.get("pipeline") : view.pipelines.length === 1 ? view.pipelines[0].pipeline : "");
  } catch (error) { show(failure(error)); return; }
  if (!view.pipelines.length) { show(nothingThere()); return; }
  window.addEventListener("popstate", (event) => turnTo(event.state?.pipeline ?? (view.pipelines.length === 1 ? view.pipelines[0].pipeline : "")));
  history.replaceState({ pipeline: view.chosen }, "");
  setInterval(() => { if (!document.hidden && !document.querySelector("dialog[open]")) refresh(); }, REFRESH_S * 1000);
  await refresh();
}

const isThere = (pipeline) => view.pipelines.some((one) => one.pipeline === pipeline);

export async function refresh() {
  const wanted = view.chosen;
  if (!wanted) {
    if (!document.getElementById("pipelines")) drawOverview();
    await readOverview();
    return;
  }
  const results = await Promise.allSettled([api(`pipelines/${encodeURIComponent(wanted)}`), readFigures(), readRuns(), readPaused()]);
  if (wanted !== view.chosen) return;
  const [status, figures, runs, paused] = results;
  view.failed = status.status === "rejected" ? status.reason : "";
  if (status.status === "fulfilled") view.status = status.value;
  if (figures.status === "fulfilled") view.figures = figures.value;
  if (runs.status === "fulfilled") view.runs = runs.value;
  if (paused.status === "fulfilled") view.paused = paused.value;
  for (const table of view.open) readDetails(table);
  draw();
}

const dagsOf = (pipeline) => view.pipelines.find((one) => one.pipeline === pipeline).dags;

// The pipeline's DAGs that have a schedule, by which Airflow does not run them.
async function readPaused() {
  const own = Object.values(dagsOf(view.chosen));
  const { dags } = await airflow(`dags?paused=true&limit=100&dag_id_pattern=${encodeURIComponent(view.chosen)}`);
  const scheduled = dags.filter((one) => own.includes(one.dag_id) && one.timetable_summary);
  return new Set(scheduled.map((one) => one.dag_id));
}

async function readRuns() {
  const dags = dagsOf(view.chosen);
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

// --- the whole -------------------------------------------------------------------------------------------------------

export function show(...children) {
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

export function problems() {
  return (view.problems ?? []).map((problem) => h("div", { class: "card concern red" },
    h("b", {}, "A pipeline file is broken"), h("p", {}, h("code", {}, problem))));
}

export function draw() {
  if (!view.status) { show(failure(view.failed)); return; }
  const focus = document.activeElement?.id;
  const caret = document.activeElement?.selectionStart;
  show(...[
    top(), view.failed && failure(view.failed), ...problems(), firstSteps(), flow(), pausedDags(), concerns(), backfills(), tables(), plots(), runs(),
    putAside(),
  ].filter(Boolean));
  const again = focus && document.getElementById(focus);
  if (again) { again.focus(); if (caret !== undefined && caret !== null) again.setSelectionRange?.(caret, caret); }
}

function top() {
  const s = view.status;
  const many = view.pipelines.length > 1 && !view.within;
  const isNew = s.health === "warning" && s.concerns.some((one) => one.kind === "new");
  return h("header", { class: "top" },
    many && h("button", { class: "plain", id: "all", onclick: () => choose("") }, "← All pipelines"),
    h("h1", {}, s.pipeline), pill(s.health, isNew ? "new" : VERDICTS[s.health]), !isNew && h("span", { class: "quiet line" }, s.line.replace(`${s.pipeline}: `, "")),
    h("span", { class: "spring" }),
    h("nav", { "aria-label": "DAGs" }, Object.entries(s.dags).map(([kind, dag]) => airflowLink(`dags/${dag}`, kind))),
    h("span", { class: "acts" }, !s.first_steps.length && runNow(false), h("button", { class: "small", id: "refresh", title: `As of ${stamp(s.now)}; it is read again every ${REFRESH_S} s`, onclick: refresh }, "Refresh")));
}

export function choose(pipeline) {
  history.pushState({ pipeline }, "", pipeline ? `?${new URLSearchParams({ pipeline })}` : "?");
  turnTo(pipeline);
}

function turnTo(pipeline) {
  Object.assign(view, { chosen: pipeline, status: null, figures: null, runs: null, page: 0, search: "", state: "", schema: "" });
  for (const kept of [view.open, view.openGroups, view.details, view.changes, view.paused]) kept.clear();
  window.scrollTo(0, 0);
  if (pipeline) show(h("p", { class: "quiet" }, "Loading…")); else drawOverview();
  refresh();
}

// --- the first steps of a new pipeline -------------------------------------------------------------------------------

const nextStep = () => view.status.first_steps.find((one) => !one.is_done);

// What a button does needs no command beside it.
function firstSteps() {
  const steps = view.status.first_steps;
  const next = nextStep();
  if (!next) return null;
  const button = stepButton(next);
  return h("section", { id: "first-steps", class: "card concern warning" }, h("div", { class: "said" },
    h("div", { class: "title" }, pill("warning", "new"), h("b", {}, "First steps")),
    h("ol", { class: "steps" }, steps.map((one) => h("li", { class: one.is_done ? "done" : one === next ? "next" : "" },
      h("b", {}, one.name), " ", h("span", { class: "quiet" }, one.said), one === next && !button && h("p", {}, one.way))))),
    h("div", { class: "acts" }, button));
}

// --- what Airflow does not run ----------------------------------------------------------------------------------------

const MEANS = { capture: "nothing is captured", verify: "nothing is proven", maintenance: "nothing is tidied up" };

function pausedDags() {
  if (view.status.first_steps.some((one) => !one.is_done && one.name !== "first proof")) return null;
  const kinds = Object.keys(MEANS).filter((kind) => view.paused.has(dagOf(kind)));
  if (!kinds.length) return null;
  const severity = kinds.includes("capture") ? "red" : "warning";
  return h("section", { id: "paused" }, h("div", { class: `card concern ${severity}` }, h("div", { class: "said" },
    h("div", { class: "title" }, pill(severity, "paused in Airflow"), h("b", {}, kinds.map(dagOf).join(", "))),
    h("p", {}, `${kinds.map((kind) => MEANS[kind]).join(", ")} by schedule until somebody un-pauses ${kinds.length === 1 ? "it" : "them"}.`.replace(/^./, (first) => first.toUpperCase()))),
    h("div", { class: "acts" }, unpause(kinds))));
}

// --- what needs somebody ---------------------------------------------------------------------------------------------

function concerns() {
  const isStep = (one) => one.kind === "new" || (one.kind === "needs a backfill" && one.severity === "warning" && nextStep()?.name === "backfill");
  const wanted = view.status.concerns.filter((one) => one.severity !== "note" && !isStep(one));
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
    alone && first.table_id ? h("div", { class: "acts" }, actsFor(first.table_id, first.kind)) : !alone && h("div", { class: "acts" }, actsForMany(first.kind, named.map((one) => one.table_id))),
    first.kind === "slot" && first.group === "SlotUnknown" && h("div", { class: "acts" }, upgraded()),
    ["no run", "lag"].includes(first.kind) && h("div", { class: "acts" }, runNow(true)),
    first.kind === "run failed" && h("div", { class: "acts" }, failedLog(first)));
}

// The group of a failed run is its DAG and its stage.
function failedLog(one) {
  const [dag, task] = one.group.split(" ");
  return airflowLink(`dags/${encodeURIComponent(dag)}/tasks/${encodeURIComponent(task)}`, "Log");
}

const tableLink = (one) => h("button", { class: "plain", onclick: () => { view.search = one.table; view.state = ""; view.page = 0; draw(); document.getElementById("tables").scrollIntoView(); } }, one.table);

// --- backfills -------------------------------------------------------------------------------------------------------

function backfills() {
  const open = view.status.backfills;
  if (!open.length) return null;
  return h("section", { id: "backfills" }, h("div", { class: "head" }, h("h2", {}, "Backfills and verifies under way")), open.map((one) => h("div", { class: "card backfill" },
    h("b", {}, one.name, " ", h("span", { class: "quiet" }, one.purpose === "fill" ? "" : one.purpose)), meter(one.share, one.read_by ? "ok" : "warning", "Share that is read"),
    h("span", { class: "number" }, one.left_s === null ? `${Math.round(100 * one.share)} %` : one.left_s === 0 ? "read; waits for its merge" : `${duration(one.left_s)} left`),
    progress(one))));
}

export function progress(one) {
  if (one.ranges_done === one.ranges) return h("p", {}, `${counted(one.rows, "row")} read; waits for its merge, open since `, ago(one.opened_at));
  const rate = one.rate_rows_s ? `${short(one.rate_rows_s)} rows/s` : "nothing read in the last minutes";
  return h("p", {}, `${short(one.rows)} of about ${short(one.estimated_rows)} rows, ${rate}; ${one.ranges_done} of ${counted(one.ranges, "range")}; `,
    one.read_by ? `read by ${one.read_by}` : h("span", { class: "warning" }, "nobody reads it"), one.left_s ? `, about ${duration(one.left_s)} left` : "", ", open since ", ago(one.opened_at));
}

// --- runs ------------------------------------------------------------------------------------------------------------

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

// --- what was put aside ----------------------------------------------------------------------------------------------

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

// --- light and dark --------------------------------------------------------------------------------------------------

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
