// A conversation with one model: its messages, and at most one answer under way.
import { chat, type ChatRequest, type Message, type Model, type Token } from "./api";
import { element } from "./element";
import { GrowingText, render } from "./markdown";
import { renderTokens } from "./tokens";

export type KeptColumn = { model: string; messages: Message[] };
/** What all columns ask alike: sampling, a schema; and the system message that stands before the conversation. */
export type Settings = { fields: Record<string, unknown>; system: string };

const FRAME_MS = 16;
const NEAR_PX = 32; // from the end of the conversation, to count as at its end

export class Column {
  readonly element = element("section", "", "column");
  messages: Message[];
  request: ChatRequest | null = null;
  raw: string[] = [];
  private running: AbortController | null = null;
  private readonly picker = document.createElement("select");
  private readonly log = element("div", "", "log");
  private readonly timing = element("p", "", "timing");
  private readonly note = element("p", "", "note");
  private wanted: string;

  /** `listAgain` is called where the list of models is about to be looked at. */
  constructor(name: string, kept: KeptColumn, listAgain: () => void) {
    this.messages = kept.messages;
    this.wanted = kept.model;
    this.element.setAttribute("aria-label", `Conversation ${name}`);
    const label = element("label", `Model ${name} `);
    label.append(this.picker);
    this.picker.addEventListener("focus", listAgain);
    this.log.setAttribute("role", "log");
    this.log.setAttribute("aria-label", `Messages ${name}`);
    this.log.tabIndex = 0; // so that the keyboard can scroll it
    this.note.hidden = true;
    this.element.append(label, this.log, this.note, this.timing);
    this.redraw();
  }

  get busy(): boolean {
    return this.running !== null;
  }

  get kept(): KeptColumn {
    return { model: this.picker.value || this.wanted, messages: this.messages };
  }

  /** What the user has said, answered or not. */
  get questions(): string[] {
    return this.messages.filter(({ role }) => role === "user").map(({ content }) => content);
  }

  /** The last question, answered or not; empty where there is none. */
  get lastQuestion(): string {
    return this.questions.at(-1) ?? "";
  }

  /** Whether the last question has no answer, and none is under way. */
  get unanswered(): boolean {
    return !this.busy && this.messages.at(-1)?.role === "user";
  }

  /** The text of the last answer; empty where the last message is the user's. */
  get lastAnswer(): string {
    const last = this.messages.at(-1);
    return last?.role === "assistant" ? last.content : "";
  }

  /** Offers these models. Returns the chosen one if it is gone: then the first is chosen. */
  listModels(models: Model[]): string {
    const chosen = this.picker.value;
    const options = models.map(({ id, parent }) => new Option(parent ? `${id} (adapter of ${parent})` : id, id));
    const listed = [...this.picker.options].map(({ text }) => text).join("\n");
    if (listed === options.map(({ text }) => text).join("\n")) return ""; // an open list is left alone
    this.picker.replaceChildren(...options);
    const kept = models.find(({ id }) => id === (chosen || this.wanted));
    if (kept) this.picker.value = kept.id;
    return kept ? "" : chosen;
  }

  /** Whether the same was asked here as there. */
  asksAs(other: Column): boolean {
    return JSON.stringify(this.questions) === JSON.stringify(other.questions);
  }

  /** Goes on with the other conversation, unless the same was asked here: else the next answers could not be compared. */
  follow(other: Column): void {
    if (this.asksAs(other)) return;
    this.messages = structuredClone(other.messages);
    this.timing.textContent = "";
    this.redraw();
    this.scrollToEnd();
  }

  /** Shows a sentence below the conversation, or none. */
  remark(text: string): void {
    this.note.textContent = text;
    this.note.hidden = text === "";
  }

  say(content: string): void {
    const message: Message = { role: "user", content };
    this.messages.push(message);
    this.card(message);
  }

