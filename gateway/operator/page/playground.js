// Asks the gateway like any client, and shows who made each token.
import { ask, bytes, count, h, seconds, setText } from "./dom.js";
import { timeline } from "./charts.js";
import { store } from "./store.js";

const WORDS = ("the river runs past the old mill and the people of the valley bring their grain there every autumn while " +
  "carts wait in a long line and children play under the chestnut trees until the last sack is filled").split(" ");
const PLANS = { "": "as the rules say", relay: "relay", direct: "direct", naive: "naive (MD alone, after the KV)" };

export function filler(words, seed) {
  const chosen = [];
  let state = seed >>> 0;
  for (let at = 0; at < words; at += 1) {
    state = (Math.imul(state, 1664525) + 1013904223) >>> 0;
    chosen.push(WORDS[state % WORDS.length]);
  }
  return chosen.join(" ");
}

export function mount(root) {
  const model = h("select", {}), key = h("input", { type: "password", autocomplete: "off", placeholder: "only where keys are on" });
  const prompt = h("textarea", { rows: "3" }, "Tell me about the fox.");
  const words = h("input", { type: "number", min: "0", max: "200000", step: "1", value: "3000" });
  const most = h("input", { type: "number", min: "1", max: "100000", value: "300" });
  const plan = h("select", {}, Object.entries(PLANS).map(([value, label]) => h("option", { value }, label)));
  const compare = h("input", { type: "checkbox" });
  const button = h("button", { class: "main", type: "submit" }, "Ask");
  const stop = h("button", { type: "button", disabled: true, on: { click: () => abort?.abort() } }, "Stop");
  const note = h("p", { class: "small soft", role: "status" });
  const panes = h("div", { class: "cols" });
  let abort = null;
  const form = h("form", { class: "card stack", on: { submit: (event) => { event.preventDefault(); run(); } } },
    h("label", {}, "Prompt", prompt),
    h("div", { class: "row" }, h("label", {}, "Model", model), h("label", {}, "Filler before it, words", words), h("label", {}, "Answer tokens at most", most),
      h("label", {}, "Plan", plan), h("label", {}, "API key", key)),
    h("div", { class: "row" }, button, stop, h("label", { class: "check" }, compare, "naive beside it"), note));
  root.append(h("div", { class: "stack" }, form, h("p", { class: "small" }, ["P", "RLD", "MD"].map((role) => h("span", {}, h("span", { class: `key ${role}` }), `${role} `)), "· the bar marks a joint"), panes));

  async function run() {
    abort = new AbortController();
    button.disabled = true;
    stop.disabled = false;
    setText(note, "");
    panes.replaceChildren();
    const plans = compare.checked ? [plan.value, "naive"] : [plan.value];
    // Two fresh prompts: the second shall not find the first one's cache.
    await Promise.all(plans.map((asked, at) => answer(panes, asked, { model: model.value, key: key.value, prompt: prompt.value, words: Number(words.value), most: Number(most.value), seed: Date.now() + at, signal: abort.signal })));
    button.disabled = false;
    stop.disabled = true;
    abort = null;
  }

  return {
    leave: () => abort?.abort(),
    update: () => {
      const names = Object.keys(store.get("models"));
      if ([...model.options].map((one) => one.value).join() !== names.join()) model.replaceChildren(...names.map((name) => h("option", { value: name }, name)));
    },
  };
}

function newPane(root, asked) {
  const parts = { text: h("div", { class: "answer", tabindex: "0", role: "log", "aria-label": "Answer" }), figures: h("p", { class: "small" }), picture: h("div", {}), title: h("h2", {}, PLANS[asked]) };
  root.append(h("section", { class: "card stack" }, parts.title, parts.text, parts.figures, parts.picture));
  return parts;
}

