// What acts. Every action says first what it will do, and starts nothing before it is confirmed. What starts a run is
// Airflow's own API with the form of the DAG, so that its rights, its checks and its audit log hold.

import { refresh } from "./page.js";
import { airflowLink, copied, count, counted, h, toast } from "./elements.js";
import { airflow, api, ask, dagOf, view } from "./servers.js";

const REMEDIES = { parked: "unpark", paused: "resume", differs: "verify", "needs a backfill": "backfill", "unfit values": "as-text" };

const may = (kind) => view.status.may[kind];
const needs = (kind) => (may(kind) ? undefined : `You need the right to trigger ${dagOf(kind)}.`);

function button(action, title, allowed, why, main, act) {
  return h("button", { class: main ? "small main" : "small", "data-action": action, disabled: !allowed, title: why, onclick: (event) => { event.stopPropagation(); act(); } }, title);
}

export function actsFor(table, remedy) {
  const one = view.status.tables.find((each) => each.table === table);
  if (!one) return [];
  const wanted = REMEDIES[remedy];
  const onTable = (action, title) => button(action, title, may("capture"), needs("capture"), wanted === action, () => onTables(action, title, [one]));
  return [
    one.parked && onTable("unpark", "Unpark…"),
    one.paused_by && onTable("resume", "Resume merging…"),
    wanted === "as-text" && button("as-text", "Capture as text…", true, undefined, true, () => captureAsText(one)),
    button("backfill", "Backfill…", may("backfill"), needs("backfill"), wanted === "backfill", () => openForm("backfill", [one])),
    button("verify", one.differences ? "Repair…" : "Verify…", may("verify"), needs("verify"), wanted === "verify", () => openForm("verify", [one], { share: "1", ...(one.differences ? { repair: true } : {}) })),
    !one.parked && !one.paused_by && onTable("pause", "Pause merging…"),
    button("replay", "Replay…", may("replay"), needs("replay"), false, () => openForm("replay", [one])),
  ].filter(Boolean);
}

// Of several tables with one trouble.
export function actsForMany(kind, tables) {
  const wanted = REMEDIES[kind];
  const some = tables.map((table) => view.status.tables.find((each) => each.table === table)).filter(Boolean);
  if (wanted === "unpark" || wanted === "resume") {
    const title = wanted === "unpark" ? "Unpark" : "Resume";
    return [button(wanted, `${title} all ${some.length}…`, may("capture"), needs("capture"), true, () => onTables(wanted, title, some))];
  }
  if (wanted === "backfill") return [button("backfill", `Backfill all ${some.length}…`, may("backfill"), needs("backfill"), true, () => openForm("backfill", some))];
  if (wanted === "verify") return [button("verify", `Repair all ${some.length}…`, may("verify"), needs("verify"), true, () => openForm("verify", some, { share: "1", repair: true }))];
  return [];
}

// --- what is confirmed first ------------------------------------------------------------------------------------------

function openDialog(label, ...children) {
  const dialog = h("dialog", { "aria-label": label }, ...children);
  dialog.addEventListener("close", () => dialog.remove());
  document.body.append(dialog);
  dialog.showModal();
  return dialog;
}

// A dialog that says what will happen; `act` returns what to say of what was done.
function confirmed(title, sentences, act) {
  const said = h("p", { class: "said", hidden: true });
  const go = h("button", { class: "main", "data-action": "confirm", onclick: async () => {
    go.disabled = true;
    try {
      const done = await act();
      dialog.close();
      toast("ok", ...[done].flat());
      await refresh();
    } catch (error) { said.textContent = error.message; said.hidden = false; go.disabled = false; }
  } }, title.replace("…", ""));
  const dialog = openDialog(title, h("h2", {}, title.replace("…", "")), ...sentences.filter(Boolean).map((sentence) => h("p", { class: "what" }, sentence)), said,
    h("div", { class: "foot" }, h("button", { onclick: () => dialog.close() }, "Cancel"), go));
  go.focus();
}

