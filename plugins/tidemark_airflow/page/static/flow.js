// The picture of a pipeline: source → staged → lake, with rates, seconds and positions, the WAL that the slot keeps as a
// gauge, and what is proven as its seal.

import { bytes, count, counted, duration, h, short, stamp, svg } from "./elements.js";
import { ago, view } from "./servers.js";

const DAY_S = 86400;

export function flow() {
  const s = view.status;
  const moves = (view.runs ?? []).some((run) => run.state === "running") || (s.rates?.changes_min ?? 0) > 0;
  return h("section", { id: "flow", class: "card flow", "aria-label": "How changes flow" },
    sourceNode(s), link(moves, [rate(s), took("drain_s", "to read")]),
    stagedNode(s), link(moves && s.queue.changes > 0, [between(s.positions?.applied_lsn, s.positions?.staged_lsn), took("merge_s", "to merge")]),
    lakeNode(s), seal(s));
}

function node(title, value, ...rest) {
  return h("div", { class: "node" }, h("h2", {}, title), h("div", { class: "value" }, value), ...rest);
}

function link(moves, said) {
  const words = said.filter(Boolean);
  return h("div", { class: "link" }, h("span", {}, words[0]),
    svg("svg", { class: moves ? "moves" : "", viewBox: "0 0 100 10", preserveAspectRatio: "none", "aria-hidden": "true" },
      svg("path", { d: "M0 5 H96" }), svg("path", { class: "tip", d: "M92 1 L99 5 L92 9 Z" })), h("span", {}, words[1]));
}

function rate(s) {
  return s.rates?.over_s ? h("span", { title: `staged over the last ${duration(s.rates.over_s)}` }, h("b", {}, short(s.rates.changes_min)), " changes/min") : "";
}

// What the last run of the plots says of one of its stages.
function took(figure, words) {
  const last = view.figures?.[figure]?.findLast((seconds) => seconds !== null);
  return last === undefined ? "" : h("span", { title: "the last run" }, h("b", {}, duration(last)), ` ${words}`);
}

const between = (from, to) => (from && to && lsn(to) > lsn(from) ? h("span", {}, h("b", {}, bytes(lsn(to) - lsn(from))), " of WAL") : "");

function lsn(text) {
  const [high, low] = text.split("/");
  return parseInt(high, 16) * 2 ** 32 + parseInt(low, 16);
}

const position = (name, at, said) => at && h("p", { class: "position" }, `${name} `, h("code", {}, at), said && ` · ${said}`);

// --- the source -------------------------------------------------------------------------------------------------------

// How bad it is, is said in one place: `tidemark.observe.health`.
function severityOf(s, ...kinds) {
  return s.concerns.find((one) => kinds.includes(one.kind))?.severity;
}

function sourceNode(s) {
  const slot = s.slot;
  if (!slot) return node("PostgreSQL", "–", h("p", {}, s.unseen.source ? "the source cannot be seen" : "the slot does not exist yet"));
  const held = s.positions?.held_back_by ?? [];
  const waits = held.length ? `waits for ${held.slice(0, 2).join(", ")}${held.length > 2 ? ` and ${held.length - 2} more` : ""}` : "";
  return h("div", { class: "node" }, h("h2", {}, "PostgreSQL"), gauge(s, slot),
    position("now at", s.positions?.source_lsn), position("confirmed", s.positions?.confirmed_lsn, waits));
}

// The WAL that the slot keeps, up to where the server gives it up, or to where Tidemark stops waiting for the merge.
function gauge(s, slot) {
  const limit = slot.limit_bytes ?? slot.valve_bytes;
  const share = Math.max(0, Math.min(1, slot.retained_bytes / limit));
  const kind = severityOf(s, "slot") ?? (share > 0.6 ? "warning" : "ok");
  const arc = "M8 52 A44 44 0 0 1 96 52";
  const whose = slot.limit_bytes ? "the server's limit" : "Tidemark's own limit; the server sets none";
  return h("div", { class: "gauge" },
    svg("svg", { viewBox: "0 0 104 60", role: "img", "aria-label": `The slot keeps ${bytes(slot.retained_bytes)} of WAL, ${Math.round(100 * share)} % of its limit` },
      svg("path", { class: "track", d: arc, pathLength: 100 }), share > 0 && svg("path", { class: `share ${kind}`, d: arc, pathLength: 100, "stroke-dasharray": `${Math.max(1, 100 * share)} 200` }),
      svg("text", { x: 52, y: 50, "text-anchor": "middle" }, `${Math.round(100 * share)} %`)),
    h("div", {}, h("b", {}, bytes(slot.retained_bytes)), ` of WAL kept for Tidemark`, h("p", {}, `of ${bytes(limit)}, ${whose}`), forecast(s, slot, limit),
      slot.lost && h("p", { class: "red" }, "the server has removed WAL that was not read")));
}

