// Why a request gets its plan; how level the caches are; where each prefill curve has valleys.
import { ask, bytes, count, h, percent, seconds, setText, words } from "./dom.js";
import { plot } from "./charts.js";
import { store } from "./store.js";

export function mount(root) {
  const text = h("textarea", { rows: "4", class: "code" }, "Tell me about the fox.");
  const model = h("select", {});
  const tenant = h("input", { value: "default" });
  const recent = h("select", { on: { change: () => { if (recent.value) location.hash = `#decisions/${encodeURIComponent(recent.value)}`; } } });
  const found = h("section", { class: "card", "aria-live": "polite" }, h("p", { class: "empty" }, "Paste a prompt, or choose a recent request."));
  const models = h("div", { class: "cols" });
  const form = h("form", { class: "card stack", on: { submit: (event) => { event.preventDefault(); explain(); } } },
    h("h2", {}, "What would happen with a request?"),
    h("label", {}, "A prompt, or a request's JSON body", text),
    h("div", { class: "row" }, h("label", {}, "Model", model), h("label", {}, "Tenant", tenant), h("button", { class: "main", type: "submit" }, "Explain")),
    h("label", {}, "Or what was decided for a recent request", recent));
  root.append(h("div", { class: "stack" }, h("div", { class: "cols" }, form, found), models));
  let drawn = "";

  async function explain() {
    await tell(() => ask("/admin/explain", { request: asRequest(text.value, model.value), tenant: tenant.value }));
  }

  async function tell(asking) {
    try {
      found.replaceChildren(...describe(await asking()));
    } catch (error) {
      found.replaceChildren(h("p", { class: "error" }, error.message));
    }
  }

  return {
    open: (id) => { if (id) tell(() => ask(`/admin/requests/${encodeURIComponent(id)}/decision`)); },
    update: () => {
      offer(model, Object.keys(store.get("models")).map((name) => [name, name]));
      const known = Object.entries(store.get("requests")).filter(([, one]) => one.has_decision).sort(([, a], [, b]) => b.at_s - a.at_s).slice(0, 50);
      offer(recent, [["", "choose"], ...known.map(([id, one]) => [id, `${id.slice(0, 16)} · ${one.plan} · ${(one.reason ?? "").replaceAll("_", " ")}`])]);
      const stamp = JSON.stringify(store.get("models"));
      if (stamp === drawn) return;
      drawn = stamp;
      models.replaceChildren(...Object.entries(store.get("models")).map(([name, one]) => modelCard(name, one)));
    },
  };
}

function offer(select, options) {
  const stamp = JSON.stringify(options);
  if (select.dataset.stamp === stamp) return;
  select.dataset.stamp = stamp;
  const chosen = select.value;
  select.replaceChildren(...options.map(([value, label]) => h("option", { value }, label)));
  if (options.some(([value]) => value === chosen)) select.value = chosen;
}

function asRequest(text, model) {
  try {
    const value = JSON.parse(text);
    if (value && typeof value === "object" && ("messages" in value || "prompt" in value)) return { model, ...value };
  } catch { /* it is a prompt's text */ }
  return { model, messages: [{ role: "user", content: text }] };
}

function describe(told) {
  const { facts, plan, estimate, scores } = told;
  const path = [plan.prefill, plan.relay, plan.main].filter(Boolean).join(" → ");
  const pairs = [
    ["prompt", `${count(facts.prompt_tokens)} tokens of ${facts.model}`],
    ["answer", facts.predicted_output_tokens === null ? "no idea how long" : `about ${count(facts.predicted_output_tokens)} tokens`],
    ["must cross", !estimate ? "no line is involved" : estimate.total_s === null ? `unknown, at worst ${seconds(estimate.worst_s)}`
      : `${count(estimate.missing_tokens)} tokens, ${bytes(estimate.wan_bytes)}: ${seconds(estimate.total_s)} (queue ${seconds(estimate.queue_s)}, transfer ${seconds(estimate.transfer_s)}, round trip ${seconds(estimate.rtt_s)})`],
  ];
  if (facts.unsplittable) pairs.push(["one engine", `must answer: ${facts.unsplittable.replaceAll("_", " ")}`]);
  return [
    h("h2", {}, `${plan.kind}: ${path}`), h("p", {}, words(told.why)),
    h("dl", { class: "pairs small" }, pairs.map(([name, value]) => [h("dt", {}, name), h("dd", {}, value)])),
    ...scores.map((score) => roleTable(score, facts.hits)),
  ];
}

