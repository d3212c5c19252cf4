// Rule documents: edited with their check while typing, compared, rehearsed, pushed, and taken back.
import { ask, confirmed, count, h, keyed, moment, setText, words } from "./dom.js";
import { store } from "./store.js";

export function mount(root) {
  const name = h("select", { on: { change: () => load(name.value) } });
  const editor = h("textarea", { class: "code", rows: "18", spellcheck: "false", "aria-describedby": "verdict", on: { input: typed } });
  const verdict = h("p", { id: "verdict", role: "status", class: "small" });
  const difference = h("pre", { class: "diff", tabindex: "0", "aria-label": "Difference to what is in force" });
  const rehearsal = h("div", { class: "small" });
  const push = h("button", { class: "main", type: "button", disabled: true, on: { click: () => write(JSON.parse(editor.value)) } }, "Push");
  const remove = h("button", { type: "button", on: { click: () => write(null) } }, "Delete");
  const other = h("button", { type: "button", on: { click: addTenant } }, "Tenant…");
  const acks = h("p", { class: "small", role: "status" });
  const history = h("ul", { class: "small" });
  const search = h("input", { type: "search", on: { input: () => drawFields(fields, schema, search.value) } });
  const fields = h("dl", { class: "small" });
  root.append(h("div", { class: "cols" },
    h("section", { class: "card stack" }, h("div", { class: "row" }, h("label", {}, "Document", name), other), h("label", {}, "Rules as JSON", editor), verdict,
      h("div", { class: "row" }, push, remove), acks),
    h("div", { class: "stack" },
      h("section", { class: "card" }, h("h2", {}, "Against what is in force"), difference),
      h("section", { class: "card" }, h("h2", {}, "Recent requests under these rules"), rehearsal),
      h("section", { class: "card" }, h("h2", {}, "History"), history),
      h("section", { class: "card" }, h("h2", {}, "Fields"), h("label", {}, "Find", search), fields))));

  let documents = {}, schema = null, timer = null, pushed = null, turn = 0;
  const current = () => documents[name.value] ?? null;
  const spell = (value) => JSON.stringify(value, null, 2);

  async function refresh(keep) {
    try {
      const told = await ask("/admin/rules/documents");
      documents = Object.fromEntries(told.documents.map((one) => [one.name, one]));
      schema ??= await ask("/admin/rules/schema");
      drawFields(fields, schema, search.value);
      const names = [...new Set(["default", ...Object.keys(documents), ...(keep ? [keep] : [])])];
      name.replaceChildren(...names.map((one) => h("option", { value: one }, one === "default" ? "default (everybody)" : one)));
      await load(keep ?? "default");
    } catch (error) {
      say(error.message, false);
    }
  }

  async function load(which) {
    name.value = which;
    editor.value = spell(current()?.body ?? {});
    remove.disabled = !current();
    check();
    history.replaceChildren();
    try {
      const { versions } = await ask(`/admin/rules/documents/${encodeURIComponent(which)}/history`);
      history.replaceChildren(...(versions.length ? versions.map(versionRow) : [h("li", { class: "soft" }, "No versions: what the configuration has is in force.")]));
    } catch (error) {
      history.replaceChildren(h("li", { class: "error" }, error.message));
    }
  }

  function versionRow(one) {
    const text = `version ${one.version}, ${moment(one.at_s)}, by ${one.author}${one.deleted ? ", deleted" : ""} `;
    const back = h("button", { class: "quiet", type: "button", "aria-label": `Put version ${one.version} in the editor`, on: { click: () => { editor.value = spell(one.body); check(); editor.focus(); } } }, "Edit this one");
    return h("li", {}, text, one.deleted ? null : back);
  }

  async function addTenant() {
    const field = h("input", { "aria-label": "Name of the tenant" });
    const dialog = h("dialog", {}, h("form", { method: "dialog" }, h("label", {}, "Name of the tenant", field), h("div", { class: "row" }, h("button", { value: "no" }, "Cancel"), h("button", { class: "main", value: "yes" }, "Open"))));
    dialog.addEventListener("close", () => { dialog.remove(); if (dialog.returnValue === "yes" && field.value.trim()) refresh(field.value.trim()); });
    document.body.append(dialog);
    dialog.showModal();
  }

  function typed() {
    clearTimeout(timer);
    push.disabled = true;
    timer = setTimeout(check, 300);
  }

  async function check() {
    clearTimeout(timer);
    push.disabled = true;
    const mine = ++turn;
    let value;
    try {
      value = JSON.parse(editor.value);
    } catch (error) {
      return say(`Not JSON: ${error.message}`, false);
    }
    drawDifference(difference, spell(current()?.body ?? {}), spell(value));
    try {
      const told = await ask(`/admin/rules/documents/${encodeURIComponent(name.value)}/check`, { body: value });
      if (mine !== turn) return undefined;
      drawRehearsal(rehearsal, told);
      push.disabled = spell(value) === spell(current()?.body ?? {}) && current() !== null;
      return say("Valid.", true);
    } catch (error) {
      if (mine !== turn) return undefined;
      rehearsal.replaceChildren(h("p", { class: "soft" }, "Not rehearsed: the rules are not valid."));
      return say(error.message, false);
    }
  }

  function say(text, good) {
    verdict.className = `small ${good ? "ok" : "error"}`;
    setText(verdict, text);
  }

  async function write(body) {
    const which = name.value, expected = current()?.version ?? null;
    const text = body === null ? "What lies under it is in force again, on every gateway." : "Every gateway applies it within a second; requests that run keep the rules they began with.";
    if (!(await confirmed(body === null ? `Delete the rules of ${which}?` : `Push the rules of ${which}?`, text, body === null ? "Delete" : "Push"))) return;
    try {
      pushed = await ask(`/admin/rules/documents/${encodeURIComponent(which)}`, { body, expect_version: expected });
      await refresh(which);
    } catch (error) {
      say(error.message, false);
    }
    update();
  }

  function update() {
    if (!pushed) return;
    const processes = Object.values(store.get("processes"));
    const applied = processes.filter((one) => one.revision >= pushed.revision && !one.refuses);
    const refused = processes.filter((one) => one.refuses).map((one) => `process ${one.pid} on ${one.host} refuses it`);
    setText(acks, `Version ${pushed.version} of ${pushed.name} (revision ${pushed.revision}): applied by ${count(applied.length)} of ${count(processes.length)} gateways. ${refused.join("; ")}`);
  }

  refresh();
  return { update };
}

