// The tables of a pipeline: by schema, searched, filtered by state, sorted, a page at a time.

import { bytes, count, counted, h, pill, short } from "./elements.js";
import { ago, view } from "./servers.js";
import { details, readDetails } from "./table_details.js";

const PAGE_ROWS = 50;

const SEVERITY_OF = (table) => table.severity ?? "ok";
const WEIGHT = { red: 0, warning: 1, note: 2, ok: 3 };
const COLUMNS = [
  ["name", "Table", (one) => one.name],
  ["attention", "State", (one) => [WEIGHT[SEVERITY_OF(one)], one.state]],
  ["rows", "Rows", (one) => one.rows ?? -1, "number"],
  ["changed_at", "Last change", (one) => one.changed_at ?? "", "middling"],
  ["waiting", "Waiting", (one) => one.waiting_changes, "number middling"],
  ["verified", "Proven", (one) => one.verified_at ?? "", "middling"],
  ["bytes", "Size", (one) => one.bytes ?? -1, "number wide"],
  ["why", "Why", null, "wide"],
];

// The schema as SQL spells it: a name with a dot of its own is quoted.
function schemaOf(one) {
  const name = one.name;
  return name.startsWith('"') ? name.slice(0, /^"(?:[^"]|"")*"/.exec(name)[0].length) : name.slice(0, name.indexOf("."));
}

function chosenTables() {
  const needle = view.search.trim().toLowerCase();
  const [, , value] = COLUMNS.find(([key]) => key === view.sort);
  const compare = (a, b) => {
    const [x, y] = [[value(a)].flat(), [value(b)].flat()];
    for (let i = 0; i < x.length; i += 1) if (x[i] !== y[i]) return x[i] < y[i] ? -1 : 1;
    return a.name < b.name ? -1 : 1;
  };
  const sorted = view.status.tables
    .filter((one) => (!view.state || one.state === view.state) && (!view.schema || schemaOf(one) === view.schema) && one.name.toLowerCase().includes(needle)).sort(compare);
  return view.descending ? sorted.reverse() : sorted;
}

