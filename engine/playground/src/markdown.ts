// A model's answer as elements. marked reads the Markdown; what it finds is built of text nodes alone: HTML is shown as it
// is written, and pictures become links, so that an answer can neither run a script nor load anything from elsewhere.
import { Lexer, type Token, type Tokens } from "marked";
import { element } from "./element";

// In characters: what is longer stays as it is written, since formatting it would hold the tab up. marked's time grows
// with the square of a paragraph's length where marks such as _ and * open and close nothing.
const MOST_FORMATTED = 100_000;
const LONGEST_PARAGRAPH = 4_000;
// More text may still change the last block of a text, or join it with the one before.
const OPEN_BLOCKS = 2;

class BoundedLexer extends Lexer {
  override inlineTokens(text: string, tokens: Token[] = []): Token[] {
    if (text.length <= LONGEST_PARAGRAPH) return super.inlineTokens(text, tokens);
    tokens.push({ type: "text", raw: text, text, escaped: false });
    return tokens;
  }
}

/** The text as elements; as plain text where it is very long, or nested more deeply than can be formatted. */
export const render = (text: string): Node[] => blocks(text).flatMap(nodes);

/** A text that grows, as the last children of `parent`. The elements of blocks that more text cannot change are kept. */
export class GrowingText {
  private settled = 0; // characters whose elements are kept
  private kept: Node[] = [];
  private open: Node[] = [];

  constructor(private readonly parent: HTMLElement) {}

  draw(given: string): void {
    const rest = given.replace(/\r\n?/g, "\n").slice(this.settled);
    const tokens = blocks(rest);
    const first = tokens.flatMap(({ type }, index) => (type === "space" ? [] : [index])).at(-OPEN_BLOCKS) ?? 0;
    const raw = tokens.slice(0, first).map((token) => token.raw).join("");
    const closed = rest.startsWith(raw) ? first : 0;
    this.remove(this.open);
    const made = tokens.slice(0, closed).flatMap(nodes);
    if (closed) this.settled += raw.length;
    this.kept.push(...made);
    this.open = tokens.slice(closed).flatMap(nodes);
    this.parent.append(...made, ...this.open);
  }

  /** Draws the whole text anew if its end may have changed its beginning, as the definition of a link does. */
  finish(text: string): void {
    if (text.length <= MOST_FORMATTED && !/^ {0,3}[<[]/m.test(text)) return;
    this.remove([...this.kept, ...this.open]);
    this.parent.append(...render(text));
  }

  private remove(those: Node[]): void {
    for (const node of those) node.parentNode?.removeChild(node);
  }
}

function blocks(text: string): Token[] {
  if (text.length <= MOST_FORMATTED) {
    try {
      return new BoundedLexer().lex(text);
    } catch (error) {
      if (!(error instanceof RangeError)) throw error; // of the stack
    }
  }
  return [{ type: "paragraph", raw: text, text, tokens: [{ type: "text", raw: text, text, escaped: false }] }];
}

function nodes(token: Token): Node[] {
  switch (token.type) {
    case "space":
    case "def":
      return [];
    case "heading":
      return [filled("h2", token as Tokens.Heading)];
    case "paragraph":
      return [filled("p", token as Tokens.Paragraph)];
    case "code":
      return [codeBlock(token as Tokens.Code)];
    case "list":
      return [list(token as Tokens.List)];
    case "table":
      return [table(token as Tokens.Table)];
    case "hr":
    case "br":
      return [element(token.type)];
    case "blockquote":
    case "strong":
    case "em":
    case "del":
      return [filled(token.type, token as Tokens.Strong)];
    case "codespan":
      return [element("code", token.text)];
    case "link":
    case "image":
      return [link(token as Tokens.Link | Tokens.Image)];
    case "text":
    case "escape":
      return inner(token as Tokens.Text);
    default: // HTML, and what a later marked may know
      return [document.createTextNode(token.raw)];
  }
}

type Parent = { tokens?: Token[]; text?: string };

const inner = (token: Parent): Node[] => token.tokens?.flatMap(nodes) ?? [document.createTextNode(token.text ?? "")];

const filled = (tag: string, token: Parent): HTMLElement => withChildren(tag, inner(token));

function withChildren(tag: string, children: Node[]): HTMLElement {
  const made = element(tag);
  made.append(...children);
  return made;
}

function codeBlock(token: Tokens.Code): HTMLElement {
  const block = withChildren("pre", [element("code", token.text)]);
  block.tabIndex = 0; // so that the keyboard can scroll it
  return block;
}

function list(token: Tokens.List): HTMLElement {
  const items = token.items.map((item) => {
    const box = item.task ? [document.createTextNode(item.checked ? "☑ " : "☐ ")] : [];
    return withChildren("li", [...box, ...inner(item)]);
  });
  const made = withChildren(token.ordered ? "ol" : "ul", items);
  if (token.ordered && token.start) made.setAttribute("start", String(token.start));
  return made;
}

function table(token: Tokens.Table): HTMLElement {
  const row = (tag: string, cells: Tokens.TableCell[]): HTMLElement =>
    withChildren("tr", cells.map((cell) => filled(tag, cell)));
  const head = withChildren("thead", [row("th", token.header)]);
  const body = withChildren("tbody", token.rows.map((cells) => row("td", cells)));
  const scroller = element("div", "", "table");
  scroller.tabIndex = 0;
  scroller.append(withChildren("table", [head, body]));
  return scroller;
}

function link(token: Tokens.Link | Tokens.Image): Node {
  const text = token.text || token.href;
  if (!/^https?:\/\//i.test(token.href)) return document.createTextNode(text);
  const made = element("a", text) as HTMLAnchorElement;
  return Object.assign(made, { href: token.href, target: "_blank", rel: "noopener noreferrer" });
}
