// Vercel's AI SDK over its providers for compatible servers, for OpenAI (Responses) and for Anthropic.

import { CALL, CHAT, KEY, MODEL, PLACE, SCHEMA, equal, load, refused, run } from "./kit.mjs";

const { generateObject, generateText, jsonSchema, stepCountIs, streamText, tool } = await load("ai");
const { createOpenAICompatible } = await load("@ai-sdk/openai-compatible");
const { createOpenAI } = await load("@ai-sdk/openai");
const { createAnthropic } = await load("@ai-sdk/anthropic");

const options = (url) => ({ baseURL: `${url}/v1`, apiKey: KEY });
const chatModel = (url, name = MODEL) =>
  createOpenAICompatible({ ...options(url), name: "pdd", supportsStructuredOutputs: true })(name);
const responsesModel = (url) => createOpenAI(options(url)).responses(MODEL);
const messagesModel = (url) => createAnthropic(options(url))(MODEL);
// By default its Responses provider names earlier items by id, for which a server has to store them.
const quiet = { maxRetries: 0, providerOptions: { openai: { store: false } } };

async function checkLoop(model, call) {
  const used = [];
  const get = tool({
    description: "Look a place up.",
    inputSchema: jsonSchema(SCHEMA),
    execute: async (place) => {
      used.push(place);
      return "Sunny.";
    },
  });
  const result = await call({ ...quiet, model, prompt: CALL, tools: { get }, stopWhen: stepCountIs(3) });
  equal([await result.text, used], ["Sure.", [PLACE]]);
}

const streamed = async (asked) => {
  const result = streamText({ ...asked, onError: () => {} });
  for await (const part of result.fullStream) if (part.type === "error") throw part.error;
  return result;
};

async function checkText(model) {
  equal((await generateText({ ...quiet, model, prompt: CHAT })).text, "Sure.");
  equal(await (await streamed({ ...quiet, model, prompt: CHAT })).text, "Sure.");
}

await run(["ai", "@ai-sdk/openai-compatible", "@ai-sdk/openai", "@ai-sdk/anthropic"], {
  async chat(url) {
    equal((await generateText({ ...quiet, model: chatModel(url), prompt: CHAT })).text, "Sure.");
  },
  async stream(url) {
    equal(await (await streamed({ ...quiet, model: chatModel(url), prompt: CHAT })).text, "Sure.");
  },
  tools: (url) => checkLoop(chatModel(url), generateText),
  tools_stream: (url) => checkLoop(chatModel(url), streamed),
  async reasoning(url) {
    for (const model of [chatModel(url), messagesModel(url)]) {
      equal((await generateText({ ...quiet, model, prompt: CHAT })).reasoningText, "so");
      equal(await (await streamed({ ...quiet, model, prompt: CHAT })).reasoningText, "so");
    }
  },
  async structured_output(url) {
    const schema = jsonSchema(SCHEMA);
    equal((await generateObject({ ...quiet, model: chatModel(url), prompt: CHAT, schema })).object, PLACE);
  },
  async responses(url) {
    await checkText(responsesModel(url));
    await checkLoop(responsesModel(url), generateText);
    await checkLoop(responsesModel(url), streamed);
  },
  async messages(url) {
    await checkText(messagesModel(url));
    await checkLoop(messagesModel(url), generateText);
    await checkLoop(messagesModel(url), streamed);
  },
  async errors(url) {
    await refused(404, () => generateText({ ...quiet, model: chatModel(url, "absent"), prompt: CHAT }));
    await refused(400, () => generateText({ ...quiet, model: chatModel(url), prompt: "word ".repeat(9000) }));
  },
});
