// The panel of settings: an empty field is not sent, so that the model's own default holds.
import type { Settings } from "./column";
import { get } from "./element";

type Field = { name: string; label: string; step: string; min: string; max?: string };

const FIELDS: Field[] = [
  { name: "temperature", label: "Temperature", step: "any", min: "0", max: "2" },
  { name: "top_p", label: "Top p", step: "any", min: "0", max: "1" },
  { name: "top_k", label: "Top k", step: "1", min: "1" },
  { name: "min_p", label: "Min p", step: "any", min: "0", max: "1" },
  { name: "frequency_penalty", label: "Frequency penalty", step: "any", min: "-2", max: "2" },
  { name: "presence_penalty", label: "Presence penalty", step: "any", min: "-2", max: "2" },
  { name: "seed", label: "Seed", step: "1", min: "0" },
  { name: "max_tokens", label: "Max tokens", step: "1", min: "1" },
];
const DEFAULTS = { frequency_penalty: 0, presence_penalty: 0, seed: "random", max_tokens: "until it ends" };
const MOST_SEEDS = 2 ** 31;

export function addFields(): void {
  for (const { name, label, ...limits } of FIELDS) {
    const input = Object.assign(document.createElement("input"), { type: "number", name, ...limits });
    const row = document.createElement("label");
    row.append(label, input);
    get("sampling").append(row);
  }
}

/** The fields that are kept with the session: sampling, the system message and the schema. */
const fields = (): (HTMLInputElement | HTMLTextAreaElement)[] => [
  ...get("settings").querySelectorAll<HTMLInputElement | HTMLTextAreaElement>("input[type=number], textarea"),
];

/** What is written in the fields, by their names. */
export const written = (): Record<string, string> =>
  Object.fromEntries(fields().filter(({ value }) => value).map((field) => [field.name || field.id, field.value]));

/** Writes into the fields what `written` returned before. */
export function write(values: Record<string, string>): void {
  for (const field of fields()) field.value = values[field.name || field.id] ?? "";
}

/** Shows in empty fields what holds where nothing is sent: the model's own values, such as its temperature. */
export function showDefaults(ofModel: Record<string, number>): void {
  const values: Record<string, number | string> = { ...DEFAULTS, ...ofModel };
  if (values.top_k === 0) values.top_k = "all";
  for (const input of get("sampling").querySelectorAll("input")) input.placeholder = String(values[input.name] ?? "");
}

/** The settings of a request, or null where one cannot be sent, which the page says beside it. */
export function chosen(compare: boolean): Settings | null {
  const inputs = [...get("sampling").querySelectorAll("input")];
  const wrong = inputs.find((input) => !input.checkValidity());
  if (wrong) {
    get<HTMLDetailsElement>("settings").open = true;
    wrong.reportValidity();
    return null;
  }
  const given = inputs.filter((input) => input.value !== "");
  const fields: Record<string, unknown> = Object.fromEntries(given.map((input) => [input.name, input.valueAsNumber]));
  if (compare) fields.seed ??= Math.floor(Math.random() * MOST_SEEDS); // the same for both columns
  if (get<HTMLInputElement>("logprobs").checked) Object.assign(fields, { logprobs: true, top_logprobs: 5 });
  const schema = readSchema();
  if (schema === null) return null;
  if (schema) fields.response_format = { type: "json_schema", json_schema: { name: "answer", schema, strict: true } };
  return { fields, system: get<HTMLTextAreaElement>("system").value.trim() };
}

/** The schema; undefined where there is none, null where it cannot be read. */
function readSchema(): object | undefined | null {
  const area = get<HTMLTextAreaElement>("schema");
  let problem = "";
  let schema: object | undefined | null;
  try {
    schema = area.value.trim() ? JSON.parse(area.value) : undefined;
    if (schema !== undefined && (typeof schema !== "object" || schema === null || Array.isArray(schema)))
      throw new Error("a JSON schema is an object");
  } catch (error) {
    schema = null;
    problem = `This schema cannot be used: ${(error as Error).message}`;
  }
  area.setAttribute("aria-invalid", String(problem !== ""));
  get("schema-problem").textContent = problem;
  if (problem) get<HTMLDetailsElement>("settings").open = true;
  return schema;
}
