// All pipelines, the worst on top: each is a line, and leads to its page.

import { choose, problems, show } from "./page.js";
import { bytes, count, counted, duration, h, meter, pill, short } from "./elements.js";
import { api, view } from "./servers.js";

const WEIGHT = { red: 0, unknown: 1, warning: 2, ok: 3 };
export const VERDICTS = { ok: "exact", warning: "warning", red: "needs somebody" };

// Each by itself: one whose databases do not answer holds no other up.
export async function readOverview() {
  await Promise.all(view.pipelines.map(async ({ pipeline }) => {
    try {
      view.overview.set(pipeline, await api(`pipelines/${encodeURIComponent(pipeline)}/overview`));
    } catch (error) { view.overview.set(pipeline, { pipeline, health: "unknown", line: error.message }); }
    if (!view.chosen) document.getElementById(`line-${pipeline}`)?.replaceWith(pipelineLine(view.overview.get(pipeline)));
  }));
  if (!view.chosen) drawOverview();
}

export function drawOverview() {
  const lines = view.pipelines.map(({ pipeline }) => view.overview.get(pipeline) ?? { pipeline, health: "unknown", line: "Loading…" });
  lines.sort((a, b) => WEIGHT[a.health] - WEIGHT[b.health] || (b.lag?.s ?? 0) - (a.lag?.s ?? 0) || (a.pipeline < b.pipeline ? -1 : 1));
  const focus = document.activeElement?.id;
  show(h("header", { class: "top" }, h("h1", {}, "Pipelines"), h("span", { class: "quiet" }, said(lines))), ...problems(),
    h("ul", { id: "pipelines", class: "pipelines" }, lines.map(pipelineLine)));
  if (focus) document.getElementById(focus)?.focus();
}

function said(lines) {
  const red = lines.filter((one) => one.health === "red").length;
  return red ? `${red} of ${lines.length} ${red === 1 ? "needs" : "need"} somebody` : `${lines.length}; none needs anybody`;
}

function pipelineLine(one) {
  const verdict = one.health === "unknown" ? "unknown" : one.is_new ? "new" : VERDICTS[one.health];
  return h("li", { id: `line-${one.pipeline}`, class: `card concern ${one.health}` },
    h("div", { class: "said" }, h("div", { class: "title" }, h("button", { class: "plain name", id: `pipeline-${one.pipeline}`, onclick: () => choose(one.pipeline) }, one.pipeline), pill(one.health === "unknown" ? "note" : one.health, verdict)),
      h("p", { class: "quiet" }, one.line.replace(`${one.pipeline}: `, ""))),
    one.states && h("dl", { class: "facts" }, ...facts(one)));
}

function facts(one) {
  const limit = one.slot && (one.slot.limit_bytes ?? one.slot.valve_bytes);
  const wal = one.slot ? [`${bytes(one.slot.retained_bytes)} of ${bytes(limit)}`, meter(one.slot.retained_bytes / limit, one.slot.lost ? "red" : "ok", "WAL kept")] : "–";
  const proven = one.tables ? [`${count(one.proven)} of ${count(one.tables)}`, meter(one.proven / one.tables, "ok", "Tables proven equal")] : "–";
  return [["behind", one.lag ? duration(one.lag.s) : "–"], ["changes/min", short(one.rates?.changes_min)], ["WAL kept", wal],
    ["tables", one.tables ? [counted(one.tables, "table"), one.rows !== null && h("small", {}, `${short(one.rows)} rows`)] : "–"], ["proven equal", proven]]
    .map(([name, value]) => h("div", {}, h("dt", {}, name), h("dd", {}, value)));
}
