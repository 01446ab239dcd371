// The page: one or two columns that get the same message, and what is common to both.
import { type ChatRequest, type Model, models, Refusal, savedKey, saveKey } from "./api";
import { Column } from "./column";
import { difference } from "./difference";
import { element, get } from "./element";
import { load } from "./load";
import { keep, restore } from "./session";
import { addFields, chosen, showDefaults, write, written } from "./settings";
import { asCurl, asPython, asTypeScript } from "./snippets";

const RETRY_MS = 2000;
const LOAD_MS = 5000; // for each open page the engine renders its metrics as often as this
const WILL_FOLLOW = "With your next message or Regenerate, this column continues A's conversation.";
const prompt = get<HTMLTextAreaElement>("prompt");
const compare = get<HTMLInputElement>("compare");
const buttons = {
  send: get<HTMLButtonElement>("send"),
  stop: get<HTMLButtonElement>("stop"),
  again: get<HTMLButtonElement>("again"),
};
const session = restore();
let listing = 0; // the newest call of listModels
let reached = true; // whether the engine answered when it was last asked for its load
const both = [new Column("A", session.columns[0], listAgain), new Column("B", session.columns[1], listAgain)] as const;

const shown = (): Column[] => (compare.checked ? [...both] : [both[0]]);
/** All columns that are shown, ready to be asked the same. */
const asked = (): Column[] => {
  if (compare.checked) both[1].follow(both[0]);
  return shown();
};
const busy = (): boolean => shown().some((column) => column.busy);
const unanswered = (): boolean => shown().some((column) => column.unanswered);

/** Whether an input method takes this key, to compose a word. Safari says so of the Enter that ends it by code 229 alone. */
const composes = (event: KeyboardEvent): boolean => event.isComposing || event.keyCode === 229;

function update(): void {
  const focused = document.activeElement;
  keep({ compare: compare.checked, columns: [both[0].kept, both[1].kept], settings: written() });
  both[1].element.hidden = !compare.checked;
  both[1].remark(both[1].asksAs(both[0]) ? "" : WILL_FOLLOW);
  compare.disabled = busy();
  buttons.send.disabled = busy();
  buttons.stop.disabled = !busy();
  buttons.again.disabled = busy() || shown().every((column) => column.messages.length === 0);
  // A button loses the focus when it is disabled, and the Tab key would begin again at the top of the page.
  if (focused instanceof HTMLButtonElement && focused.disabled) both[0].focus();
  const [left, right] = both.map((column) => column.lastAnswer);
  const comparable = left && right && both[0].lastQuestion === both[1].lastQuestion;
  get("difference").hidden = !compare.checked || busy() || !comparable;
  if (!get("difference").hidden) showDifference(left!, right!);
}

function showDifference(left: string, right: string): void {
  const same = left === right; // long answers are compared in their first words alone, and may differ after these
  const heading = same ? "The two answers are the same." : "Struck through: only in A. Underlined: only in B.";
  get("difference").replaceChildren(element("h2", heading), difference(left, right));
}

function say(text: string): void {
  get("notice").textContent = text;
}

function askForKey(wanted: boolean): void {
  const form = get("key-form");
  if (!wanted && form.contains(document.activeElement)) prompt.focus();
  form.hidden = !wanted;
}

function explain(error: unknown): void {
  if (!(error instanceof Refusal)) return say(`The engine cannot be reached: ${(error as Error).message}`);
  askForKey(error.status === 401); // with any other status the key was accepted
  if (error.status === 401 && !savedKey()) return say("This engine needs an API key: enter yours above.");
  if (!error.retryAfter) return say(error.message);
  const again = unanswered() ? ": Regenerate asks again." : ".";
  say(`${error.message.replace(/; try again in \d+ s$/, "")}. Try again in ${error.retryAfter} s${again}`);
}

function explained(error: unknown): unknown {
  explain(error);
  return error;
}

/** Whether the request itself is wrong, such as one that is too long: it would be refused again. */
const willNeverBeAnswered = (error: unknown): boolean =>
  error instanceof Refusal && error.status >= 400 && error.status < 500 && error.status !== 429;

/** The question stands in the box again, to be changed, and no longer in the conversation, which can go on. */
function giveBack(): void {
  const last = both[0].messages.at(-1);
  if (last?.role !== "user") return;
  for (const column of shown()) column.takeBackQuestion();
  prompt.value ||= last.content;
  update();
}

async function answer(): Promise<void> {
  const settings = chosen(compare.checked);
  if (settings === null) return update();
  say("");
  const answers = shown().map((column) => column.answer(settings).catch(explained).finally(update));
  update();
  const sent = (get("raw").textContent = requestsAndResponses());
  const problems = await Promise.all(answers);
  if (problems.every(willNeverBeAnswered)) giveBack();
  // What was copied while the answer came, or the emptiness of a new chat, stays.
  if (get("raw").textContent === sent) get("raw").textContent = requestsAndResponses();
}

