// The live strip: the engine's state from its probe, and its load from /metrics. Both are open to everyone who reaches it.

type Sample = { tokens: number; queried: number; hits: number; at: number };
let before: Sample | null = null;

/** One line about the engine; empty where its metrics are on another port. */
export async function load(): Promise<string> {
  const state = await problem();
  const answer = await fetch("/metrics");
  if (!answer.ok) return state.join("");
  const text = await answer.text();
  const now: Sample = {
    tokens: sum(text, "octavo_generation_tokens_total"),
    queried: sum(text, "octavo_prefix_cache_queried_tokens_total"),
    hits: sum(text, "octavo_prefix_cache_hit_tokens_total"),
    at: performance.now(),
  };
  const seconds = before ? (now.at - before.at) / 1000 : 0;
  const rate = before && seconds ? Math.max(0, (now.tokens - before.tokens) / seconds) : 0;
  before = now;
  return [
    ...state,
    `${sum(text, "octavo_requests_running")} running`,
    `${sum(text, "octavo_requests_waiting")} waiting`,
    `KV cache ${(100 * sum(text, "octavo_kv_cache_usage_ratio")).toFixed(0)} %`,
    `${rate.toFixed(1)} tokens/s`,
    `prefix hits ${now.queried ? ((100 * now.hits) / now.queried).toFixed(0) : 0} %`,
    `${sum(text, "octavo_requests_rejected_total")} refused`,
  ].join(" · ");
}

/** Why the engine takes no requests now, such as "loading: weights 43 %"; empty while it takes them. */
async function problem(): Promise<string[]> {
  const answer = await fetch("/health/ready");
  if (answer.ok) return [];
  const { status, phase, detail, progress }: Record<string, string | number> = await answer.json();
  return [status === "loading" ? `loading: ${detail || phase} ${(100 * Number(progress)).toFixed(0)} %` : `${status}`];
}

function sum(text: string, name: string): number {
  const lines = text.split("\n").filter((line) => line.startsWith(`${name}{`) || line.startsWith(`${name} `));
  return lines.reduce((total, line) => total + Number(line.slice(line.lastIndexOf(" "))), 0);
}
