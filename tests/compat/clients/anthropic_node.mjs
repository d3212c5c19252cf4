// Anthropic's SDK for node at /v1/messages.

import { CALL, CHAT, KEY, MODEL, PLACE, SCHEMA, equal, load, refused, run } from "./kit.mjs";

const { default: Anthropic } = await load("@anthropic-ai/sdk");
const client = (url) => new Anthropic({ baseURL: url, apiKey: KEY, maxRetries: 0 });
const ask = (text, more = {}) => ({
  model: MODEL,
  max_tokens: 400,
  messages: [{ role: "user", content: text }],
  ...more,
});
const tools = [{ name: "get", description: "Look a place up.", input_schema: SCHEMA }];

function checkUse(answer) {
  const use = answer.content.at(-1);
  equal([answer.stop_reason, use.type, use.name, use.input], ["tool_use", "tool_use", "get", PLACE]);
}

await run(["@anthropic-ai/sdk"], {
  async messages(url) {
    const answer = await client(url).messages.create(ask(CHAT));
    equal([answer.content.at(-1).text, answer.stop_reason], ["Sure.", "end_turn"]);
    const counted = await client(url).messages.countTokens({ model: MODEL, messages: ask(CHAT).messages });
    equal(answer.usage.input_tokens + (answer.usage.cache_read_input_tokens ?? 0), counted.input_tokens);
  },
  async stream(url) {
    equal(await client(url).messages.stream(ask(CHAT)).finalText(), "Sure.");
  },
  async tools(url) {
    const first = await client(url).messages.create(ask(CALL, { tools }));
    checkUse(first);
    const result = { type: "tool_result", tool_use_id: first.content.at(-1).id, content: "Sunny." };
    const messages = [
      { role: "user", content: CALL },
      { role: "assistant", content: first.content },
      { role: "user", content: [result] },
    ];
    const last = await client(url).messages.create({ ...ask(CALL, { tools }), messages });
    equal(last.content.at(-1).text, "Sure.");
  },
  async tools_stream(url) {
    checkUse(await client(url).messages.stream(ask(CALL, { tools })).finalMessage());
  },
  async reasoning(url) {
    for (const answer of [
      await client(url).messages.create(ask(CHAT)),
      await client(url).messages.stream(ask(CHAT)).finalMessage(),
    ]) {
      equal([answer.content[0].type, answer.content[0].thinking], ["thinking", "so"]);
    }
  },
  async structured_output(url) {
    const output_config = { format: { type: "json_schema", schema: SCHEMA } };
    const answer = await client(url).messages.create(ask(CHAT, { output_config }));
    equal(JSON.parse(answer.content.at(-1).text), PLACE);
  },
  async errors(url) {
    await refused(404, () => client(url).messages.create(ask(CHAT, { model: "absent" })));
    await refused(400, () => client(url).messages.create(ask("word ".repeat(9000))));
  },
});
