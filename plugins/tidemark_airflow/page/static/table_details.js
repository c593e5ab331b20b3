// One table, opened: what is wrong with it, where it lies and how to read it, its columns, merges, definitions and changes.

import { actsFor } from "./actions.js";
import { progress } from "./page.js";
import { airflowLink, bytes, copied, count, counted, duration, h, meter, short, stamp } from "./elements.js";
import { ago, api, ask, dagOf, view } from "./servers.js";

export async function readDetails(table) {
  try {
    view.details.set(table, await api(`pipelines/${encodeURIComponent(view.chosen)}/table`, { table }));
  } catch (error) { view.details.set(table, { error }); }
  redraw(table);
}

function redraw(table) {
  const place = document.querySelector(`tr.detail[data-table="${CSS.escape(table)}"] > td`);
  if (place && !place.contains(document.activeElement)) place.replaceChildren(details(table));
}

const block = (title, ...children) => h("div", {}, h("h3", {}, title), ...children);
const wholeBlock = (title, ...children) => h("div", { class: "whole" }, h("h3", {}, title), ...children);
const pairs = (entries) => h("dl", {}, entries.filter(([, value]) => value !== null && value !== undefined && value !== "").map(([name, value]) => [h("dt", {}, name), h("dd", {}, value)]));
const listed = (numbers) => Object.entries(numbers).map(([column, number]) => `${column} (${count(number)})`).join(", ");

export function details(table) {
  const one = view.status.tables.find((each) => each.table === table);
  const more = view.details.get(table);
  if (!one) return h("p", { class: "quiet" }, "It is not captured any more.");
  if (!more) return h("p", { class: "quiet" }, "Loading…");
  if (more.error) return h("p", { class: "red" }, more.error.message);
  return h("div", {}, h("div", { class: "acts" }, actsFor(table, one.state)), h("div", { class: "details" },
    ...troubles(one, more), nowBlock(one, more), proofBlock(one), placeBlock(more), columnsBlock(more), mergesBlock(more), versionsBlock(more), changesBlock(table)));
}

function troubles(one, more) {
  return [
    one.error && wholeBlock(one.state === "parked" ? `Parked: ${one.error.kind}` : `Last failure: ${one.error.kind}`, h("p", {}, one.error.message), h("p", { class: "quiet" }, "since ", ago(one.error.since)),
      more.ways.length > 0 && h("ul", {}, more.ways.map((way) => h("li", {}, way)))),
    one.paused_by && wholeBlock("Paused", h("p", {}, `by ${one.paused_by}, `, ago(one.since)), h("p", { class: "quiet" }, "Its changes are staged; resume lets the next run apply them.")),
    one.needs_backfill && wholeBlock("Needs a backfill", h("p", {}, one.needs_backfill), h("p", { class: "quiet" }, "since ", ago(one.needs_backfill_since))),
    one.differences && wholeBlock("Differs from its source", h("p", { class: "red" }, one.differences)),
    ...view.status.backfills.filter((each) => each.table === one.table).map((each) => wholeBlock(each.purpose === "fill" ? "Backfill under way" : "Verify under way",
      meter(each.share, each.read_by ? "ok" : "warning", "Share that is read"), progress(each))),
  ];
}

function nowBlock(one, more) {
  const current = more.delta.find((each) => each.kind === "current") ?? more.delta[0];
  const rate = more.recent && (more.recent.changes ? `${short((3600 * more.recent.changes) / more.recent.over_s)} an hour (${counted(more.recent.changes, "change")} in ${duration(more.recent.over_s)})` : `none in ${duration(more.recent.over_s)}`);
  return block("Now", pairs([
    ["rows", current && current.rows !== null ? count(current.rows) : "known after the next merge"], ["changes", rate], ["last change", one.changed_at && ago(one.changed_at)],
    ["waiting", one.waiting_batches ? `${counted(one.waiting_changes, "change")} in ${counted(one.waiting_batches, "batch")}, ${bytes(one.waiting_bytes)}` : "nothing"],
    ["waits by choice until", one.due_at && stamp(one.due_at)], ["merged now by", one.held_by],
    ["behind", one.lag_bytes ? `${bytes(one.lag_bytes)} of WAL${one.lag_s ? `, ${duration(one.lag_s)}` : ""}` : "level with what is staged"], ["applied up to", h("code", {}, one.applied_lsn)],
  ]));
}

function proofBlock(one) {
  return block("Proven equal", one.parts ? pairs([["parts", `${one.proven_parts} of ${one.parts} proven`], ["as of", one.verified_through && h("code", {}, one.verified_through)], ["oldest proof", one.verified_at && ago(one.verified_at)]])
    : h("p", { class: "quiet" }, "No verify has compared it yet."));
}

// --- where it lies, and how it is read --------------------------------------------------------------------------------

function placeBlock(more) {
  const kinds = Object.entries(more.paths);
  const size = (kind) => more.delta.find((each) => each.kind === kind);
  const first = kinds[0][1];
  return wholeBlock("Where it is, and how to read it", kinds.map(([kind, path]) => [
    h("p", { class: "quiet" }, `${kind}: ${kind === "current" ? "the rows as the source has them" : "every change, in order"}`, size(kind) && ` · ${bytes(size(kind).bytes)} in ${counted(size(kind).files, "file")}`), copied(path)]),
  h("details", {}, h("summary", {}, "Spark, DuckDB, Polars"), Object.entries(snippets(first)).map(([engine, text]) => [h("p", { class: "quiet" }, engine), copied(text)])));
}

