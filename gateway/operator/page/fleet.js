// Two regions (or more), their instances, and the lines between.
import { ask, bits, bytes, confirmed, count, h, keyed, percent, seconds, setText, setWidth, words } from "./dom.js";
import { newSpark, spark } from "./charts.js";
import { store } from "./store.js";

const ROLES = ["P", "RLD", "MD"];

export function mount(root) {
  const figures = h("dl", { class: "figures card" });
  const regions = h("div", { class: "regions" });
  const gateways = h("section", { class: "card" });
  root.append(h("div", { class: "stack" }, figures, regions, gateways));
  return { update: () => { drawFigures(figures); drawRegions(regions); drawGateways(gateways); } };
}

const last = (name) => store.series(name).at(-1) ?? 0;

function drawFigures(root) {
  const gateway = store.gateway;
  if (!gateway) return;
  const tokens = ROLES.map((role) => `tokens:${role}`);
  const running = Object.values(store.get("requests")).filter((one) => one.running).length;
  const items = [
    ["Running answers", count(running), `${count(gateway.waiting)} wait`],
    ["Requests", last("requests").toFixed(1), "a second"],
    ["Tokens", count(tokens.reduce((sum, name) => sum + last(name), 0)), "a second", tokens],
    ["Aligning", count(gateway.aligning), "answers' KV"],
    ["Gateways", count(gateway.gateways), `revision ${gateway.revision}`],
  ];
  keyed(root, items, ([name]) => name, ([name]) => h("div", { class: "figure" }, h("dt", {}, name), h("dd", {}), h("dd", {})),
    (element, [name, value, unit, series]) => {
      const [figure, picture] = element.querySelectorAll("dd");
      figure.replaceChildren(value, " ", h("small", {}, unit));
      if (!series) return;
      if (!picture.firstChild) picture.append(newSpark());
      spark(picture.firstChild, series.map((one) => store.series(one)), ROLES, `${name} a second by role, last minute`, 10);
    });
}

function drawRegions(root) {
  const instances = Object.entries(store.get("instances")).map(([id, one]) => ({ id, ...one }));
  const links = Object.entries(store.get("links")).map(([id, one]) => ({ id, ...one }));
  const names = [...new Set([...instances.map((one) => one.region), ...links.flatMap((one) => [one.source, one.dest])])].sort();
  const order = names.length === 2 && links.length && links[0].source === names[1] ? [...names].reverse() : names;
  const boxes = order.map((name) => ({ kind: "region", name, instances: instances.filter((one) => one.region === name) }));
  if (links.length) boxes.splice(1, 0, { kind: "lines", name: "lines", links });
  if (!store.gateway) return;
  if (!boxes.length) {
    root.replaceChildren(h("p", { class: "card empty" }, words("No engines are configured. Add some under `engines` in the configuration, or with `pdd pool add`.")));
    return;
  }
  for (const child of [...root.children]) if (!child.dataset.key) child.remove();
  keyed(root, boxes, (box) => box.name, newBox, updateBox);
}

function newBox(box) {
  if (box.kind === "lines") return h("section", { class: "lines", "aria-label": "Lines between regions" });
  return h("section", { class: "region", "aria-label": `Region ${box.name}` }, h("h2", {}, `Region ${box.name}`), h("div", { class: "tiles" }));
}

function updateBox(element, box) {
  if (box.kind === "lines") {
    keyed(element, box.links, (one) => one.id, newLine, updateLine);
    return;
  }
  const sorted = [...box.instances].sort((a, b) => ROLES.indexOf(a.role) - ROLES.indexOf(b.role) || a.id.localeCompare(b.id));
  keyed(element.querySelector(".tiles"), sorted, (one) => one.id, newTile, updateTile);
}

function meter(name) {
  return h("div", { class: "meter", "data-name": name }, h("span", {}, name), h("span", { class: "bar" }, h("i", {})), h("b", {}));
}

function setMeter(tile, name, share, text) {
  const one = tile.querySelector(`[data-name="${name}"]`);
  setWidth(one.querySelector("i"), share ?? 0);
  setText(one.querySelector("b"), text);
}

function newTile(one) {
  const button = h("button", { class: "quiet", type: "button", on: { click: () => toggle(one.id, button) } });
  return h("article", { "aria-label": `${one.role} ${one.id}` },
    h("h3", {}, h("span", { class: `role ${one.role}` }, one.role), h("span", {}, one.id), h("span", { class: "state" })),
    h("p", { class: "small soft", "data-name": "why" }),
    meter("load"), meter("KV use"), meter("hits"),
    h("div", { class: "foot small soft" }, h("span", { "data-name": "pace" }), newSpark(), button));
}