export function tables() {
  const all = view.status.tables;
  const states = [...Map.groupBy(all, (one) => one.state).entries()].sort((a, b) => WEIGHT[SEVERITY_OF(a[1][0])] - WEIGHT[SEVERITY_OF(b[1][0])]);
  const section = h("section", { id: "tables" },
    h("div", { class: "head" }, h("h2", {}, "Tables"),
      h("span", { class: "chips" }, states.length > 1 && [["", all], ...states].map(([state, some]) => h("button", {
        id: `state-${state.replaceAll(" ", "-") || "all"}`, "aria-pressed": String(view.state === state), onclick: () => { view.state = state; view.page = 0; redrawTables(); },
      }, `${state || "all"} ${count(some.length)}`))),
      h("span", { class: "spring" }),
      view.schema && h("button", { class: "small", id: "schema", onclick: () => { view.schema = ""; view.page = 0; redrawTables(); } }, `only ${view.schema} ×`),
      canGroup() && h("button", { class: "small", id: "grouped", "aria-pressed": String(isGrouped()), onclick: () => { view.grouped = !isGrouped(); view.search = ""; view.state = ""; view.schema = ""; redrawTables(); } }, "By schema"),
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

// More tables than a page shows are drawn by schema, until somebody looks for some of them.
function canGroup() {
  const all = view.status.tables;
  return all.length > PAGE_ROWS && new Set(all.map(schemaOf)).size > 1;
}

const isGrouped = () => canGroup() && view.grouped && !view.search && !view.state && !view.schema;

function tableRows() {
  const chosen = chosenTables();
  if (isGrouped()) return [tableOf(...groups(chosen))];
  const last = Math.max(0, Math.ceil(chosen.length / PAGE_ROWS) - 1);
  view.page = Math.min(view.page, last);
  const first = view.page * PAGE_ROWS;
  const rows = chosen.slice(first, first + PAGE_ROWS);
  if (!view.status.tables.length) return [h("p", { class: "quiet" }, "No table was captured yet.")];
  if (!rows.length) return [h("p", { class: "quiet" }, "No table of this name.")];
  const turn = (to) => () => { view.page = to; redrawTables(); };
  return [
    tableOf(h("tbody", {}, rows.flatMap(tableRow))),
    last > 0 && h("div", { class: "pages" }, h("span", { class: "quiet" }, `${first + 1}–${first + rows.length} of ${count(chosen.length)}`),
      h("button", { class: "small", id: "previous", disabled: view.page === 0, onclick: turn(view.page - 1) }, "Previous"),
      h("button", { class: "small", id: "next", disabled: view.page === last, onclick: turn(view.page + 1) }, "Next")),
  ].filter(Boolean);
}

function tableOf(...bodies) {
  return h("div", { class: "card tables", tabIndex: 0, role: "region", "aria-label": "Tables" },
    h("table", {}, h("thead", {}, h("tr", {}, COLUMNS.map(heading))), ...bodies));
}

// A schema is one line, which opens to its tables; the one with the hardest trouble stands first.
function groups(chosen) {
  const worst = (some) => Math.min(...some.map((one) => WEIGHT[SEVERITY_OF(one)]));
  return [...Map.groupBy(chosen, schemaOf).entries()].sort(([a, x], [b, y]) => worst(x) - worst(y) || (a < b ? -1 : 1)).map(([schema, some]) => {
    const open = view.openGroups.has(schema);
    const toggle = () => { if (open) view.openGroups.delete(schema); else view.openGroups.add(schema); redrawTables(); };
    const states = [...Map.groupBy(some, (one) => one.state).values()].sort((a, b) => WEIGHT[SEVERITY_OF(a[0])] - WEIGHT[SEVERITY_OF(b[0])]);
    const sum = (figure) => some.reduce((total, one) => total + (one[figure] ?? 0), 0);
    const newest = some.map((one) => one.changed_at ?? "").sort().at(-1);
    return h("tbody", {}, h("tr", { class: open ? "group open" : "group", onclick: toggle },
      h("td", { class: "name" }, h("button", { class: "plain name", id: `group-${schema}`, "aria-expanded": String(open), onclick: (event) => { event.stopPropagation(); toggle(); } }, schema), h("div", { class: "quiet" }, counted(some.length, "table"))),
      h("td", {}, h("span", { class: "pills" }, states.map((each) => pill(SEVERITY_OF(each[0]), `${each[0].state} ${each.length}`)))),
      h("td", { class: "number" }, short(sum("rows"))), h("td", { class: "middling" }, newest ? ago(newest) : "–"),
      h("td", { class: "number middling" }, sum("waiting_changes") ? short(sum("waiting_changes")) : h("span", { class: "quiet" }, "–")),
      h("td", { class: "middling" }, `${some.filter((one) => one.verified_at).length} of ${some.length}`),
      h("td", { class: "number wide" }, bytes(sum("bytes"))), h("td", { class: "why wide" })),
    open && some.slice(0, PAGE_ROWS).flatMap(tableRow),
    open && some.length > PAGE_ROWS && h("tr", {}, h("td", { colSpan: COLUMNS.length }, h("button", { class: "plain", onclick: () => { view.schema = schema; view.page = 0; redrawTables(); } }, `All ${counted(some.length, "table")} of ${schema}`))));
  });
}

function heading([key, title, value, kind]) {
  if (!value) return h("th", { class: kind }, title);
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
  const row = h("tr", { class: open ? "row open" : "row", onclick: toggle },
    h("td", { class: "name" }, h("button", { class: "plain name", id: `row-${one.table}`, "aria-expanded": String(open), onclick: (event) => { event.stopPropagation(); toggle(); } }, one.name)),
    h("td", { class: "nowrap" }, pill(SEVERITY_OF(one), one.state)), h("td", { class: "number" }, one.rows === null ? h("span", { class: "quiet" }, "–") : short(one.rows)),
    h("td", { class: "middling" }, ago(one.changed_at)), h("td", { class: "number middling" }, one.waiting_changes ? short(one.waiting_changes) : h("span", { class: "quiet" }, "–")), h("td", { class: "middling" }, proof),
    h("td", { class: "number wide" }, one.bytes === null ? h("span", { class: "quiet" }, "–") : bytes(one.bytes)), h("td", { class: "why wide" }, h("div", { title: one.why }, one.why)));
  if (!open) return [row];
  return [row, h("tr", { class: "detail", "data-table": one.table }, h("td", { colSpan: COLUMNS.length }, details(one.table)))];
}
