// openai-node: chat, tools, structured answers and the Responses API.

import { CALL, CHAT, FUNCTION, KEY, MODEL, PLACE, SCHEMA, equal, load, refused, run } from "./kit.mjs";

const { default: OpenAI } = await load("openai");
const client = (url) => new OpenAI({ baseURL: `${url}/v1`, apiKey: KEY, maxRetries: 0 });
const ask = (text, more = {}) => ({ model: MODEL, messages: [{ role: "user", content: text }], ...more });
const tools = [{ type: "function", function: FUNCTION }];
const format = { type: "json_schema", json_schema: { name: "place", schema: SCHEMA, strict: true } };

function checkCall(message) {
  equal(message.tool_calls.length, 1);
  const { name, arguments: written } = message.tool_calls[0].function;
  equal([name, JSON.parse(written)], ["get", PLACE]);
}

async function gather(stream, field) {
  let text = "";
  for await (const chunk of stream) text += chunk.choices[0]?.delta?.[field] ?? "";
  return text;
}

await run(["openai"], {
  async chat(url) {
    const answer = await client(url).chat.completions.create(ask(CHAT));
    equal(answer.choices[0].message.content, "Sure.");
  },
  async stream(url) {
    equal(await gather(await client(url).chat.completions.create(ask(CHAT, { stream: true })), "content"), "Sure.");
  },
  async tools(url) {
    const first = await client(url).chat.completions.create(ask(CALL, { tools }));
    const { message } = first.choices[0];
    checkCall(message);
    const result = { role: "tool", tool_call_id: message.tool_calls[0].id, content: "Sunny." };
    const messages = [{ role: "user", content: CALL }, message, result];
    const last = await client(url).chat.completions.create({ model: MODEL, messages, tools });
    equal(last.choices[0].message.content, "Sure.");
    const forced = await client(url).chat.completions.create(ask(CALL, { tools, tool_choice: "required" }));
    checkCall(forced.choices[0].message);
  },
  async tools_stream(url) {
    const answer = await client(url).chat.completions.stream(ask(CALL, { tools })).finalChatCompletion();
    checkCall(answer.choices[0].message);
  },
  async reasoning(url) {
    const answer = await client(url).chat.completions.create(ask(CHAT));
    equal(answer.choices[0].message.reasoning_content, "so");
    const stream = await client(url).chat.completions.create(ask(CHAT, { stream: true }));
    equal(await gather(stream, "reasoning_content"), "so");
  },
  async structured_output(url) {
    const answer = await client(url).chat.completions.parse(ask(CHAT, { response_format: format }));
    equal(JSON.parse(answer.choices[0].message.content), PLACE);
  },
  async responses(url) {
    const asked = { model: MODEL, input: CALL, tools: [{ type: "function", strict: false, ...FUNCTION }] };
    const kinds = ["reasoning", "message", "function_call"];
    const whole = await client(url).responses.create(asked);
    equal(whole.output.map((item) => item.type), kinds);
    const streamed = await client(url).responses.stream(asked).finalResponse();
    equal(streamed.output.map((item) => item.type), kinds);
    equal(JSON.parse(streamed.output[2].arguments), PLACE);
  },
  async errors(url) {
    await refused(404, () => client(url).chat.completions.create(ask(CHAT, { model: "absent" })));
    await refused(400, () => client(url).chat.completions.create(ask("word ".repeat(9000))));
  },
});
