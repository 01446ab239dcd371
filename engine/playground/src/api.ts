// The engine's API as this page uses it: the same routes that any other client has.

export type Message = { role: "system" | "user" | "assistant"; content: string };
export type ChatRequest = Record<string, unknown> & { model: string; messages: Message[] };
export type Model = { id: string; parent?: string | null; default_sampling_params?: Record<string, number> | null };
export type Timing = { firstTokenMs: number; tokensPerSecond: number; tokens: number; finish: string };
export type Candidate = { token: string; logprob: number };
/** A token of an answer, and what else could have stood there. */
export type Token = Candidate & { top_logprobs: Candidate[] };
export type Listener = { text: (text: string, reasoning: string, tokens: Token[]) => void; event: (event: string) => void };

/** A refusal of the engine: what it says, its HTTP status, and the seconds of Retry-After where there are any. */
export class Refusal extends Error {
  constructor(message: string, readonly status: number, readonly retryAfter: string | null) {
    super(message);
  }
}

const KEY = "octavo-key"; // in sessionStorage: of this tab alone, and gone with it
let key = ""; // where the browser's storage is switched off, the key lasts as long as the page

export function savedKey(): string {
  try {
    return sessionStorage.getItem(KEY) ?? key;
  } catch {
    return key;
  }
}

export function saveKey(given: string): void {
  key = given;
  try {
    sessionStorage.setItem(KEY, given);
  } catch {
    // It is switched off or full.
  }
}

function headers(): Record<string, string> {
  const saved = savedKey();
  return { "Content-Type": "application/json", ...(saved && { Authorization: `Bearer ${saved}` }) };
}

async function refusal(answer: Response): Promise<Refusal> {
  const text = await answer.text();
  let message = text || `the engine answered ${answer.status}`;
  try {
    message = JSON.parse(text).error.message;
  } catch {
    // A proxy in between may answer with something that is not the engine's JSON.
  }
  return new Refusal(message, answer.status, answer.headers.get("Retry-After"));
}

/** The model and its adapters. */
export async function models(): Promise<Model[]> {
  const answer = await fetch("/v1/models", { headers: headers() });
  if (!answer.ok) throw await refusal(answer);
  const list: { data: Model[] } = await answer.json();
  return list.data;
}

/** Streams one answer; `listener` gets each piece of text and each event as it came. */
export async function chat(body: ChatRequest, signal: AbortSignal, listener: Listener): Promise<Timing> {
  const begun = performance.now();
  const request = { ...body, stream: true, stream_options: { include_usage: true } };
  const answer = await fetch("/v1/chat/completions", {
    method: "POST",
    headers: headers(),
    body: JSON.stringify(request),
    signal,
  });
  if (!answer.ok || answer.body === null) throw await refusal(answer);
  let first = 0;
  let tokens = 0;
  let finish = "";
  let ended = false;
  for await (const event of events(answer.body)) {
    listener.event(event);
    if (event === "[DONE]") {
      ended = true;
      break;
    }
    const part = JSON.parse(event);
    if (part.error) throw new Refusal(part.error.message, 500, null);
    tokens = part.usage?.completion_tokens ?? tokens;
    const choice = part.choices?.[0];
    finish = choice?.finish_reason ?? finish;
    const text: string = choice?.delta?.content ?? "";
    const reasoning: string = choice?.delta?.reasoning_content ?? "";
    const chosen: Token[] = choice?.logprobs?.content ?? []; // also of tokens whose text is held back until a later event
    if (text || reasoning) first ||= performance.now();
    if (text || reasoning || chosen.length) listener.text(text, reasoning, chosen);
  }
  if (!ended) throw new Error("the connection ended before the answer did");
  const seconds = (performance.now() - (first || begun)) / 1000;
  const tokensPerSecond = tokens > 1 && seconds > 0 ? (tokens - 1) / seconds : 0;
  return { firstTokenMs: (first || performance.now()) - begun, tokensPerSecond, tokens, finish };
}

/** The data of each server-sent event. */
async function* events(body: ReadableStream<Uint8Array>): AsyncGenerator<string> {
  const reader = body.pipeThrough(new TextDecoderStream() as ReadableWritablePair<string, Uint8Array>).getReader();
  let held = "";
  for (;;) {
    const { done, value } = await reader.read();
    if (done) return;
    const parts = (held + value).split("\n\n");
    held = parts.pop() ?? "";
    for (const part of parts) {
      const data = part.split("\n").filter((line) => line.startsWith("data:"));
      if (data.length) yield data.map((line) => line.slice(5).trim()).join("\n");
    }
  }
}