function updateTile(tile, one) {
  tile.className = `tile ${one.role}${one.up ? "" : " out"}`;
  const state = tile.querySelector(".state");
  state.className = `state ${one.up ? "up" : one.draining ? "drains" : "down"}`;
  setText(state, one.up ? "up" : one.draining ? "draining" : "out");
  const flaws = [one.up ? null : one.why, one.differs ? "other tokens than its peers: not joined with them" : null, one.leaks_salts ? "shares KV between salts" : null];
  setText(tile.querySelector('[data-name="why"]'), flaws.filter(Boolean).join("; "));
  setMeter(tile, "load", (one.running + one.waiting) / one.max_running, `${count(one.running)} of ${count(one.max_running)}${one.waiting ? ` +${count(one.waiting)}` : ""}`);
  setMeter(tile, "KV use", one.kv_usage, percent(one.kv_usage));
  setMeter(tile, "hits", one.hit_rate ?? 0, one.hit_rate === null ? "not seen" : percent(one.hit_rate));
  spark(tile.querySelector(".spark"), [store.series(`load:${one.id}`)], [one.role], `Load of ${one.id}, last minute`, 1);
  setText(tile.querySelector('[data-name="pace"]'), one.itl_ms === null ? "" : `${one.itl_ms} ms a token`);
  const button = tile.querySelector("button");
  setText(button, one.draining ? "Put back" : "Drain");
  button.setAttribute("aria-label", `${one.draining ? "Put back" : "Drain"} ${one.id}`);
}

async function toggle(id, button) {
  const one = store.get("instances")[id];
  const verb = one.draining ? "undrain" : "drain";
  const text = one.draining ? "It gets new requests again, on every gateway." : "It gets no new requests, on every gateway; running ones go on to their end.";
  if (!(await confirmed(`${one.draining ? "Put back" : "Drain"} ${id}?`, text, one.draining ? "Put back" : "Drain"))) return;
  button.disabled = true;
  try {
    await ask(`/admin/instances/${encodeURIComponent(id)}/${verb}`, {});
  } catch (error) {
    await confirmed("Nothing was changed", error.message, "Understood");
  }
  button.disabled = false;
  button.focus();
}

function newLine(one) {
  return h("article", { "aria-label": `Line ${one.source} to ${one.dest}` },
    h("h3", {}, one.id === `${one.source}->${one.dest}` ? `${one.source} → ${one.dest}` : one.id, h("span", { class: "state" })), newSpark(), h("dl", { class: "pairs small" }));
}

function updateLine(card, one) {
  const lost = one.lost.length;
  card.className = `card line-card${one.up && !lost ? "" : " down-link"}`;
  const state = card.querySelector(".state");
  state.className = `state ${one.up && !lost ? "up" : "down"}`;
  setText(state, !one.up ? " down" : lost ? ` not used for ${one.lost.join(", ")}` : " up");
  const moved = store.series(`wan:${one.id}`);
  spark(card.querySelector(".spark"), [moved], ["link"], `KV over ${one.id}, last minute`, Math.max(1000, one.rate_bytes_per_s / 20));
  const rows = [
    ["rate", one.up ? bits(one.rate_bytes_per_s) : "–"],
    ["now", `${bits(moved.at(-1) ?? 0)}`],
    ["on order", bytes(one.queued_bytes)],
    ["transfers", count(one.open)],
    ["round trip", `${one.rtt_ms} ms`],
    [`${count(one.typical_tokens)} tokens`, one.typical_s === null ? "–" : `in ${seconds(one.typical_s)}`],
    ...Object.entries(one.kv).map(([model, terms]) => [`KV of ${model}`, terms]),
  ];
  keyed(card.querySelector("dl"), rows.flatMap(([name, value]) => [[name, "dt", name], [name, "dd", value]]), ([name, tag]) => `${name}.${tag}`,
    ([, tag]) => h(tag, {}), (element, [, , text]) => setText(element, text));
}

function drawGateways(root) {
  const gateway = store.gateway;
  if (!gateway) return;
  const rows = Object.entries(store.get("processes")).map(([id, one]) => ({ id, ...one }));
  if (!root.firstChild) root.append(h("h2", {}, "Gateways"), h("ul", { class: "small" }), h("p", { class: "small soft" }));
  keyed(root.querySelector("ul"), rows, (one) => one.id, () => h("li", {}), (element, one) => {
    setText(element, `process ${one.pid} on ${one.host}: ${one.refuses ? "refuses the newest documents" : `revision ${one.revision} in force`}`);
  });
  setText(root.querySelector("p"), rows.length ? "Requests and rates on this page are those of the gateway that serves it; the fleet, rules and use are shared." : "No list of the gateways: Redis does not answer.");
}
