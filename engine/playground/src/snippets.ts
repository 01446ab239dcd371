// The last request as code. The key is never in it: each snippet reads it from the environment.
import type { ChatRequest } from "./api";

const shellQuoted = (text: string): string => `'${text.replaceAll("'", `'\\''`)}'`;

export const asCurl = (body: ChatRequest, url: string): string =>
  `curl ${url}/v1/chat/completions -H "Authorization: Bearer $OCTAVO_API_KEY" \\\n` +
  `  -H 'Content-Type: application/json' -d ${shellQuoted(JSON.stringify(body))}\n`;

// JSON in a string literal is a literal of both languages; json.loads spares a translation of true, false and null.
export const asPython = (body: ChatRequest, url: string): string =>
  `import json, os\nfrom openai import OpenAI\n\n` +
  `client = OpenAI(base_url="${url}/v1", api_key=os.environ.get("OCTAVO_API_KEY", "none"))\n` +
  `body = json.loads(${JSON.stringify(JSON.stringify(body))})\n` +
  `answer = client.chat.completions.create(\n` +
  `    model=body.pop("model"), messages=body.pop("messages"), extra_body=body)\n` +
  `print(answer.choices[0].message.content)\n`;

export const asTypeScript = (body: ChatRequest, url: string): string =>
  `import OpenAI from "openai";\n\n` +
  `const client = new OpenAI({ baseURL: "${url}/v1", apiKey: process.env.OCTAVO_API_KEY ?? "none" });\n` +
  `const answer = await client.chat.completions.create(${JSON.stringify(body, null, 2)});\n` +
  `console.log(answer.choices[0].message.content);\n`;