const post = (action, body) => ask(`api/dags/${encodeURIComponent(dagOf("capture"))}/${action}`, body);

const WILL = {
  unpark: (named, waiting) => [`The next run tries again to apply what is staged of ${named}, in order${waiting ? `: ${counted(waiting, "change")}` : ""}.`, "Where the cause is still there, it is parked again, with the same error. Nothing is lost either way."],
  resume: (named, waiting) => [`The next run applies what was staged of ${named} meanwhile, in order${waiting ? `: ${counted(waiting, "change")}` : ""}.`],
  pause: (named) => [`Merges leave ${named} out from now on. Its changes are still read and staged: nothing is lost, and the source keeps no more WAL for it.`, "A merge that runs already may still apply its plan. Backfills and verifies leave it out, too."],
};

function onTables(action, title, some) {
  const named = some.length === 1 ? some[0].name : counted(some.length, "table");
  confirmed(title, WILL[action](named, some.reduce((sum, one) => sum + one.waiting_changes, 0)), async () => {
    const answers = [];
    for (const one of some) answers.push((await post(action, { table: one.table })).said);
    return answers.length === 1 ? answers[0] : `Done for ${counted(answers.length, "table")}.`;
  });
}

// After a pg_upgrade that kept the slot; then a verify compares every table and repairs what differs.
export function upgraded() {
  const allowed = may("capture") && may("verify");
  const why = allowed ? undefined : `You need the right to trigger ${dagOf("capture")} and ${dagOf("verify")}.`;
  const title = "pg_upgrade made this server";
  return button("upgraded", `${title}…`, allowed, why, true, () => confirmed(title, [
    "Records, with your name, that this server is the old one after pg_upgrade, and that its slot was kept. This writes one file into the lake.",
    "The capture continues with the next run. Then the form of a verify opens, which compares every table and repairs what differs.",
  ], async () => {
    const { said } = await post("upgraded", {});
    openForm("verify", [], { share: "1", repair: true });
    return said;
  }));
}

async function started(dag, conf) {
  const run = await airflow(`dags/${encodeURIComponent(dag)}/dagRuns`, { logical_date: null, conf });
  return ["Started: ", airflowLink(`dags/${encodeURIComponent(dag)}/runs/${encodeURIComponent(run.dag_run_id)}`, run.dag_run_id)];
}

const unpauseDag = (dag) => airflow(`dags/${encodeURIComponent(dag)}`, { is_paused: false }, "PATCH");

export function runNow(main) {
  const dag = dagOf("capture");
  return button("run", "Run now…", may("capture"), needs("capture"), main, () => confirmed("Run now", [
    `Starts one run of ${dag}, beside its schedule. It reads what waits at the source and merges it. If a run is under way, the new one waits for it.`,
    view.paused.has(dag) && `${dag} is paused in Airflow: the run waits until somebody un-pauses it.`,
  ], () => started(dag, {})));
}

export function unpause(kinds) {
  const dags = kinds.map(dagOf);
  const allowed = kinds.every((kind) => view.status.may_unpause[kind]);
  const why = allowed ? undefined : `You need the right to edit ${dags.join(", ")}.`;
  return button("unpause", dags.length === 1 ? "Un-pause…" : `Un-pause all ${dags.length}…`, allowed, why, true, () => confirmed("Un-pause", [
    `Airflow runs ${dags.join(", ")} by their schedules from now on, and at once what waits.`,
  ], async () => {
    for (const dag of dags) await unpauseDag(dag);
    return `Airflow runs ${dags.join(", ")} again.`;
  }));
}

// --- the first steps --------------------------------------------------------------------------------------------------

