// An answer token by token: the less likely a token was, the darker it is marked. The mouse, a finger or the arrow keys
// choose one, and the line below says what else could have come.
import type { Candidate, Token } from "./api";
import { element } from "./element";

const LEVELS = [0.9, 0.5, 0.2]; // probabilities below which a token gets one more level of marking

const percent = ({ token, logprob }: Candidate): string =>
  `${JSON.stringify(token)} ${(100 * Math.exp(logprob)).toFixed(1)} %`;

export function renderTokens(tokens: Token[]): Node[] {
  const spans = tokens.map((token) => {
    const level = LEVELS.filter((bound) => Math.exp(token.logprob) < bound).length;
    return element("span", token.token, `unlikely-${level}`);
  });
  const line = element("p", "", "tokens");
  line.append(...spans);
  line.tabIndex = 0;
  line.setAttribute("role", "group");
  line.setAttribute("aria-label", "Tokens of the answer; the arrow keys choose one");
  const said = element("p", "Point at a token to see the other likely ones.", "alternatives");
  said.setAttribute("role", "status");
  let chosen = -1;
  const choose = (index: number): void => {
    const token = tokens[index];
    if (!token) return;
    spans[chosen]?.classList.remove("chosen");
    chosen = index;
    spans[chosen]?.classList.add("chosen");
    const others = token.top_logprobs.filter((other) => other.token !== token.token);
    said.textContent = [token, ...others].map(percent).join(" · ");
  };
  line.addEventListener("pointerover", ({ target }) => choose(spans.indexOf(target as HTMLElement)));
  line.addEventListener("keydown", (event) => {
    const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    if (step === undefined) return;
    event.preventDefault();
    choose(Math.min(tokens.length - 1, Math.max(0, chosen + step)));
  });
  return [line, said];
}
