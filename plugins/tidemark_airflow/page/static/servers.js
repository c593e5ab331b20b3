// The state of the page, and what it asks: the API below `api/`, and Airflow's own.

import { AIRFLOW, duration, h, stamp } from "./elements.js";

export const view = {
  pipelines: [], overview: new Map(), chosen: "", status: null, figures: null, runs: null, paused: new Set(), hours: 24,
  search: "", state: "", schema: "", sort: "attention", descending: false, page: 0, grouped: true, openGroups: new Set(),
  open: new Set(), details: new Map(), changes: new Map(), failed: "", allConcerns: false,
};

export const ageOf = (moment) => (Date.parse(view.status.now) - Date.parse(moment)) / 1000;
export const ago = (moment) => moment ? h("span", { title: stamp(moment), class: "nowrap" }, `${duration(ageOf(moment))} ago`) : "–";

export class Refused extends Error {
  constructor(status, message) { super(message); this.status = status; }
}

export async function ask(url, body, method = "POST") {
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

export const airflow = (path, body, method) => ask(new URL(`api/v2/${path}`, AIRFLOW), body, method);
export const api = (path, parameters) => ask(`api/${path}${parameters ? `?${new URLSearchParams(parameters)}` : ""}`);
export const dagOf = (kind) => view.status.dags[kind];