function forecast(s, slot, limit) {
  const grows = s.rates?.retained_bytes_s;
  if (grows === null || grows === undefined) return null;
  if (grows <= 0) return h("p", {}, "not growing in the last hour");
  const until = (limit - slot.retained_bytes) / grows;
  return h("p", { class: until < DAY_S ? "red" : "" }, `full in ${duration(until)} at the last hour's rate`);
}

// --- staged, and the lake ---------------------------------------------------------------------------------------------

function stagedNode(s) {
  const q = s.queue;
  const waits = q.tables
    ? [h("p", {}, `${q.changes === 1 ? "change waits" : "changes wait"} for a merge: ${counted(q.tables, "table")}, ${bytes(q.bytes)}`), q.since && h("p", {}, "the oldest ", ago(q.since))]
    : [h("p", {}, "nothing waits: all that was read is merged")];
  return node("Staged", short(q.changes), ...waits, position("up to", s.positions?.staged_lsn), s.positions?.staged_at && h("p", {}, "read ", ago(s.positions.staged_at)));
}

function lakeNode(s) {
  if (!s.lag) return node("Delta Lake", "–", h("p", {}, s.unseen.ledger ? "the ledger cannot be seen" : "nothing was captured yet"));
  const kind = severityOf(s, "lag", "no run") ?? "";
  const known = s.tables.filter((one) => one.rows !== null);
  const rows = known.reduce((sum, one) => sum + one.rows, 0);
  const size = s.tables.reduce((sum, one) => sum + (one.bytes ?? 0), 0);
  return node("Delta Lake", h("span", { class: kind }, duration(s.lag.s), h("small", {}, " behind")),
    h("p", {}, s.lag.s ? `${bytes(s.lag.bytes)} of WAL to apply` : "no change waits", ", as of ", ago(s.lag.as_of)),
    s.delays && h("p", { title: `what was merged since ${stamp(s.delays.since)}` }, `half of the changes took ${duration(s.delays.p50_s)} or less, 99 of 100 ${duration(s.delays.p99_s)}`),
    kind && s.lag.s > s.lag.max_s && h("p", { class: kind }, `more than the ${duration(s.lag.max_s)} that are allowed`),
    h("p", {}, `${counted(s.tables.length, "table")}${known.length ? `, ${short(rows)} rows, ${bytes(size)}` : ""}`),
    position("applied", s.positions?.applied_lsn, "the table furthest behind"));
}

// What a verify compared with the source, value by value, and found equal.
function seal(s) {
  const captured = s.tables.filter((one) => one.state !== "not captured");
  const proven = captured.filter((one) => one.verified_at);
  const oldest = proven.map((one) => one.verified_at).sort()[0];
  const share = captured.length ? proven.length / captured.length : 0;
  const whole = share === 1 && s.health === "ok";
  return h("div", { class: whole ? "seal whole" : "seal" },
    svg("svg", { viewBox: "0 0 120 120", role: "img", "aria-label": `${proven.length} of ${counted(captured.length, "table")} proven equal` },
      svg("circle", { class: "track", cx: 60, cy: 60, r: 52 }),
      share > 0 && svg("circle", { class: "share", cx: 60, cy: 60, r: 52, pathLength: 100, "stroke-dasharray": `${100 * share} 200`, transform: "rotate(-90 60 60)" }),
      svg("text", { class: "number", x: 60, y: 58, "text-anchor": "middle" }, count(proven.length)),
      svg("text", { class: "of", x: 60, y: 76, "text-anchor": "middle" }, `of ${count(captured.length)}`)),
    h("b", {}, "proven equal"), h("p", {}, oldest ? h("span", {}, "oldest proof ", ago(oldest)) : "no table as a whole yet"));
}
