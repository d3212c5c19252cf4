// What the fleet costs, and what it gives for it.
import { count, h, percent, tokenSplit, words } from "./dom.js";
import { store } from "./store.js";

const ROLES = { P: "p_tokens", RLD: "rld_tokens", MD: "md_tokens", other: "other_tokens" };

export function mount(root) {
  const page = h("div", { class: "stack" });
  root.append(page);
  let drawn = "";
  return {
    update: () => {
      const stamp = JSON.stringify([store.get("usage"), store.gateway?.price_per_hour, store.points.at(-1)]);
      if (stamp === drawn || !store.gateway) return;
      drawn = stamp;
      page.replaceChildren(...draw());
    },
  };
}

function draw() {
  const usage = Object.entries(store.get("usage")), price = store.gateway.price_per_hour;
  const mean = (name) => { const values = store.series(name); return values.length ? values.reduce((sum, value) => sum + value, 0) / values.length : 0; };
  const goodput = mean("slo_met"), judged = goodput + mean("slo_missed");
  const total = {};
  for (const [, one] of usage) for (const [name, value] of Object.entries(one)) total[name] = (total[name] ?? 0) + value;
  const tokens = Object.fromEntries(Object.entries(ROLES).map(([role, name]) => [role, total[name] ?? 0]));
  const made = Object.values(tokens).reduce((sum, value) => sum + value, 0);
  const figures = [
    ["Benefit for cost, now", price && judged ? (goodput * 3600 / price).toFixed(1) : "–", "good requests per unit of price"],
    ["Goodput, now", judged ? (goodput * 60).toFixed(1) : "–", "requests a minute within their SLO"],
    ["Within SLO, 24 h", total.slo_met || total.slo_missed ? percent((total.slo_met ?? 0) / ((total.slo_met ?? 0) + (total.slo_missed ?? 0))) : "–", ""],
    ["Price of the fleet", price ? price.toFixed(2) : "–", "an hour"],
    ["Cost, 24 h", total.cost ? total.cost.toFixed(4) : "–", ""],
    ["RLD's share, 24 h", made ? percent(tokens.RLD / made) : "–", "of the tokens"],
  ];
  const hints = [];
  if (!price) hints.push("No prices: give engines a `price_per_hour` in the configuration, and costs are counted.");
  if (!judged && !total.slo_met && !total.slo_missed) hints.push("No promises: the rules' `slo` says which answers are good ones.");
  const rows = usage.sort(([, a], [, b]) => (b.cost ?? 0) - (a.cost ?? 0) || (b.requests ?? 0) - (a.requests ?? 0)).map(([name, one]) => h("tr", {},
    h("td", {}, name), h("td", { class: "num" }, count(one.requests ?? 0)), h("td", { class: "num" }, count(one.prompt_tokens ?? 0)), h("td", { class: "num" }, one.prompt_tokens ? percent((one.cached_tokens ?? 0) / one.prompt_tokens) : "–"),
    h("td", {}, tokenSplit(Object.fromEntries(Object.entries(ROLES).map(([role, key]) => [role, one[key] ?? 0])))), h("td", { class: "num" }, one.cost ? one.cost.toFixed(4) : "–"),
    h("td", { class: "num" }, `${count(one.slo_met ?? 0)} / ${count((one.slo_met ?? 0) + (one.slo_missed ?? 0))}`)));
  const heads = ["Tenant", "Requests", "Prompt tokens", "Cached", "Tokens by role", "Cost", "Within SLO"];
  return [
    h("dl", { class: "figures card" }, figures.map(([name, value, unit]) => h("div", { class: "figure" }, h("dt", {}, name), h("dd", {}, value, " ", h("small", {}, unit))))),
    ...hints.map((text) => h("p", { class: "card small soft" }, words(text))),
    h("section", { class: "card" }, h("h2", {}, "Tokens by role, 24 h"), tokenSplit(tokens), h("p", { class: "small" }, Object.entries(tokens).filter(([, value]) => value).map(([role, value]) => h("span", {}, h("span", { class: `key ${role}` }), `${role} ${count(value)} `)))),
    rows.length ? h("section", { class: "card" }, h("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": "Use by tenant" }, h("table", {}, h("caption", {}, "Use by tenant over the last 24 hours, on all gateways"), h("thead", {}, h("tr", {}, heads.map((name, at) => h("th", { scope: "col", class: at && at !== 4 ? "num" : null }, name)))), h("tbody", {}, rows))))
      : h("p", { class: "card empty" }, "Nothing was used in the last 24 hours, or Redis does not answer."),
  ];
}