// Spark calls S3 s3a; every other reader calls it s3.
function snippets(path) {
  const plain = path.replace(/^s3a:/, "s3:");
  return {
    Spark: `spark.read.format("delta").load(${JSON.stringify(path)})`,
    DuckDB: `SELECT * FROM delta_scan('${plain.replaceAll("'", "''")}') LIMIT 100`,
    Polars: `import polars\n\npolars.scan_delta(${JSON.stringify(plain)})`,
  };
}

// --- columns, merges, definitions -------------------------------------------------------------------------------------

function grid(head, rows) {
  return h("div", { class: "grid", tabIndex: 0, role: "region", "aria-label": head.join(", ") }, h("table", {}, h("thead", {}, h("tr", {}, head.map((name) => h("th", {}, name)))), h("tbody", {}, rows)));
}

function columnsBlock(more) {
  if (!more.columns.length) return null;
  const said = (column) => (column.mask ? h("span", {}, `masked: ${column.mask}`) : column.unfit ? h("span", { class: "warning" }, `${counted(column.unfit, "value")} did not fit; history has them as text`)
    : more.holes[column.name] ? h("span", { class: "warning" }, `${counted(more.holes[column.name], "row")} with an unknown value; a backfill reads them`) : "");
  return wholeBlock("Columns", grid(["Column", "PostgreSQL", "Delta", "Note"], [
    ...more.columns.map((column) => h("tr", {}, h("td", { class: "name" }, column.name), h("td", {}, column.type), h("td", {}, column.target), h("td", {}, said(column)))),
    ...more.not_captured.map((one) => h("tr", {}, h("td", { class: "name quiet" }, one.column), h("td", { class: "quiet" }, "–"), h("td", { class: "quiet" }, "–"), h("td", {}, `not captured: ${one.why}`))),
  ]));
}

function logLink(merge) {
  const [dag, ...run] = merge.planned_by.split("/");
  if (!run.length) return "";
  return airflowLink(`dags/${encodeURIComponent(dag)}/runs/${encodeURIComponent(run.join("/"))}/tasks/merge`, "log");
}

function mergesBlock(more) {
  if (!more.merges.length) return null;
  return wholeBlock("Merges", grid(["When", "Changes", "Took", "Way, and why", "Log"], more.merges.map((merge) => h("tr", {},
    h("td", {}, ago(merge.at)), h("td", { class: "number" }, count(merge.changes)), h("td", { class: "number nowrap" }, duration(merge.seconds)),
    h("td", {}, merge.steps.map((step) => h("div", {}, h("b", {}, `${step.step}: ${step.way}`), step.why && ` – ${step.why}`)), merge.fall_backs.length > 0 && h("div", { class: "warning" }, `left to Spark: ${merge.fall_backs.join(", ")}`)),
    h("td", {}, logLink(merge))))));
}

const SIGNS = [[/ was added\b/, "+", "added"], [/ was dropped\b/, "−", "dropped"]];

// Each version under what it changed, with what was decided; what the catalogue alone showed has no version.
function versionsBlock(more) {
  const decisions = (number) => more.definition_changes.filter((change) => change.after === number);
  const alone = more.definition_changes.filter((change) => change.after === null);
  const line = (text) => {
    const [, sign, kind] = SIGNS.find(([pattern]) => pattern.test(text)) ?? [null, "~", "altered"];
    return h("div", { class: `diff ${kind}` }, h("span", { "aria-label": kind }, sign), text);
  };
  const decided = (change) => h("p", { class: "quiet" }, h("b", {}, change.decided), change.by ? ` by ${change.by} ` : " ", ago(change.at), `: ${change.reason}; at `, h("code", {}, change.lsn));
  return wholeBlock("Versions of its definition", h("dl", {}, more.versions.map((version, i) => [
    h("dt", {}, version.version), h("dd", {}, i === more.versions.length - 1 ? h("div", {}, version.changed.join("; ")) : version.changed.map(line), decisions(version.version).map(decided))]),
  alone.map((change) => [h("dt", {}, "–"), h("dd", {}, decided(change))])));
}

// --- the last changes -------------------------------------------------------------------------------------------------

// Values of rows: asked for by a person who may run the capture, and noted in Airflow's audit log.
function changesBlock(table) {
  const known = view.changes.get(table);
  const allowed = view.status.may.capture;
  const read = h("button", { class: "small", "data-action": "changes", disabled: !allowed, title: allowed ? undefined : `You need the right to trigger ${dagOf("capture")}.`, onclick: async (event) => {
    event.stopPropagation();
    read.disabled = true;
    read.textContent = "Reading…";
    try {
      view.changes.set(table, (await ask(`api/dags/${encodeURIComponent(dagOf("capture"))}/changes`, { table })).changes);
    } catch (error) { view.changes.set(table, { error }); }
    document.activeElement?.blur();
    redraw(table);
  } }, known ? "Read them again" : "Show the last ten changes");
  return wholeBlock("Last changes", h("p", { class: "quiet" }, "As history has them, masked as configured. Airflow's audit log records who looked."), read, known && changesOf(known));
}

function changesOf(known) {
  if (known.error) return h("p", { class: "red" }, known.error.message);
  if (!known.length) return h("p", { class: "quiet" }, "None is staged any more. Query the history table for older ones.");
  const columns = Object.keys(known[0].values);
  const cell = (change, name) => (change.unchanged.includes(name) ? h("span", { class: "quiet" }, "not sent: unchanged") : change.values[name] === null || change.values[name] === undefined ? h("span", { class: "quiet" }, "NULL") : change.values[name]);
  return grid(["Change", "Committed", "At", ...columns], known.map((change) => h("tr", {}, h("td", {}, change.op), h("td", {}, ago(change.at)), h("td", {}, h("code", {}, change.lsn)), columns.map((name) => h("td", { class: "value" }, cell(change, name))))));
}
