// The frame: which view is shown, and what holds for all of them.
import { h, keyed, setText } from "./dom.js";
import { store } from "./store.js";
import * as decisions from "./decisions.js";
import * as fleet from "./fleet.js";
import * as money from "./money.js";
import * as playground from "./playground.js";
import * as requests from "./requests.js";
import * as rules from "./rules.js";

const VIEWS = { fleet, requests, playground, decisions, rules, money };
const TITLES = { fleet: "Fleet", requests: "Requests", playground: "Playground", decisions: "Decisions", rules: "Rules", money: "Money" };

const content = document.getElementById("content");
const nav = document.getElementById("nav");
const live = document.getElementById("live");
const banners = document.getElementById("banners");
let shown = null;

for (const name of Object.keys(VIEWS)) nav.append(h("a", { href: `#${name}` }, TITLES[name]));

function show() {
  const [name, ...rest] = location.hash.slice(1).split("/");
  const view = VIEWS[name] ? name : "fleet";
  for (const link of nav.children) {
    if (link.getAttribute("href") === `#${view}`) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  }
  document.title = `${TITLES[view]} · pdd-gateway`;
  if (shown?.name !== view) {
    shown?.view.leave?.();
    content.replaceChildren();
    shown = { name: view, view: VIEWS[view].mount(content) };
  }
  shown.view.open?.(rest.map(decodeURIComponent).join("/"));
  update();
}

function update() {
  const gateway = store.gateway;
  setText(live, !store.connected ? "not connected" : gateway ? `live · version ${gateway.version}` : "connecting");
  live.className = store.connected ? "on" : "off";
  const told = [];
  if (!store.connected && gateway) told.push(["bad", "The gateway does not answer: what you see is old."]);
  if (gateway?.draining) told.push(["bad", "This gateway is shutting down."]);
  for (const line of gateway?.missing ?? []) told.push(["bad", `Not ready: ${line}`]);
  for (const line of gateway?.degraded ?? []) told.push(["", line]);
  for (const line of gateway?.refusals ?? []) told.push(["", `Refused, the last good ones stay: ${line}`]);
  if (gateway && !gateway.redis_up) told.push(["", "Redis does not answer: this process goes on with what it knows; nothing can be changed."]);
  keyed(banners, told, ([, text]) => text, () => h("p", {}), (element, [kind, text]) => {
    element.className = `banner ${kind}`;
    setText(element, text);
  });
  shown?.view.update?.();
}

window.addEventListener("hashchange", show);
store.addEventListener("change", update);
show();
store.follow();
