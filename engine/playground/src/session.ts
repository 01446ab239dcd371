// What this browser keeps: each tab its own conversations and settings, and the last of all for the next visit; never the key.
import type { KeptColumn } from "./column";

export type Session = { compare: boolean; columns: [KeptColumn, KeptColumn]; settings: Record<string, string> };

const NAME = "octavo-session";
const empty = (): KeptColumn => ({ model: "", messages: [] });

export function restore(): Session {
  try {
    const kept = JSON.parse(sessionStorage.getItem(NAME) ?? localStorage.getItem(NAME) ?? "null");
    const columns = [0, 1].map((i) => readColumn(kept?.columns?.[i])) as [KeptColumn, KeptColumn];
    return { compare: kept?.compare === true, columns, settings: readSettings(kept?.settings) };
  } catch {
    return { compare: false, columns: [empty(), empty()], settings: {} };
  }
}

export function keep(session: Session): void {
  const text = JSON.stringify(session);
  for (const storage of ["sessionStorage", "localStorage"] as const) {
    try {
      window[storage].setItem(NAME, text);
    } catch {
      // The browser's storage is full or switched off: the conversation then lasts as long as the page.
    }
  }
}

function readSettings(kept: unknown): Record<string, string> {
  const texts = Object.entries(kept ?? {}).filter(([, value]) => typeof value === "string");
  return Object.fromEntries(texts);
}

function readColumn(kept: unknown): KeptColumn {
  const column = empty();
  const { model, messages } = (kept ?? {}) as Partial<KeptColumn>;
  if (typeof model === "string") column.model = model;
  if (Array.isArray(messages))
    column.messages = messages.filter(
      (each) => typeof each?.content === "string" && (each.role === "user" || each.role === "assistant"),
    );
  return column;
}