function roleTable(score, hits) {
  const signals = [...new Set(score.candidates.flatMap((one) => Object.keys(one.signals)))];
  const cached = (id) => { const hit = hits[id]; return hit ? `${count(hit.tokens)}${hit.store_tokens ? ` +${count(hit.store_tokens)} in store` : ""}` : "unknown"; };
  const rows = [...score.candidates].sort((a, b) => b.total - a.total).map((one) => h("tr", { class: one.id === score.chosen ? "chosen" : null },
    h("td", {}, `${one.id === score.chosen ? "✓ " : ""}${one.id}`), h("td", { class: "num" }, one.total.toFixed(3)), h("td", { class: "num" }, cached(one.id)),
    signals.map((name) => h("td", { class: "num" }, one.signals[name].toFixed(2)))));
  const left = Object.entries(score.rejected).map(([id, why]) => h("tr", {}, h("td", {}, id), h("td", { colspan: String(2 + signals.length), class: "soft" }, `left out: ${why.replaceAll("_", " ")}`)));
  return h("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": `Candidates for ${score.role}` }, h("table", {}, h("caption", {}, `Candidates for ${score.role}`),
    h("thead", {}, h("tr", {}, ["instance", "score", "cached tokens", ...signals].map((name, at) => h("th", { scope: "col", class: at ? "num" : null }, name.replaceAll("_", " "))))), h("tbody", {}, rows, left)));
}

function modelCard(name, one) {
  const card = h("section", { class: "card stack" }, h("h2", {}, `Model ${name}`));
  const budget = one.singular_budget === null ? "–" : percent(one.singular_budget);
  card.append(h("dl", { class: "pairs small" }, [
    ["hit rate of P", percent(one.prefill_hit)], ["hit rate of MD", percent(one.main_hit)],
    ["gap", `${percent(one.gap)} (bound ${percent(one.gap_bound)})`],
    ["singular", `${one.singular_total ? percent(one.singular_used / one.singular_total) : "0 %"} of requests (budget ${budget})`],
    ["KV", `${bytes(one.kv_bytes_per_token)} a token`],
  ].map(([label, value]) => [h("dt", {}, label), h("dd", {}, value)])));
  if (one.history.length > 1) {
    card.append(h("h3", {}, "How level MD is with P"), plot({
      series: [{ kind: "P", label: "P", points: one.history.map(([at, p]) => [at, p]) }, { kind: "MD", label: "MD", points: one.history.map(([at, , md]) => [at, md]) }],
      xLabel: "minutes ago", yLabel: "hit rate (violet P, green MD)", xFormat: (at) => ((one.history.at(-1)[0] - at) / 60).toFixed(1), yFormat: (value) => percent(value), yMost: 1, label: `Hit rates of P and MD for ${name} over time` }));
  } else card.append(h("p", { class: "small soft" }, "Hit rates over time are drawn once there were two looks, half a minute apart."));
  const curves = Object.entries(one.curves);
  if (!curves.length) card.append(h("p", { class: "small soft" }, words("No prefill curves: measure them with `pdd profile`, and valleys are avoided and shown here.")));
  for (const [id, [tokens, times]] of curves) {
    card.append(h("h3", {}, `Prefill of ${id}`), plot({
      series: [{ kind: "P", label: id, points: tokens.map((at, index) => [at, times[index]]) }],
      bands: one.valleys[id].map(([from, to, better]) => [from, to, `${count(from)} to ${count(to)} uncached tokens cost more than ${count(better)}`]),
      xLabel: "uncached tokens (grey: valleys)", yLabel: "time", xFormat: count, yFormat: seconds, label: `Prefill time of ${id} against uncached tokens` }));
  }
  return card;
}
