// Small helpers: elements, numbers with units, requests to the gateway.
const SVG = "http://www.w3.org/2000/svg";

function fill(element, props, children) {
  for (const [name, value] of Object.entries(props)) {
    if (value === null || value === undefined || value === false) continue;
    if (name === "on") for (const [event, act] of Object.entries(value)) element.addEventListener(event, act);
    else if (name === "value" || name === "checked" || name === "disabled") element[name] = value;
    else element.setAttribute(name, value === true ? "" : value);
  }
  element.append(...children.flat(Infinity).filter((child) => child !== null && child !== undefined && child !== false));
  return element;
}

export const h = (tag, props = {}, ...children) => fill(document.createElement(tag), props, children);
export const s = (tag, props = {}, ...children) => fill(document.createElementNS(SVG, tag), props, children);

// Keeps one element for each item, so that what has the focus stays.
export function keyed(parent, items, key, create, update) {
  const old = new Map([...parent.children].map((child) => [child.dataset.key, child]));
  let place = parent.firstElementChild;
  for (const item of items) {
    const name = String(key(item));
    let element = old.get(name);
    if (element) old.delete(name);
    else {
      element = create(item);
      element.dataset.key = name;
    }
    update(element, item);
    if (element === place) place = place.nextElementSibling;
    else parent.insertBefore(element, place);
  }
  for (const element of old.values()) element.remove();
}

export function setText(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

export function setWidth(element, share) {
  element.style.width = `${Math.round(100 * Math.min(1, Math.max(0, share)))}%`;
}

const round = (value) => (value >= 100 ? value.toFixed(0) : value >= 10 ? value.toFixed(1) : value.toFixed(2));

export function bytes(value) {
  const units = ["B", "kB", "MB", "GB", "TB", "PB"];
  let index = 0;
  while (value >= 1000 && index < units.length - 1) { value /= 1000; index += 1; }
  return `${index ? round(value) : Math.round(value)} ${units[index]}`;
}

export const bits = (bytesPerS) => {
  const units = ["bit/s", "kbit/s", "Mbit/s", "Gbit/s", "Tbit/s"];
  let value = bytesPerS * 8, index = 0;
  while (value >= 1000 && index < units.length - 1) { value /= 1000; index += 1; }
  return `${round(value)} ${units[index]}`;
};

export function seconds(value) {
  if (value === null || value === undefined) return "–";
  if (value < 1) return `${Math.round(value * 1000)} ms`;
  if (value < 120) return `${round(value)} s`;
  return `${Math.round(value / 60)} min`;
}

// Text whose names stand between backticks.
export const words = (text) => (text ?? "").split("`").map((part, at) => (at % 2 ? h("code", {}, part) : part));
export const percent = (value) => (value === null || value === undefined ? "–" : `${(100 * value).toFixed(value > 0 && value < 0.1 ? 1 : 0)} %`);
export const count = (value) => (value === null || value === undefined ? "–" : Math.round(value).toLocaleString("en"));
export const clock = (atS) => new Date(atS * 1000).toLocaleTimeString("en-GB");
export const moment = (atS) => new Date(atS * 1000).toLocaleString("en-GB");

export class Refused extends Error {}

// Asks the gateway; what it refuses is raised in its own words.
export async function ask(path, body) {
  const options = { headers: { accept: "application/json" } };
  if (body !== undefined) {
    options.method = "POST";
    options.body = JSON.stringify(body);
    options.headers["content-type"] = "application/json";
  }
  let response;
  try {
    response = await fetch(path, options);
  } catch {
    throw new Refused("The gateway does not answer.");
  }
  const value = await response.json().catch(() => null);
  if (!response.ok) throw new Refused(value?.error?.message ?? `The gateway answers ${response.status}.`);
  return value;
}

export function confirmed(title, text, yes) {
  return new Promise((resolve) => {
    const dialog = h("dialog", { "aria-labelledby": "dialog-title" },
      h("h2", { id: "dialog-title" }, title), h("p", {}, text),
      h("div", { class: "row" },
        h("button", { type: "button", on: { click: () => dialog.close("no") } }, "Cancel"),
        h("button", { type: "button", class: "main", on: { click: () => dialog.close("yes") } }, yes)));
    dialog.addEventListener("close", () => { dialog.remove(); resolve(dialog.returnValue === "yes"); });
    document.body.append(dialog);
    dialog.showModal();
  });
}

export const tokenSplit = (tokens) => {
  const entries = Object.entries(tokens ?? {}).filter(([, value]) => value > 0);
  const total = entries.reduce((sum, [, value]) => sum + value, 0);
  const told = entries.map(([role, value]) => `${role} ${count(value)}`).join(", ") || "no tokens";
  return h("span", { class: "split", role: "img", "aria-label": told, title: told },
    entries.map(([role, value]) => {
      const part = h("i", { class: ["P", "RLD", "MD"].includes(role) ? role : "other" });
      setWidth(part, value / total);
      return part;
    }));
};