function requestsAndResponses(): string {
  const parts = shown().flatMap(({ request, raw }) => [JSON.stringify(request, null, 2), raw.join("\n")]);
  return parts.join("\n\n");
}

async function refreshLoad(): Promise<void> {
  if (document.hidden) return;
  const text = await load().catch(() => null);
  showLoad(text ?? `the engine does not answer; it is asked again every ${LOAD_MS / 1000} s`);
  const returned = text !== null && !reached;
  reached = text !== null;
  if (returned) void listModels("The engine answers again."); // perhaps it was restarted with another model
}

/** Lists the models, again and again until the engine has them; then shows `news`. */
async function listModels(news = ""): Promise<void> {
  const call = ++listing;
  try {
    const there = await models();
    if (call !== listing) return; // a newer call has asked since, perhaps with another key
    const gone = replaced(there);
    showDefaults(there[0]?.default_sampling_params ?? {});
    askForKey(false);
    const left = unanswered() ? "Your last question has no answer yet: Regenerate asks it again." : "";
    say([news, gone, left].filter(Boolean).join(" "));
  } catch (error) {
    if (call !== listing) return;
    explain(error);
    const wrongKey = error instanceof Refusal && error.status === 401;
    if (!wrongKey) setTimeout(() => void listModels(news), RETRY_MS); // it is loading, or it restarts
  }
}

/** Lists these models in both columns. Returns a notice if a model that was selected is no longer there, else "". */
function replaced(there: Model[]): string {
  const gone = new Set(both.map((column) => column.listModels(there)).filter(Boolean));
  return gone.size ? `No longer loaded: ${[...gone].join(", ")}. ${there[0]?.id} is selected instead.` : "";
}

/** Adapters come and go while the page is open. An engine that does not answer now is reported elsewhere. */
async function listAgain(): Promise<void> {
  const there = await models().catch(() => null);
  const gone = there ? replaced(there) : "";
  if (gone) say(gone);
}

function copy(write: (body: ChatRequest, url: string) => string): void {
  const { request } = both[0];
  if (request === null) return say("Send a message first: this copies the last request.");
  const text = write(request, location.origin);
  get("raw").textContent = text;
  // Without HTTPS a browser may offer no clipboard; the text is shown below in any case.
  const copied = navigator.clipboard?.writeText(text) ?? Promise.reject(new Error("no clipboard"));
  copied.then(() => say("Copied."), () => say("The browser does not allow copying here: select the text below."));
}

function listen(): void {
  get<HTMLFormElement>("prompt-form").addEventListener("submit", (event) => {
    event.preventDefault();
    if (busy() || !prompt.value.trim() || chosen(compare.checked) === null) return;
    for (const column of asked()) column.say(prompt.value);
    prompt.value = "";
    void answer();
  });
  prompt.addEventListener("keydown", (event) => {
    if (event.key !== "Enter" || event.shiftKey || composes(event)) return;
    event.preventDefault();
    get<HTMLFormElement>("prompt-form").requestSubmit();
  });
  document.addEventListener("keydown", (event) => {
    if (event.key === "Escape" && !composes(event)) for (const column of both) column.stop();
  });
  get<HTMLFormElement>("key-form").addEventListener("submit", (event) => {
    event.preventDefault();
    const key = get<HTMLInputElement>("key").value.trim();
    if (!/^[\x21-\x7e]*$/.test(key)) return say("This is not an API key: keys have only ASCII letters, digits and symbols.");
    saveKey(key);
    get<HTMLInputElement>("key").value = "";
    void listModels();
  });
  buttons.stop.addEventListener("click", () => both.forEach((column) => column.stop()));
  buttons.again.addEventListener("click", () => {
    for (const column of asked()) column.takeBack();
    void answer();
  });
  compare.addEventListener("change", update);
  for (const part of ["columns", "settings"]) get(part).addEventListener("change", update);
  get("clear").addEventListener("click", () => {
    for (const column of both) column.clear();
    get("raw").textContent = "";
    say("");
    update();
  });
  for (const [id, write] of [["copy-curl", asCurl], ["copy-python", asPython], ["copy-typescript", asTypeScript]] as const)
    get(id).addEventListener("click", () => copy(write));
}

const showLoad = (text: string): void => void (get("load").textContent = text);

compare.checked = session.compare;
get("columns").append(...both.map((column) => column.element));
for (const column of both) column.scrollToEnd();
addFields();
write(session.settings);
listen();
update();
void listModels();
void refreshLoad();
setInterval(() => void refreshLoad(), LOAD_MS);