function drawDifference(root, old, fresh) {
  const lines = difference(old.split("\n"), fresh.split("\n"));
  const changed = lines.some(([mark]) => mark !== " ");
  root.replaceChildren(...(changed ? lines.map(([mark, line]) => h("span", { class: mark === "+" ? "add" : mark === "-" ? "del" : "" }, `${mark} ${line}\n`)) : ["no difference"]));
}

export function difference(old, fresh) {
  const table = Array.from({ length: old.length + 1 }, () => new Array(fresh.length + 1).fill(0));
  for (let i = old.length - 1; i >= 0; i -= 1)
    for (let j = fresh.length - 1; j >= 0; j -= 1) table[i][j] = old[i] === fresh[j] ? table[i + 1][j + 1] + 1 : Math.max(table[i + 1][j], table[i][j + 1]);
  const lines = [];
  let i = 0, j = 0;
  while (i < old.length || j < fresh.length) {
    if (i < old.length && j < fresh.length && old[i] === fresh[j]) { lines.push([" ", old[i]]); i += 1; j += 1; }
    else if (j >= fresh.length || (i < old.length && table[i + 1][j] >= table[i][j + 1])) { lines.push(["-", old[i]]); i += 1; }
    else { lines.push(["+", fresh[j]]); j += 1; }
  }
  return lines;
}

function drawRehearsal(root, told) {
  const sum = h("p", {}, told.looked_at ? `${count(told.changed.length)} of the last ${count(told.looked_at)} requests would get another plan on the present fleet.` : "No recent requests to try the rules on.");
  root.replaceChildren(sum, h("ul", {}, told.changed.slice(0, 20).map((one) => h("li", {}, `${one.tenant}, ${count(one.prompt_tokens)} tokens: ${one.before} ⇒ ${one.after}`))));
}

// All fields of a rule document, from its JSON schema.
export function listFields(schema) {
  const found = [];
  const resolve = (node) => (node?.$ref ? schema.$defs[node.$ref.split("/").at(-1)] : node);
  const walk = (node, path, depth) => {
    for (const [key, raw] of Object.entries(resolve(node)?.properties ?? {})) {
      const options = [raw, ...(raw.anyOf ?? [])].map(resolve);
      const inner = options.find((one) => one?.properties);
      const where = path ? `${path}.${key}` : key;
      if (inner && depth < 4) walk(inner, where, depth + 1);
      else found.push({ path: where, text: raw.description ?? "", by: "default" in raw ? JSON.stringify(raw.default) : "" });
    }
  };
  walk(schema, "", 0);
  return found;
}

function drawFields(root, schema, text) {
  if (!schema) return;
  const wanted = text.trim().toLowerCase();
  const found = listFields(schema).filter((one) => !wanted || `${one.path} ${one.text}`.toLowerCase().includes(wanted)).slice(0, wanted ? 30 : 8);
  keyed(root, found.flatMap((one) => [{ ...one, tag: "dt" }, { ...one, tag: "dd" }]), (one) => `${one.tag} ${one.path}`, (one) => h(one.tag, {}), (element, one) => {
    if (one.tag === "dt") element.replaceChildren(h("strong", {}, one.path), one.by ? h("span", { class: "soft" }, ` default ${one.by}`) : "");
    else element.replaceChildren(...words(one.text));
  });
}
