// Small helpers for the document. Text is always set as text, never as HTML.

export const get = <T extends HTMLElement>(id: string): T => document.getElementById(id) as T;

export function element(tag: string, text = "", className = ""): HTMLElement {
  const made = document.createElement(tag);
  made.textContent = text;
  if (className) made.className = className;
  return made;
}
