// An answer token by token: the less likely a token was, the darker it is marked; its title lists what else was likely.
import type { Candidate, Token } from "./api";
import { element } from "./element";

const LEVELS = [0.9, 0.5, 0.2]; // probabilities below which a token gets one more level of marking

const percent = ({ token, logprob }: Candidate): string =>
  `${JSON.stringify(token)} ${(100 * Math.exp(logprob)).toFixed(1)} %`;

export function renderTokens(tokens: Token[]): HTMLElement {
  const line = element("p", "", "tokens");
  for (const token of tokens) {
    const level = LEVELS.filter((bound) => Math.exp(token.logprob) < bound).length;
    const span = element("span", token.token, `unlikely-${level}`);
    span.title = [percent(token), ...token.top_logprobs.map((other) => `  ${percent(other)}`)].join("\n");
    line.append(span);
  }
  return line;
}
