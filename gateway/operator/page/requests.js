// Running and recent requests, and one of them on a time axis.
import { ask, bytes, clock, count, h, keyed, seconds, setText, tokenSplit, words } from "./dom.js";
import { timeline } from "./charts.js";
import { store } from "./store.js";

const STAGES = { tokenise_s: "read and tokenised in", waited_s: "waited for a place", decide_s: "decided in" };
const FILTERS = { tenant: "Tenant", plan: "Plan", outcome: "Outcome" };

export function mount(root) {
  const filter = { tenant: "", plan: "", outcome: "", text: "" };
  const selects = Object.entries(FILTERS).map(([name, label]) =>
    h("label", {}, label, h("select", { "data-name": name, on: { change: (event) => { filter[name] = event.target.value; update(); } } }, h("option", { value: "" }, "all"))));
  const search = h("label", {}, "Request id", h("input", { type: "search", on: { input: (event) => { filter.text = event.target.value.trim(); update(); } } }));
  const body = h("tbody", {});
  const none = h("p", { class: "empty" });
  const detail = h("section", { class: "card", "aria-label": "One request", hidden: true });
  const heads = ["Began", "Request", "Tenant", "Plan", "Tokens", "TTFT", "Gap", "WAN", "State"];
  const figures = ["TTFT", "Gap", "WAN"];
  root.append(h("div", { class: "stack" },
    h("div", { class: "row" }, selects, search),
    detail,
    h("section", { class: "card" },
      h("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": "Requests of this gateway" },
        h("table", {}, h("caption", {}, "The newest requests of this gateway"), h("thead", {}, h("tr", {}, heads.map((name) => h("th", { scope: "col", class: figures.includes(name) ? "num" : null }, name)))), body)),
      none)));
  let shown = "", seen = "";

  function update() {
    const all = Object.entries(store.get("requests")).map(([id, one]) => ({ id, ...one })).sort((a, b) => b.at_s - a.at_s);
    for (const select of selects.map((label) => label.querySelector("select"))) offer(select, all);
    const rows = all.filter((one) => matches(one, filter));
    keyed(body, rows, (one) => one.id, newRow, (row, one) => updateRow(row, one, shown));
    none.hidden = rows.length > 0;
    setText(none, all.length ? "No request fits the filter." : "No requests yet. Ask something in the playground, or point a client at /v1.");
    const one = store.get("requests")[shown];
    // Asked again while it runs, and once more when it has ended.
    if (shown && one && JSON.stringify(one) !== seen) {
      seen = JSON.stringify(one);
      drawDetail(detail, shown, one);
    }
  }

  function open(id) {
    shown = id;
    seen = "";
    detail.hidden = !id;
    if (id) {
      detail.replaceChildren(h("p", { class: "soft" }, "…"));
      if (!store.get("requests")[id]) drawDetail(detail, id, null);
    }
    update();
  }

  return { update, open };
}

function offer(select, all) {
  const values = [...new Set(all.map((one) => one[select.dataset.name] ?? "").filter(Boolean))].sort();
  if (select.dataset.name === "outcome" && all.some((one) => one.running)) values.unshift("running");
  const options = ["", ...values];
  if ([...select.options].map((option) => option.value).join("\n") === options.join("\n")) return;
  const chosen = select.value;
  select.replaceChildren(...options.map((value) => h("option", { value }, value || "all")));
  select.value = options.includes(chosen) ? chosen : "";
}

function matches(one, filter) {
  const outcome = one.running ? "running" : one.outcome;
  return (!filter.tenant || one.tenant === filter.tenant) && (!filter.plan || one.plan === filter.plan) &&
    (!filter.outcome || outcome === filter.outcome) && one.id.includes(filter.text);
}

function newRow(one) {
  return h("tr", {},
    h("td", {}, clock(one.at_s)), h("td", {}, h("a", { href: `#requests/${encodeURIComponent(one.id)}` }, shorten(one.id))),
    h("td", {}, one.tenant ?? "–"), h("td", { class: "reason" }), h("td", {}), h("td", { class: "num" }), h("td", { class: "num" }), h("td", { class: "num" }), h("td", {}));
}

const shorten = (id) => (id.length > 16 ? `${id.slice(0, 14)}…` : id);

function updateRow(row, one, shown) {
  if (one.id === shown) row.setAttribute("aria-current", "true");
  else row.removeAttribute("aria-current");
  const stamp = JSON.stringify(one);
  if (row.dataset.stamp === stamp) return;
  row.dataset.stamp = stamp;
  const cells = row.children;
  cells[3].replaceChildren(h("strong", {}, one.plan ?? "–"), h("br"), h("span", { class: "soft small" }, words(one.why ?? one.reason)));
  const total = Object.values(one.tokens ?? {}).reduce((sum, value) => sum + value, 0);
  cells[4].replaceChildren(tokenSplit(one.tokens), h("span", { class: "soft small" }, one.tokens ? count(total) : ""));
  setText(cells[5], seconds(one.ttft_s));
  setText(cells[6], seconds(one.gap_s));
  setText(cells[7], one.wan_bytes ? bytes(one.wan_bytes) : "–");
  cells[8].replaceChildren(h("span", { class: one.running ? "up" : one.outcome === "failed" ? "down" : "" }, one.running ? `running: ${(one.phase ?? "begun").replaceAll("_", " ")}` : (one.outcome ?? "–").replaceAll("_", " ")));
}

async function drawDetail(root, id, one) {
  let told;
  try {
    told = await ask(`/admin/requests/${encodeURIComponent(id)}`);
  } catch (error) {
    root.replaceChildren(h("h2", {}, id), h("p", { class: "error" }, error.message));
    return;
  }
  const answers = told.choices ?? [told];
  root.replaceChildren(
    h("div", { class: "row apart" }, h("h2", {}, `Request ${id}`), h("a", { href: "#requests" }, "Close")),
    h("p", {}, words(one?.why), " ", one?.has_decision ? h("a", { href: `#decisions/${encodeURIComponent(id)}` }, "Why this plan?") : null),
    ...answers.flatMap((answer) => [h("p", { class: "small soft" }, before(answer)), timeline(answer.events, root.clientWidth), eventList(answer)]));
}

const before = (answer) => Object.entries(STAGES).filter(([name]) => answer[name]).map(([name, text]) => `${text} ${seconds(answer[name])}`).join(", ");

export function eventList(answer) {
  const rows = answer.events.map(({ t_s, event, ...rest }) => h("tr", {}, h("td", { class: "num" }, seconds(t_s)), h("td", {}, event.replaceAll("_", " ")),
    h("td", { class: "soft" }, Object.entries(rest).filter(([, value]) => value !== null).map(([name, value]) => `${name} ${value}`).join(", "))));
  return h("details", {}, h("summary", {}, `${answer.events.length} events`), h("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": "Events" }, h("table", {},
    h("thead", {}, h("tr", {}, ["After", "Event", "Details"].map((name) => h("th", { scope: "col" }, name)))), h("tbody", {}, rows))));
}