  /** Asks for an answer to the conversation so far; rejects with the engine's refusal. */
  async answer(settings: Settings): Promise<void> {
    const system: Message[] = settings.system ? [{ role: "system", content: settings.system }] : [];
    const conversation = this.messages; // "New chat" may begin another one before this answer has ended
    const messages = [...system, ...conversation];
    this.request = structuredClone({ ...settings.fields, model: this.picker.value, messages });
    this.raw = [];
    this.timing.textContent = "";
    const reply: Message = { role: "assistant", content: "" };
    const card = this.card(reply);
    this.scrollToEnd();
    const tokens: Token[] = [];
    let reasoning = ""; // shown before the answer, and no part of the conversation
    let timer = 0; // the answer is drawn at most once a frame, and a long one less often: at most a quarter of the time
    let pause = 0;
    const thoughts = element("details"); // the same element in each frame, so that it stays open where it was opened
    thoughts.append(element("summary", "Reasoning"));
    const [shownThoughts, shownAnswer] = [new GrowingText(thoughts), new GrowingText(card)];
    const draw = (): void => {
      const begun = performance.now();
      const follows = this.atEnd();
      if (reasoning) {
        if (!thoughts.parentNode) card.prepend(thoughts);
        shownThoughts.draw(reasoning);
      }
      if (tokens.length) card.replaceChildren(...(reasoning ? [thoughts] : []), ...renderTokens(tokens));
      else shownAnswer.draw(reply.content);
      if (follows) this.scrollToEnd();
      timer = 0;
      pause = Math.max(FRAME_MS, 3 * (performance.now() - begun));
    };
    const running = (this.running = new AbortController());
    try {
      const timing = await chat(this.request, running.signal, {
        text: (text, thought, more) => {
          reply.content += text;
          reasoning += thought;
          tokens.push(...more);
          timer ||= window.setTimeout(draw, pause);
        },
        event: (event) => this.raw.push(event),
      });
      const cut = timing.finish === "length" ? ", cut off at the maximum number of tokens" : "";
      const unit = timing.tokens === 1 ? "token" : "tokens";
      this.timing.textContent =
        `${timing.tokens} ${unit}, the first after ${timing.firstTokenMs.toFixed(0)} ms, ` +
        `then ${timing.tokensPerSecond.toFixed(1)} tokens/s${cut}`;
    } catch (error) {
      if (!running.signal.aborted) throw error;
      this.timing.textContent = "Stopped.";
    } finally {
      this.running = null;
      clearTimeout(timer);
      draw();
      shownThoughts.finish(reasoning);
      if (!tokens.length) shownAnswer.finish(reply.content);
      if (reply.content) conversation.push(reply);
      else if (!reasoning) card.remove();
    }
  }

  /** Gives the focus to the messages. */
  focus(): void {
    this.log.focus({ preventScroll: true });
  }

  stop(): void {
    this.running?.abort();
  }

  /** Takes the last question back, where there is no answer to it. */
  takeBackQuestion(): void {
    if (this.messages.at(-1)?.role === "user") this.messages.pop();
    this.redraw();
  }

  /** Takes the last answer back, so that the question can be asked again. */
  takeBack(): void {
    if (this.messages.at(-1)?.role === "assistant") this.messages.pop();
    this.redraw();
  }

  clear(): void {
    this.stop();
    this.messages = [];
    this.timing.textContent = "";
    this.redraw();
  }

  /** Whether the end of the conversation is in sight: a reader who scrolled up is left there while an answer comes. */
  private atEnd(): boolean {
    return this.log.scrollHeight - this.log.scrollTop - this.log.clientHeight < NEAR_PX;
  }

  scrollToEnd(): void {
    this.log.scrollTop = this.log.scrollHeight;
  }

  private redraw(): void {
    this.log.replaceChildren();
    for (const message of this.messages) this.card(message);
  }

  private card(message: Message): HTMLElement {
    const card = element("article", "", message.role);
    card.dir = "auto"; // by the first letter: Arabic and Hebrew begin at the right
    card.setAttribute("aria-label", message.role === "user" ? "You" : "Model");
    card.append(...render(message.content));
    this.log.append(card);
    return card;
  }
}