async function answer(root, asked, { model, key, prompt, words, most, seed, signal }) {
  const pane = newPane(root, asked);
  const headers = { "content-type": "application/json", "x-pdd-trace": "1" };
  if (asked) headers["x-pdd-ask"] = asked;
  if (key) headers.authorization = `Bearer ${key}`;
  const content = words > 0 ? `${filler(words, seed)}\n\n${prompt}` : prompt;
  const body = { model, stream: true, max_tokens: most, temperature: 0, messages: [{ role: "user", content }], return_token_ids: true, stream_options: { include_usage: true } };
  const run = { began: performance.now(), first: null, last: null, gap: 0, roles: {}, role: null, id: null, usage: null };
  try {
    const response = await fetch("/v1/chat/completions", { method: "POST", headers, body: JSON.stringify(body), signal });
    if (!response.ok) {
      const told = await response.json().catch(() => null);
      const here = response.status === 404 ? "The API is not at this address: the operator's page has a listener of its own here." : `The gateway answers ${response.status}.`;
      throw new Error(told?.error?.code === "not_found" ? here : told?.error?.message ?? here);
    }
    run.id = response.headers.get("x-request-id");
    setText(pane.title, `${PLANS[asked]} → ${response.headers.get("x-pdd-plan") ?? "?"} (${(response.headers.get("x-pdd-reason") ?? "").replaceAll("_", " ")})`);
    const watch = setInterval(() => draw(pane, run.id), 700);
    try {
      for await (const chunk of events(response.body)) take(pane, run, chunk);
    } finally {
      clearInterval(watch);
    }
  } catch (error) {
    pane.figures.append(h("span", { class: "error", role: "alert" }, error.name === "AbortError" ? "Stopped." : error.message), " ");
  }
  if (run.id) await draw(pane, run.id);
}

async function* events(stream) {
  const decoder = new TextDecoder();
  let rest = "";
  for await (const part of readable(stream)) {
    const blocks = (rest + decoder.decode(part, { stream: true })).split("\n\n");
    rest = blocks.pop();
    for (const block of blocks) {
      const data = block.split("\n").filter((line) => line.startsWith("data: ")).map((line) => line.slice(6)).join("\n");
      if (data && data !== "[DONE]") yield JSON.parse(data);
    }
  }
}

async function* readable(stream) {
  const reader = stream.getReader();
  try {
    for (;;) {
      const { done, value } = await reader.read();
      if (done) return;
      yield value;
    }
  } finally {
    reader.releaseLock();
  }
}

function take(pane, run, chunk) {
  if (chunk.error) throw new Error(chunk.error.message);
  run.usage = chunk.usage ?? run.usage;
  for (const choice of chunk.choices) {
    const ids = choice.token_ids ?? [];
    const text = (choice.delta?.reasoning_content ?? choice.delta?.reasoning ?? "") + (choice.delta?.content ?? "");
    const role = chunk.pdd?.role ?? run.role ?? "other";
    if (ids.length || text) {
      const now = performance.now();
      run.first ??= now;
      if (run.role && role !== run.role) {
        const told = `joint: ${run.role} to ${role}, ${seconds((now - run.last) / 1000)} between them`;
        pane.text.append(h("span", { class: "joint", role: "img", title: told, "aria-label": told }));
        if (run.role !== "P") run.gap = Math.max(run.gap, (now - run.last) / 1000);
      }
      run.last = now;
      run.role = role;
      run.roles[role] = (run.roles[role] ?? 0) + Math.max(1, ids.length);
    }
    if (text) {
      const end = pane.text.scrollHeight - pane.text.scrollTop - pane.text.clientHeight < 30;
      const latest = pane.text.lastElementChild;
      if (latest?.dataset.role === role) latest.append(text);
      else pane.text.append(h("span", { class: `tok-${role}`, "data-role": role }, text));
      if (end) pane.text.scrollTop = pane.text.scrollHeight;
    }
  }
  showFigures(pane, run);
}

function showFigures(pane, run) {
  const roles = Object.entries(run.roles).map(([role, made]) => `${role} ${count(made)}`).join(", ");
  const parts = [
    run.first === null ? "waiting for the first token" : `first token after ${seconds((run.first - run.began) / 1000)}`,
    roles && `tokens: ${roles}`,
    run.gap ? `joint ${seconds(run.gap)}` : null,
    run.usage && `${count(run.usage.prompt_tokens)} prompt tokens, ${count(run.usage.prompt_tokens_details?.cached_tokens ?? 0)} cached`,
  ];
  setText(pane.figures, parts.filter(Boolean).join(" · "));
}

async function draw(pane, id) {
  try {
    const told = await ask(`/admin/requests/${encodeURIComponent(id)}`);
    const wan = told.wan_bytes ? ` · ${bytes(told.wan_bytes)} over the line` : "";
    pane.picture.replaceChildren(timeline(told.events, pane.picture.clientWidth), h("p", { class: "small soft" }, h("a", { href: `#requests/${encodeURIComponent(id)}` }, "This request"), wan));
  } catch (error) {
    pane.picture.replaceChildren(h("p", { class: "soft small" }, error.message));
  }
}