export function stepButton(step) {
  const kind = { slot: "capture", capture: "capture", backfill: "backfill", "first proof": "verify" }[step.name];
  if (!kind) return null;
  const dag = dagOf(kind);
  if (kind === "backfill") return button("first-backfill", `Backfill all ${count(step.tables)}…`, may(kind), needs(kind), true, () => openForm("backfill", []));
  if (kind === "verify") return button("first-verify", "Verify every table…", may(kind), needs(kind), true, () => openForm("verify", [], { share: "1" }));
  return button("first-capture", `Start ${dag}…`, may(kind), needs(kind), true, () => confirmed(`Start ${dag}`, [
    step.name === "slot" && "Its first task checks the set-up and creates the replication slot: from then on the source keeps WAL until Tidemark has read it.",
    `Un-pauses ${dag}, so that it runs by its schedule, and starts a run now.`,
  ], async () => { await unpauseDag(dag); return started(dag, {}); }));
}

// --- capture as text --------------------------------------------------------------------------------------------------

// The pipeline file is code, and has its own review: the page gives the lines, and a person puts them in.
async function captureAsText(one) {
  const title = "Capture as text";
  const dialog = openDialog(title, h("p", { class: "quiet" }, "Loading…"));
  const close = h("div", { class: "foot" }, h("button", { onclick: () => dialog.close() }, "Close"));
  try {
    const more = await api(`pipelines/${encodeURIComponent(view.chosen)}/table`, { table: one.table });
    const columns = Object.entries(more.unfit).map(([column, number]) => `${column} (${counted(number, "value")})`).join(", ");
    dialog.replaceChildren(h("h2", {}, title),
      h("p", { class: "what" }, `Values of ${columns} do not fit the Delta type that ${one.name} has for them. As text, every value fits.`),
      h("p", { class: "what" }, "Put this below ", h("code", {}, "tables:"), " of ", h("code", {}, view.status.file), ". If the file has an entry of this name already, add the part from ", h("code", {}, "target"), " on to that one."),
      copied(more.as_text.lines), h("p", { class: "what" }, more.as_text.then), close);
  } catch (error) { dialog.replaceChildren(h("h2", {}, title), h("p", { class: "said" }, error.message), close); }
}

// --- the form of a DAG ------------------------------------------------------------------------------------------------

const STARTS = {
  backfill: "Reads the rows of the tables at the source, in chunks, while the capture goes on, and brings what is missing or differs into Delta. Rows that are equal stay as they are.",
  verify: "Reads the tables at the source and compares every row with Delta. It changes nothing, unless you choose to repair.",
  replay: "Works on what the lake has; the source is not read. As of a moment, it makes tables of their own. From history or staging, it replaces what readers see, once it is whole.",
};

// As Airflow has it, filled in for some tables. Airflow itself checks the values and starts the run.
export async function openForm(kind, some, filled = {}) {
  const dag = dagOf(kind);
  const dialog = openDialog(`Trigger ${dag}`, h("p", { class: "quiet" }, "Loading the form…"));
  try {
    const known = await airflow(`dags/${encodeURIComponent(dag)}/details`);
    fillForm(dialog, kind, known, { tables: some.map((one) => one.name), ...filled });
  } catch (error) {
    dialog.replaceChildren(h("h2", {}, `Trigger ${dag}`), h("p", { class: "said" }, error.message), h("div", { class: "foot" }, h("button", { onclick: () => dialog.close() }, "Close")));
  }
}

function fillForm(dialog, kind, known, filled) {
  const dag = dagOf(kind);
  const fields = Object.entries(known.params ?? {}).map(([name, param]) => field(name, param, filled[name] ?? param.value));
  const rare = fields.filter((one) => one.section);
  const said = h("p", { class: "said", hidden: true });
  const wake = known.is_paused && view.status.may_unpause[kind] ? h("input", { type: "checkbox", name: "unpause", checked: true }) : null;
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
      const done = await started(dag, conf);
      if (wake?.checked) await unpauseDag(dag);
      dialog.close();
      toast("ok", ...done);
      refresh();
    } catch (error) {
      said.textContent = error.message;
      said.hidden = false;
      send.disabled = false;
    }
  } },
  h("h2", {}, `Trigger ${dag}`), h("p", { class: "what" }, STARTS[kind]), known.is_paused && h("p", { class: "said warning" }, `${dag} is paused in Airflow: a run waits until it is un-paused.`, wake && h("label", { class: "check" }, wake, "Un-pause it, too")),
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
