// A model's answer as paragraphs, headings, lists and code. It is built of text nodes alone: no HTML of the model is ever
// parsed, links are not made, and images are not loaded, so that an answer can neither run a script nor call elsewhere.
import { element } from "./element";

export function render(text: string): DocumentFragment {
  const page = document.createDocumentFragment();
  // Every second part stands between two fences; the last one may still be open while an answer streams.
  text.split(/^```/m).forEach((part, i) => page.append(...(i % 2 ? [code(part)] : prose(part))));
  return page;
}

function code(part: string): HTMLElement {
  const block = element("pre");
  block.tabIndex = 0;
  block.append(element("code", part.slice(part.indexOf("\n") + 1)));
  return block;
}

function prose(part: string): HTMLElement[] {
  const blocks = part.split(/\n\s*\n/).filter((block) => block.trim());
  return blocks.map((block) => {
    const heading = /^#{1,6}\s+(.*)$/.exec(block.trim());
    if (heading) return inline("h3", heading[1] ?? "");
    const lines = block.trim().split("\n");
    const item = /^\s*(?:[-*]|\d+\.)\s+/;
    if (!lines.every((line) => item.test(line))) return inline("p", block.trim());
    const list = element(/^\s*\d/.test(lines[0] ?? "") ? "ol" : "ul");
    list.append(...lines.map((line) => inline("li", line.replace(item, ""))));
    return list;
  });
}

function inline(tag: string, text: string): HTMLElement {
  const parent = element(tag);
  for (const part of text.split(/(`[^`]+`|\*\*[^*]+\*\*)/)) {
    if (part.length > 2 && part.startsWith("`")) parent.append(element("code", part.slice(1, -1)));
    else if (part.length > 4 && part.startsWith("**")) parent.append(element("strong", part.slice(2, -2)));
    else parent.append(part);
  }
  return parent;
}
