// What the clients' programs for node share; see kit.py, which says how they are run.

import { createRequire } from "node:module";
import { isDeepStrictEqual } from "node:util";
import { readFileSync } from "node:fs";
import { join, resolve } from "node:path";
import { pathToFileURL } from "node:url";

export const MODEL = "demo";
export const KEY = "sk-any";
export const CHAT = "Hello.";
export const CALL = "Call the tool for 東京.";
export const PLACE = { city: "東京 {中}", days: 3 };
export const SCHEMA = {
  type: "object",
  properties: { city: { type: "string" }, days: { type: "integer" } },
  required: ["city", "days"],
  additionalProperties: false,
};
export const FUNCTION = { name: "get", description: "Look a place up.", parameters: SCHEMA };

// The packages are in a folder that the command names, not beside this file.
const folder = resolve(process.argv[2]);
const found = createRequire(join(folder, "package.json"));
export const load = (name) => import(pathToFileURL(found.resolve(name)));

export function equal(one, other) {
  if (!isDeepStrictEqual(one, other)) {
    throw new Error(`${JSON.stringify(one)} in place of ${JSON.stringify(other)}`);
  }
}

export async function refused(status, ask) {
  try {
    await ask();
  } catch (error) {
    equal(error.status ?? error.statusCode, status);
    return;
  }
  throw new Error(`no error ${status}`);
}

async function tryOne(feature, urls) {
  for (const url of urls) {
    try {
      await feature(url);
    } catch (error) {
      return `${url}: ${error.name}: ${error.message}`.slice(0, 400);
    }
  }
  return "ok";
}

export async function run(packages, features) {
  const urls = JSON.parse(readFileSync(0, "utf8"));
  const told = {};
  for (const [name, feature] of Object.entries(features)) told[name] = await tryOne(feature, urls);
  const version = packages.map((name) => {
    const described = JSON.parse(readFileSync(join(folder, "node_modules", name, "package.json"), "utf8"));
    return `${name} ${described.version}`;
  });
  console.log(JSON.stringify({ version: version.join(", "), features: told }));
}
