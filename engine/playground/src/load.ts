// The live strip: the engine's state from its probe, and its load from /metrics. Both are open to everyone who reaches it.

type Sample = { tokens: number; queried: number; hits: number; at: number };
let before: Sample | null = null;

/** One line about the engine; empty where its metrics are on another port. */
export async function load(): Promise<string> {
  const state = await problem();
  const answer = await fetch("/metrics");
  if (!answer.ok) return state.join("");
  const lines = (await answer.text()).split("\n").filter((line) => line.startsWith("octavo_"));
  const now: Sample = {
    tokens: sum(lines, "octavo_generation_tokens_total"),
    queried: sum(lines, "octavo_prefix_cache_queried_tokens_total"),
    hits: sum(lines, "octavo_prefix_cache_hit_tokens_total"),
    at: performance.now(),
  };
  const seconds = before ? (now.at - before.at) / 1000 : 0;
  const rate = before && seconds ? Math.max(0, (now.tokens - before.tokens) / seconds) : 0;
  before = now;
  return [
    ...state,
    `${sum(lines, "octavo_requests_running")} running`,
    `${sum(lines, "octavo_requests_waiting")} waiting`,
    `KV cache ${(100 * sum(lines, "octavo_kv_cache_usage_ratio")).toFixed(0)} %`,
    `${rate.toFixed(1)} tokens/s`,
    `prefix hits ${now.queried ? ((100 * now.hits) / now.queried).toFixed(0) : 0} %`,
    `${sum(lines.filter(isLoad), "octavo_requests_rejected_total")} rejected`,
  ].join(" · ");
}

/** Why the engine takes no requests now, such as "loading: weights 43 %"; empty while it takes them. */
async function problem(): Promise<string[]> {
  const answer = await fetch("/health/ready");
  if (answer.ok) return [];
  const { status, phase, detail, progress }: Record<string, string | number> = await answer.json();
  return [status === "loading" ? `loading: ${detail || phase} ${(100 * Number(progress)).toFixed(0)} %` : `${status}`];
}

/** Whether a series counts rejections because of load: not wrong requests, nor this page's while the model loads. */
const isLoad = (line: string): boolean => !/reason="(invalid|unauthorized|loading)"/.test(line);

function sum(lines: string[], name: string): number {
  const series = lines.filter((line) => line.startsWith(`${name}{`) || line.startsWith(`${name} `));
  return series.reduce((total, line) => total + Number(line.slice(line.lastIndexOf(" "))), 0);
}
