// Elements, links into Airflow, and words for figures. Nothing that comes from a server becomes markup: `h` makes elements
// and text nodes only.

export const AIRFLOW = new URL("..", location.href);

// --- elements --------------------------------------------------------------------------------------------------------

export function h(tag, properties, ...children) {
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

const SVG = "http://www.w3.org/2000/svg";

export function svg(tag, attributes, ...children) {
  const element = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  element.append(...children.filter((child) => child !== undefined && child !== null && child !== false));
  return element;
}

export function meter(share, kind, name) {
  return h("div", { class: `meter ${kind}`, role: "meter", "aria-label": name, "aria-valuenow": Math.round(100 * share), "aria-valuemin": 0, "aria-valuemax": 100 },
    h("i", { style: { width: `${Math.max(0, Math.min(100, 100 * share))}%` } }));
}

// A text to paste elsewhere, with a button that copies it.
export function copied(text, name = "Copy") {
  const button = h("button", { class: "small", type: "button", "data-action": "copy", onclick: async (event) => {
    event.stopPropagation();
    const done = await copy(text);
    button.textContent = done ? "Copied" : "Select it, and copy";
    setTimeout(() => { button.textContent = name; }, 3000);
  } }, name);
  return h("div", { class: "copied" }, h("pre", { tabIndex: 0 }, text), button);
}

// Over plain HTTP a browser has no clipboard for a page, but the older command.
async function copy(text) {
  try {
    await navigator.clipboard.writeText(text);
    return true;
  } catch {
    const area = h("textarea", { value: text, class: "unseen" });
    (document.querySelector("dialog[open]") ?? document.body).append(area);
    area.select();
    const done = document.execCommand("copy");
    area.remove();
    return done;
  }
}

export const pill = (kind, text) => h("span", { class: `pill ${kind}` }, text);

// A link into Airflow's own pages. The frame that this page stands in may not navigate the window, an element of the
// window's own document may.
export function airflowLink(path, text, properties) {
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

export function toast(kind, ...children) {
  const shown = h("div", { class: kind }, ...children);
  document.getElementById("toasts").append(shown);
  setTimeout(() => shown.remove(), 12000);
}

// --- words -----------------------------------------------------------------------------------------------------------

const UNITS = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];

export function bytes(size) {
  if (size === null || size === undefined) return "–";
  let unit = 0;
  while (size >= 1024 && unit < UNITS.length - 1) { size /= 1024; unit += 1; }
  return `${size >= 100 || unit === 0 ? Math.round(size) : size.toFixed(1)} ${UNITS[unit]}`;
}

export const count = (number) => (number === null || number === undefined ? "–" : Math.round(number).toLocaleString("en-US"));
export const counted = (number, noun) => `${count(number)} ${number === 1 ? noun : /(ch|s|x)$/.test(noun) ? `${noun}es` : `${noun}s`}`;

export function short(number) {
  if (number === null || number === undefined) return "–";
  if (number < 10000) return count(number);
  for (const [size, letter] of [[1e12, "T"], [1e9, "G"], [1e6, "M"], [1e3, "k"]]) {
    if (number >= size) return `${(number / size).toFixed(number >= 100 * size ? 0 : 1)} ${letter}`;
  }
  return count(number);
}

export function duration(seconds) {
  if (seconds === null || seconds === undefined) return "–";
  seconds = Math.max(0, seconds);
  if (seconds < 90) return `${seconds < 10 && seconds % 1 ? seconds.toFixed(1) : Math.round(seconds)} s`;
  if (seconds < 5400) return `${Math.round(seconds / 60)} min`;
  if (seconds < 172800) return `${(seconds / 3600).toFixed(seconds < 36000 ? 1 : 0)} h`;
  return `${Math.round(seconds / 86400)} days`;
}

export const stamp = (moment) => new Date(moment).toISOString().replace("T", " ").slice(0, 19) + " UTC";
