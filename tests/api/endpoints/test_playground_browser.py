"""The playground in a real browser: its features, and its messages when the engine cannot answer."""

from __future__ import annotations

import json
import re
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from playwright._impl._driver import compute_driver_executable
from playwright.sync_api import Browser, BrowserContext, Page, Route, expect

from octavo_engine.text.tokenizer import Tokenizer
from tests.api.real_server import RealServer
from tests.api.scripted_engine import READY
from tests.api.served import Served, serve
from tests.browser import browser

AXE = Path(__file__).parents[3] / "engine" / "playground" / "node_modules" / "axe-core" / "axe.min.js"
HOSTILE = """Look:

```html
<b>x</b>
```

- one
- **two**

| a | b |
| - | - |
| 0 | 1 |

A [trap](javascript:document.title='owned'), a [page](https://example.org/page), ![it](https://example.org/picture.png).

<img src=x onerror="document.title='owned'"><script>document.title='owned'</script>
"""
ANSWERS_OF_THE_TEST = """() => {
  const fetched = window.fetch;
  let stop;
  const stream = new ReadableStream({ start: (controller) => {
    stop = (reason) => controller.error(reason);
    const write = (data) => controller.enqueue(new TextEncoder().encode(`data: ${data}\\n\\n`));
    window.send = (delta) => write(JSON.stringify({ choices: [{ delta }] }));
    window.end = () => { write("[DONE]"); controller.close(); };
  } });
  window.fetch = (url, options) => {
    if (url !== "/v1/chat/completions") return fetched(url, options);
    options.signal.addEventListener("abort", () => stop(options.signal.reason));
    return Promise.resolve(new Response(stream));
  };
}"""
SAMPLING: dict[str, tuple[str, float]] = {
    "Temperature": ("temperature", 0.25),
    "Top p": ("top_p", 0.5),
    "Top k": ("top_k", 7),
    "Min p": ("min_p", 0.125),
    "Frequency penalty": ("frequency_penalty", -1),
    "Presence penalty": ("presence_penalty", 1.5),
    "Seed": ("seed", 3),
    "Max tokens": ("max_tokens", 9),
}
PHONE: Any = {"width": 390, "height": 844}


@pytest.fixture(scope="module")
def chromium() -> Iterator[Browser]:
    with browser() as started:
        yield started


@pytest.fixture
def context(chromium: Browser) -> Iterator[BrowserContext]:
    """A browser's profile of its own; the test fails if a page logs an error, as a refused script would."""
    made = chromium.new_context()
    made.set_default_timeout(120_000)
    expect.set_options(timeout=120_000)
    problems: list[str] = []
    made.on("console", lambda message: problems.append(message.text) if message.type == "error" else None)
    made.on("weberror", lambda error: problems.append(str(error.error)))
    yield made
    made.close()
    assert [problem for problem in problems if "Failed to load resource" not in problem] == []


def opened(context: BrowserContext, url: str) -> Page:
    page = context.new_page()
    page.goto(url)
    return page


def ask(page: Page, question: str) -> None:
    """Send a question once the page takes one: while an answer comes, it does not, even if all of its text is there."""
    expect(page.get_by_role("button", name="Send")).to_be_enabled()
    page.get_by_label("Your message").fill(question)
    page.keyboard.press("Enter")


def clear_notice(page: Page) -> None:
    """Empty the notice, so that what is read there afterwards is said because of what comes next."""
    page.locator("#notice").evaluate("notice => { notice.textContent = ''; }")


def accessibility_problems(page: Page) -> list[str]:
    """Return axe's findings against WCAG 2.2 A and AA, and its best practices.

    The page's policy does not bind the browser's own debugger.
    """
    page.evaluate(AXE.read_text(encoding="utf-8"))
    tags = ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa", "best-practice"]
    found = page.evaluate("tags => axe.run(document, { runOnly: tags })", tags)
    return [f"{each['id']}: {[node['html'] for node in each['nodes']]}" for each in found["violations"]]


def test_a_chat_is_answered_kept_and_asked_again(real: RealServer, context: BrowserContext) -> None:
    page = opened(context, real.url)
    expect(page.get_by_label("Model A")).to_have_value("smollm2")
    page.get_by_text("System message, sampling").click()
    expect(page.get_by_label("Temperature")).to_have_attribute("placeholder", "1")
    page.get_by_label("Temperature").fill("0")
    page.get_by_label("Max tokens").fill("24")
    ask(page, "Name the capital of France.")
    answer = page.get_by_role("article", name="Model").first
    expect(answer).to_contain_text("Paris")
    expect(page.locator(".timing").first).to_have_text(
        re.compile(r"\d+ tokens, the first after \d+ ms, then .* tokens/s")
    )
    expect(page.get_by_label("Load of the engine")).to_have_text(re.compile(r"running · .*KV cache .*rejected"))
    first = answer.inner_text()
    page.get_by_role("button", name="Regenerate").click()
    expect(answer).to_have_text(first)
    page.get_by_text("Request and response").click()
    raw = page.get_by_label("The last request and its response")
    expect(raw).to_contain_text('"max_tokens": 24')
    expect(raw).to_contain_text("[DONE]")
    page.get_by_role("button", name="Copy as Python").click()
    expect(raw).to_contain_text("from openai import OpenAI")
    page.reload()
    expect(page.get_by_role("article", name="You").first).to_have_text("Name the capital of France.")
    expect(answer).to_have_text(first)
    expect(page.get_by_label("Temperature")).to_have_value("0")
    page.get_by_role("button", name="New chat").click()
    expect(page.get_by_role("article")).to_have_count(0)


def test_an_answer_is_stopped_and_what_came_of_it_stays(server: Served, context: BrowserContext) -> None:
    server.play("one two three four", hold_after=2)
    page = opened(context, server.url)
    expect(page.get_by_label("Model A")).to_have_value("smollm2")
    page.get_by_label("Your message").fill("Count,")
    page.keyboard.press("Shift+Enter")
    page.keyboard.type("please.")
    page.keyboard.press("Enter")
    expect(page.get_by_role("article", name="You")).to_contain_text("Count,\nplease.")
    answer = page.get_by_role("article", name="Model").first
    expect(answer).to_contain_text("one")
    page.keyboard.press("Escape")
    expect(page.locator(".timing").first).to_have_text("Stopped.")
    expect(page.get_by_role("button", name="Send")).to_be_enabled()
    expect(answer).to_contain_text("one")
    server.wait_until(lambda: server.engine.aborted)
    page.get_by_role("button", name="Regenerate").click()
    expect(answer).to_contain_text("one")
    page.get_by_text("Request and response").click()
    page.get_by_role("button", name="Copy as Python").click()
    page.get_by_role("button", name="Stop").click()
    expect(page.locator(".timing").first).to_have_text("Stopped.")
    expect(page.get_by_role("button", name="Send")).to_be_enabled()
    expect(page.get_by_label("The last request and its response")).to_contain_text("from openai import OpenAI")


def test_two_columns_get_the_same_seed_and_their_difference_is_shown(real: RealServer, context: BrowserContext) -> None:
    page = opened(context, real.url)
    expect(page.get_by_label("Model A")).to_have_value("smollm2")
    page.get_by_label("Compare two").check()
    page.get_by_text("System message, sampling").click()
    page.get_by_label("Max tokens").fill("12")
    ask(page, "Tell me a story.")
    expect(page.locator(".timing")).to_have_text([re.compile("12 tokens"), re.compile("12 tokens")])
    left, right = (each.inner_text() for each in page.get_by_role("article", name="Model").all())
    assert left == right  # the same seed, prompt and model
    difference = page.locator("#difference")
    expect(difference).to_be_visible()
    expect(difference.locator("ins, del")).to_have_count(0)
    expect(difference.get_by_role("heading")).to_have_text("The two answers are the same.")
    page.get_by_label("Compare two").uncheck()
    page.get_by_label("Max tokens").fill("3")  # so that the answers differ in any case
    page.get_by_label("Temperature").fill("0")
    page.get_by_role("button", name="Regenerate").click()
    expect(page.locator(".timing").first).to_contain_text("3 tokens")
    page.get_by_label("Compare two").check()
    expect(difference.locator("del, ins")).not_to_have_count(0)
    kept = page.evaluate("JSON.parse(sessionStorage['octavo-session']).columns.map(one => one.messages[1].content)")
    own = "(p, other) => [...p.childNodes].map(one => one.nodeName === other ? '' : one.textContent).join('')"
    assert [difference.locator("p").evaluate(own, of_the_other) for of_the_other in ("INS", "DEL")] == kept
    page.get_by_label("Compare two").uncheck()
    ask(page, "Another question.")
    expect(page.get_by_role("button", name="Send")).to_be_enabled()
    page.get_by_label("Compare two").check()
    expect(difference).to_be_hidden()  # the columns answer different questions


def test_a_second_column_continues_the_conversation_of_the_first(server: Served, context: BrowserContext) -> None:
    """It would answer another question else: one without the conversation before it, or none at all."""
    page = opened(context, server.url)
    server.play("one")
    ask(page, "First?")
    expect(page.get_by_role("button", name="Send")).to_be_enabled()
    page.get_by_label("Compare two").check()
    second = page.get_by_label("Conversation B")
    expect(second).to_contain_text("continues A's conversation")
    assert accessibility_problems(page) == []
    page.get_by_role("button", name="Regenerate").click()
    expect(second.get_by_role("article")).to_have_text(["First?", "one"])
    expect(second).not_to_contain_text("continues")
    expect(page.get_by_role("button", name="Send")).to_be_enabled()
    page.get_by_label("Compare two").uncheck()
    ask(page, "Second?")
    expect(page.get_by_role("button", name="Send")).to_be_enabled()
    page.get_by_label("Compare two").check()
    ask(page, "Third?")
    expect(second.get_by_role("article")).to_have_text(["First?", "one", "Second?", "one", "Third?", "one"])
    expect(page.get_by_role("button", name="Send")).to_be_enabled()
    prompts = [request.prompt_token_ids for request in server.engine.requests]
    assert prompts[1] == prompts[2] == prompts[0]
    assert prompts[4] == prompts[5] != prompts[3]


def test_long_answers_that_differ_only_at_their_ends_are_not_called_the_same(
    start: Callable[..., Served], context: BrowserContext
) -> None:
    page = opened(context, start().url)
    answers = ("word " * 1500 + "left", "word " * 1500 + "right")
    kept = [[{"role": "user", "content": "Hi"}, {"role": "assistant", "content": answer}] for answer in answers]
    session = {"compare": True, "columns": [{"model": "", "messages": messages} for messages in kept]}
    page.evaluate("session => { sessionStorage['octavo-session'] = session }", json.dumps(session))
    page.reload()
    difference = page.locator("#difference")
    expect(difference).to_contain_text("the first 1500 words are compared")
    expect(difference.get_by_role("heading")).to_have_text("Struck through: only in A. Underlined: only in B.")


def test_an_adapter_that_is_loaded_can_be_chosen_and_compared_with_the_base(
    start: Callable[..., Served], context: BrowserContext
) -> None:
    server = start()
    server.engine.state.ready = replace(READY, max_loras=2)
    server.play("one")
    body = {"lora_name": "sql", "lora_path": "/adapters/sql"}
    assert server.http.post("/v1/load_lora_adapter", json=body).status_code == 200
    page = opened(context, server.url)
    model = page.get_by_label("Model A")
    expect(model.locator("option")).to_have_text(["smollm2", re.compile("sql")])
    model.select_option("sql")
    ask(page, "List all customers.")
    expect(page.locator(".timing").first).to_contain_text("token")
    page.get_by_label("Compare two").check()
    page.get_by_label("Model B").select_option("smollm2")
    ask(page, "List all customers.")
    expect(page.locator("#difference")).to_be_visible()
    adapters = [request.adapter for request in server.engine.requests]
    assert adapters[0] == "digest of /adapters/sql"
    assert sorted(adapters[1:]) == ["", "digest of /adapters/sql"]


def test_the_last_request_is_copied_as_code_that_asks_it_again(server: Served, context: BrowserContext) -> None:
    """curl's and Python's lines run as they are; of TypeScript's the syntax is checked, as npm's openai is not here."""
    context.grant_permissions(["clipboard-read", "clipboard-write"])
    page = opened(context, server.url)
    expect(page.get_by_label("Model A")).to_have_value("smollm2")
    question = """It's "Paris" \\ $HOME `date` \u2019\n</script>, isn't it?"""
    ask(page, question)
    expect(page.locator(".timing").first).to_contain_text("tokens")
    page.get_by_text("Request and response").click()
    asked = [server.engine.requests[-1].prompt_token_ids]

    def copied(name: str) -> str:
        clear_notice(page)
        page.get_by_role("button", name=f"Copy as {name}").click()
        expect(page.locator("#notice")).to_have_text("Copied.")
        return str(page.evaluate("navigator.clipboard.readText()"))

    commands = (["bash", "-c", copied("curl")], [sys.executable, "-c", copied("Python")])
    for command in commands:
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
        assert done.returncode == 0, done.stderr
        assert "Hello there." in done.stdout
        asked.append(server.engine.requests[-1].prompt_token_ids)
    assert asked[0] == asked[1] == asked[2]
    node, _ = compute_driver_executable()
    checked = subprocess.run(
        [node, "--check", "--input-type=module"], input=copied("TypeScript"), text=True, check=False
    )
    assert checked.returncode == 0


def test_a_schema_holds_the_answer_and_a_wrong_one_is_reported_beside_it(
    real: RealServer, context: BrowserContext
) -> None:
    page = opened(context, real.url)
    expect(page.get_by_label("Model A")).to_have_value("smollm2")
    page.get_by_text("System message, sampling").click()
    schema = page.get_by_label("JSON schema that the answer follows")
    schema.fill('{"type": "object",')
    ask(page, "Is Paris large?")
    expect(page.get_by_role("alert")).to_contain_text("This schema cannot be used")
    expect(page.get_by_role("article")).to_have_count(0)
    schema.fill('{"type": "object", "properties": {"large": {"type": "boolean"}}, "required": ["large"],'
                ' "additionalProperties": false}')  # fmt: skip
    page.get_by_label("Show tokens with their probabilities").check()
    page.get_by_role("button", name="Send").click()
    expect(page.locator(".timing").first).to_contain_text("tokens/s")
    answer = page.get_by_role("article", name="Model").first
    tokens = answer.locator(".tokens")
    assert isinstance(json.loads(tokens.inner_text())["large"], bool)
    tokens.locator("span").first.hover()
    expect(answer.get_by_role("status")).to_have_text(re.compile(r'^"\{.*" [\d.]+ %( · ".*" [\d.]+ %)*$'))
    page.mouse.move(0, 0)  # or a scrolled page would have another token under the mouse
    tokens.press("ArrowRight")
    expect(tokens.locator("span").nth(1)).to_have_class(re.compile("chosen"))


def test_what_a_model_writes_is_shown_and_never_run(server: Served, context: BrowserContext) -> None:
    server.play(HOSTILE)
    page = opened(context, server.url)
    expect(page.get_by_label("Model A")).to_have_value("smollm2")
    ask(page, "Write.")
    answer = page.get_by_role("article", name="Model").first
    expect(answer.locator("pre code")).to_have_text("<b>x</b>")
    expect(answer.locator("li strong")).to_have_text("two")
    expect(answer).to_contain_text("<img src=x")
    expect(answer.locator("td").last).to_have_text("1")
    assert answer.locator("img, b, script").count() == 0
    links = [each.get_attribute("href") for each in answer.locator("a").all()]
    assert links == ["https://example.org/page", "https://example.org/picture.png"]
    assert page.title() == "Octavo playground"


@pytest.mark.parametrize(
    ("text", "shown"),
    [("> " * 4000 + "deep", "deep"), ("_a" * 50_000 + " long", "long"), ("w" * 3000 + " wide", "wide")],
    ids=["nested", "quadratic", "wide"],
)
def test_what_cannot_be_formatted_is_shown_as_it_is_written(
    server: Served, context: BrowserContext, text: str, shown: str
) -> None:
    event = json.dumps({"choices": [{"delta": {"content": text}}]})
    page = opened(context, server.url)
    page.set_viewport_size(PHONE)
    expect(page.get_by_label("Model A")).to_have_value("smollm2")
    body = f"data: {event}\n\ndata: [DONE]\n\n"
    page.route("**/v1/chat/completions", lambda route: route.fulfill(body=body, content_type="text/event-stream"))
    ask(page, "Write.")
    answer = page.get_by_role("article", name="Model")
    expect(answer).to_contain_text(shown)
    expect(page.get_by_role("button", name="Send")).to_be_enabled()
    assert page.evaluate("document.documentElement.scrollWidth") <= PHONE["width"]


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_nothing_bars_anyone(server: Served, context: BrowserContext, scheme: Any) -> None:
    server.play(f"# Heading\n\nSome `code`.\n\n{HOSTILE}")
    page = opened(context, server.url)
    page.emulate_media(color_scheme=scheme)
    expect(page.get_by_label("Model A")).to_have_value("smollm2")
    page.get_by_label("Compare two").check()
    page.get_by_text("System message, sampling").click()
    page.get_by_text("Request and response").click()
    ask(page, "Hello")
    expect(page.locator("#difference")).to_be_visible()
    assert accessibility_problems(page) == []
    page.set_viewport_size(PHONE)
    assert accessibility_problems(page) == []
    assert page.evaluate("document.documentElement.scrollWidth") <= PHONE["width"]


def test_the_focus_goes_to_the_answer_where_its_button_is_disabled(server: Served, context: BrowserContext) -> None:
    server.play("Here.")
    page = opened(context, server.url)
    expect(page.get_by_label("Model A")).to_have_value("smollm2")
    page.evaluate(ANSWERS_OF_THE_TEST)
    page.get_by_label("Your message").fill("Where am I?")
    page.get_by_role("button", name="Send").press("Enter")
    messages = page.get_by_role("log", name="Messages A")
    expect(messages).to_be_focused()
    page.get_by_role("button", name="Stop").focus()
    page.evaluate("send({ content: 'Here.' }); end();")
    expect(page.get_by_role("button", name="Stop")).to_be_disabled()
    expect(messages).to_be_focused()


@pytest.mark.parametrize("how", ["isComposing: true", "keyCode: 229"])
def test_the_keys_of_an_input_method_neither_send_nor_stop(server: Served, context: BrowserContext, how: str) -> None:
    """As Chromium and Firefox report them, and as Safari does."""
    page = opened(context, server.url)
    expect(page.get_by_label("Model A")).to_have_value("smollm2")
    page.evaluate(ANSWERS_OF_THE_TEST)
    message = page.get_by_label("Your message")
    message.fill("\u306b\u307b\u3093")

    def press(key: str) -> None:
        options = f"{{ key: '{key}', {how}, bubbles: true, cancelable: true }}"
        message.evaluate(f"box => {{ box.dispatchEvent(new KeyboardEvent('keydown', {options})); }}")

    press("Enter")
    expect(message).to_have_value("\u306b\u307b\u3093")
    message.press("Enter")
    expect(page.get_by_role("button", name="Stop")).to_be_enabled()
    press("Escape")
    page.evaluate("send({ content: 'Japan' }); end();")
    expect(page.locator(".timing").first).to_contain_text("tokens/s")


def test_a_key_is_asked_for_and_forgotten_with_the_tab(
    start: Callable[..., Served], context: BrowserContext, tmp_path: Path
) -> None:
    keys = tmp_path / "keys.yaml"
    keys.write_text("keys: [{name: one, key: sk-secret}]")
    server = start(api_key_file=keys)
    page = opened(context, server.url)
    expect(page.get_by_role("status")).to_contain_text("This engine needs an API key")
    page.get_by_label("API key").fill("sk-wrong")
    clear_notice(page)
    page.get_by_role("button", name="Use this key").click()
    expect(page.get_by_role("status")).to_contain_text("this API key is not valid")
    late: list[Route] = []
    page.route(
        "**/v1/models",
        lambda route: late.append(route) if "sk-late" in str(route.request.headers) else route.continue_(),
    )
    for key in ("sk-late", "sk-secret"):
        page.get_by_label("API key").fill(key)
        page.get_by_role("button", name="Use this key").click()
    expect(page.get_by_label("Model A")).to_have_value("smollm2")
    with page.expect_response("**/v1/models") as refused:
        late[0].continue_()
    refused.value.finished()
    page.evaluate("new Promise(done => setTimeout(done, 50))")  # the page has read the older key's refusal
    expect(page.get_by_label("API key")).to_be_hidden()
    expect(page.get_by_label("Your message")).to_be_focused()
    assert "sk-secret" not in page.evaluate("JSON.stringify(localStorage)")
    other = opened(context, server.url)
    expect(other.get_by_label("API key")).to_be_visible()


def test_reasoning_is_folded_and_not_sent_back(server: Served, context: BrowserContext) -> None:
    deltas = ({"reasoning_content": "Let me see."}, {"content": "Four."})
    parts = [json.dumps({"choices": [{"delta": delta}]}) for delta in deltas]
    page = opened(context, server.url)
    expect(page.get_by_label("Model A")).to_have_value("smollm2")
    answers = "".join(f"data: {part}\n\n" for part in (*parts, "[DONE]"))
    page.route("**/v1/chat/completions", lambda route: route.fulfill(body=answers, content_type="text/event-stream"))
    ask(page, "Two and two?")
    answer = page.get_by_role("article", name="Model")
    expect(answer.locator("details p")).to_have_text("Let me see.")
    expect(answer.locator(":scope > p")).to_have_text("Four.")
    ask(page, "Sure?")
    expect(page.locator("#raw")).to_contain_text("Sure?")  # it is written when the answer has ended
    sent = json.loads(page.locator("#raw").text_content().partition("\n\n")[0])  # type: ignore[union-attr]
    assert [each["content"] for each in sent["messages"]] == ["Two and two?", "Four.", "Sure?"]


def test_reasoning_that_is_opened_stays_open_while_the_answer_comes(server: Served, context: BrowserContext) -> None:
    page = opened(context, server.url)
    expect(page.get_by_label("Model A")).to_have_value("smollm2")
    page.evaluate(ANSWERS_OF_THE_TEST)
    ask(page, "Two and two?")
    answer = page.get_by_role("article", name="Model")
    page.evaluate("delta => send(delta)", {"reasoning_content": "Let me see."})
    answer.get_by_text("Reasoning").click()
    expect(answer.get_by_text("Let me see.")).to_be_visible()
    page.evaluate("delta => send(delta)", {"content": "Four."})
    expect(answer.locator(":scope > p")).to_have_text("Four.")
    expect(answer.get_by_text("Let me see.")).to_be_visible()


def test_blocks_that_more_text_cannot_change_are_drawn_once(server: Served, context: BrowserContext) -> None:
    page = opened(context, server.url)
    expect(page.get_by_label("Model A")).to_have_value("smollm2")
    page.evaluate(ANSWERS_OF_THE_TEST)
    ask(page, "Write.")
    answer = page.get_by_role("article", name="Model")
    page.evaluate("delta => send(delta)", {"content": "One\r\n[two].\r\n\r\n- a\r\n\r\nThr"})
    expect(answer.locator("p").last).to_have_text("Thr")
    page.evaluate("delta => send(delta)", {"content": "ee\n===\n\nFour **f"})
    expect(answer.locator("h2")).to_have_text("Three")
    answer.locator("p").first.evaluate("one => { one.title = 'drawn before'; }")
    page.evaluate("delta => send(delta)", {"content": "ive**\n"})
    expect(answer.locator("strong")).to_have_text("five")
    assert answer.locator("p").first.get_attribute("title") == "drawn before"
    assert answer.locator(":scope > *").evaluate_all("all => all.map(one => one.tagName)") == ["P", "UL", "H2", "P"]
    page.evaluate("delta => send(delta)", {"content": "\n[two]: https://example.org/"})
    page.evaluate("() => end()")
    expect(answer.locator("a")).to_have_text("two")


def test_a_new_chat_begins_empty_while_an_answer_comes(server: Served, context: BrowserContext) -> None:
    server.play("one two three four", hold_after=2)
    page = opened(context, server.url)
    expect(page.get_by_label("Model A")).to_have_value("smollm2")
    ask(page, "Count.")
    expect(page.get_by_role("article", name="Model")).to_contain_text("one")
    page.get_by_role("button", name="New chat").click()
    expect(page.get_by_role("button", name="Send")).to_be_enabled()
    page.reload()
    expect(page.get_by_label("Model A")).to_have_value("smollm2")
    expect(page.get_by_role("article")).to_have_count(0)


def test_a_server_that_drains_says_so_and_ends_what_it_has_begun(
    start: Callable[..., Served], context: BrowserContext
) -> None:
    server = start()
    server.play("one two three four", hold_after=2)
    page = opened(context, server.url)
    expect(page.get_by_label("Model A")).to_have_value("smollm2")
    ask(page, "Count.")
    answer = page.get_by_role("article", name="Model")
    expect(answer).to_contain_text("one")
    server.signal()
    expect(page.get_by_label("Load of the engine")).to_contain_text("draining")
    server.do(server.engine.release.set)
    expect(answer).to_have_text("one two three four")


def test_a_server_that_loads_or_is_full_says_so(start: Callable[..., Served], context: BrowserContext) -> None:
    loading = opened(context, start(load=False).url)
    expect(loading.get_by_role("status")).to_contain_text("loading")
    expect(loading.get_by_label("Load of the engine")).to_contain_text("loading")
    full = start(max_queued_requests=0)
    full.do(lambda: full.serving.metrics.reject("queued_requests"))
    for reason in ("invalid", "loading"):  # an error of a client, and this page's own requests, are not about load
        full.do(lambda reason=reason: full.serving.metrics.reject(reason))
    stats = {"running": 4, "waiting": 2, "kv_usage": 0.37, "prefix_queried_tokens": 200, "prefix_hit_tokens": 50}
    full.do(lambda: full.engine.report(**stats))
    full.do(lambda: setattr(full.serving.admission, "begun", 4))
    page = context.new_page()
    page.clock.install()

    def counted(route: Route) -> None:
        full.do(lambda: full.serving.metrics.generated_tokens.add(10_000))  # between any two looks of the page
        route.continue_()

    page.route("**/metrics", counted)
    page.goto(full.url)
    load = page.get_by_label("Load of the engine")
    expect(load).to_contain_text("1 rejected")
    page.clock.fast_forward(5000)  # after so many ms the page looks again
    figures = r"4 running · 2 waiting · KV cache 37 % · [1-9]\d*\.\d tokens/s · prefix hits 25 % · 1 rejected"
    expect(load).to_have_text(re.compile(f"^{figures}$"))
    page.unroute_all(behavior="wait")
    expect(page.get_by_label("Model A")).to_have_value("smollm2")
    ask(page, "Hello")
    expect(page.get_by_role("status")).to_have_text(re.compile(r"\. Try again in \d+ s: Regenerate asks again\.$"))
    expect(page.get_by_role("status")).not_to_contain_text("; try again")
    expect(page.get_by_role("article", name="Model")).to_have_count(0)
    full.do(lambda: setattr(full.serving.admission, "begun", 0))
    page.reload()
    expect(page.get_by_role("status")).to_have_text("Your last question has no answer yet: Regenerate asks it again.")


def test_a_question_that_is_too_long_comes_back_to_be_changed(
    start: Callable[..., Served], context: BrowserContext
) -> None:
    """And the conversation goes on without it."""
    server = start(max_request_bytes=4096)
    server.play("one two")
    page = opened(context, server.url)
    expect(page.get_by_label("Model A")).to_have_value("smollm2")
    pasted = "<b>paste</b> " * 500
    ask(page, pasted)
    expect(page.get_by_label("Your message")).to_have_value(pasted)
    expect(page.get_by_role("status")).to_contain_text("4096")
    expect(page.get_by_role("article")).to_have_count(0)
    ask(page, "Short.")
    expect(page.get_by_role("article", name="Model")).to_have_text("one two")


def test_a_setting_that_cannot_be_sent_is_shown_and_nothing_is_asked(server: Served, context: BrowserContext) -> None:
    server.play("one")
    page = opened(context, server.url)
    expect(page.get_by_label("Model A")).to_have_value("smollm2")
    page.get_by_text("System message, sampling").click()
    page.get_by_label("Temperature").fill("5")
    page.get_by_text("System message, sampling").click()
    ask(page, "Hello")
    expect(page.get_by_label("Temperature")).to_be_visible()
    expect(page.get_by_role("article")).to_have_count(0)
    for label, (_, value) in SAMPLING.items():
        page.get_by_label(label).fill(str(value))
    page.get_by_label("System message", exact=True).fill("Be brief.")
    page.get_by_role("button", name="Send").click()
    expect(page.get_by_role("article", name="Model")).to_have_text("one")
    expect(page.locator("#raw")).to_contain_text("[DONE]")
    sent = json.loads(page.locator("#raw").text_content().partition("\n\n")[0])  # type: ignore[union-attr]
    assert {name: sent[name] for name, _ in SAMPLING.values()} == dict(SAMPLING.values())
    assert [each["content"] for each in sent["messages"]] == ["Be brief.", "Hello"]


@pytest.mark.parametrize("end", ["closed", "offline"])
def test_an_answer_that_breaks_off_keeps_what_came_and_says_so(
    server: Served, context: BrowserContext, end: str
) -> None:
    server.play("one two three four", hold_after=2)
    page = opened(context, server.url)
    expect(page.get_by_label("Model A")).to_have_value("smollm2")
    if end == "closed":  # as by a proxy whose server has died: in good order, without the last event
        event = json.dumps({"choices": [{"delta": {"content": "one"}}]})
        page.route(
            "**/v1/chat/completions",
            lambda route: route.fulfill(body=f"data: {event}\n\n", content_type="text/event-stream"),
        )
    else:
        context.set_offline(True)
        expect(page.get_by_label("Load of the engine")).to_contain_text("the engine does not answer")
    ask(page, "Count.")
    notice = "The engine cannot be reached: the connection ended" if end == "closed" else "The engine cannot be reached"
    expect(page.get_by_role("status")).to_contain_text(notice)
    expect(page.get_by_role("article", name="Model")).to_have_count(1 if end == "closed" else 0)
    page.unroute_all()
    context.set_offline(False)
    server.play("all of it")
    page.get_by_role("button", name="Regenerate").click()
    expect(page.get_by_role("article", name="Model")).to_have_text("all of it")
    expect(page.get_by_role("status")).to_be_empty()


def test_a_page_whose_engine_is_restarted_says_so_and_goes_on_by_itself(
    tokenizer: Tokenizer, context: BrowserContext
) -> None:
    with socket.socket() as kept:  # the port stays taken while no server has it, so that no other program gets it
        kept.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        kept.bind(("127.0.0.1", 0))
        port = kept.getsockname()[1]
        with serve(tokenizer, port=port) as before:
            page = opened(context, before.url)
            expect(page.get_by_label("Model A")).to_have_value("smollm2")
        load = page.get_by_label("Load of the engine")
        expect(load).to_have_text("the engine does not answer; it is asked again every 5 s")
        ask(page, "Hello")
        expect(page.get_by_role("status")).to_contain_text("The engine cannot be reached")
        with serve(tokenizer, port=port, served_model_name=["other"]) as after:
            after.play("Here again.")
            expect(page.get_by_role("status")).to_have_text(
                "The engine answers again. No longer loaded: smollm2. other is selected instead. "
                "Your last question has no answer yet: Regenerate asks it again."
            )
            expect(load).to_contain_text("0 running")
            page.get_by_role("button", name="Regenerate").click()
            expect(page.get_by_role("article", name="Model")).to_have_text("Here again.")
            assert after.engine.requests


def test_each_tab_keeps_its_own_conversation(server: Served, context: BrowserContext) -> None:
    server.play("one")
    tabs = [opened(context, server.url) for _ in range(2)]
    for tab, question in zip(tabs, ("First tab.", "Second tab."), strict=True):
        expect(tab.get_by_label("Model A")).to_have_value("smollm2")
        ask(tab, question)
        expect(tab.get_by_role("article", name="Model")).to_have_text("one")
    for tab, question in zip(tabs, ("First tab.", "Second tab."), strict=True):
        tab.reload()
        expect(tab.get_by_role("article", name="You")).to_have_text(question)
    expect(opened(context, server.url).get_by_role("article", name="You")).to_have_text("Second tab.")


def test_a_reader_who_scrolls_up_stays_there_and_a_script_from_the_right_begins_there(
    server: Served, context: BrowserContext
) -> None:
    lines = "שלום" + "\n\nline" * 60 + "\n\nend of it"
    server.play(lines, hold_after=len(server.tokenizer.encode(lines)) - 3)
    page = opened(context, server.url)
    expect(page.get_by_label("Model A")).to_have_value("smollm2")
    ask(page, "Count.")
    answer, log = page.get_by_role("article", name="Model"), page.get_by_role("log", name="Messages A")
    expect(answer.locator("p")).to_have_count(61)
    assert log.evaluate("log => log.scrollHeight - log.scrollTop - log.clientHeight") < 2
    assert answer.locator("p").first.evaluate("p => getComputedStyle(p).direction") == "rtl"
    log.evaluate("log => { log.scrollTop = 100; }")
    server.do(server.engine.release.set)
    expect(answer).to_contain_text("end of it")
    assert log.evaluate("log => log.scrollTop") == 100


def test_the_page_works_where_the_browser_keeps_nothing(
    start: Callable[..., Served], context: BrowserContext, tmp_path: Path
) -> None:
    keys = tmp_path / "keys.yaml"
    keys.write_text("keys: [{name: one, key: sk-secret}]")
    server = start(api_key_file=keys)
    server.play("one")
    refuse = "get() { throw new DOMException('denied', 'SecurityError'); }"
    for storage in ("localStorage", "sessionStorage"):
        context.add_init_script(f"Object.defineProperty(window, '{storage}', {{ {refuse} }});")
    page = opened(context, server.url)
    page.get_by_label("API key").fill("sk-secret")
    page.get_by_role("button", name="Use this key").click()
    expect(page.get_by_label("Model A")).to_have_value("smollm2")
    ask(page, "Hello")
    expect(page.get_by_role("article", name="Model")).to_have_text("one")


def test_a_key_that_a_loading_engine_accepts_is_not_asked_for_again(
    start: Callable[..., Served], context: BrowserContext, tmp_path: Path
) -> None:
    keys = tmp_path / "keys.yaml"
    keys.write_text("keys: [{name: one, key: sk-secret}]")
    page = opened(context, start(api_key_file=keys, load=False).url)
    page.get_by_label("API key").fill("sk-secret")
    page.get_by_role("button", name="Use this key").click()
    expect(page.get_by_role("status")).to_contain_text("the model is loading")
    expect(page.get_by_label("API key")).to_be_hidden()


def test_a_key_that_no_header_can_hold_is_refused_by_the_page(
    start: Callable[..., Served], context: BrowserContext, tmp_path: Path
) -> None:
    keys = tmp_path / "keys.yaml"
    keys.write_text("keys: [{name: one, key: sk-secret}]")
    page = opened(context, start(api_key_file=keys).url)
    page.get_by_label("API key").fill("schlüssel ✓")
    page.get_by_role("button", name="Use this key").click()
    expect(page.get_by_role("status")).to_contain_text("This is not an API key")


def test_adapters_that_come_and_go_while_the_page_is_open_are_listed_anew(
    start: Callable[..., Served], context: BrowserContext
) -> None:
    """Also twenty of them with long names, on a phone."""
    server = start()
    server.engine.state.ready = replace(READY, max_loras=2)
    page = opened(context, server.url)
    page.set_viewport_size(PHONE)
    model = page.get_by_label("Model A")
    expect(model).to_have_value("smollm2")
    for number in range(20):
        body = {"lora_name": f"adapter-{number}-" + "w" * 200, "lora_path": "/adapters/sql"}
        assert server.http.post("/v1/load_lora_adapter", json=body).status_code == 200
    model.focus()
    expect(model.locator("option")).to_have_count(21)
    assert page.evaluate("document.documentElement.scrollWidth") <= PHONE["width"]
    model.select_option(body["lora_name"])
    assert server.http.post("/v1/unload_lora_adapter", json=body).status_code == 200
    model.blur()
    model.focus()
    expect(model.locator("option")).to_have_count(20)
    expect(model).to_have_value("smollm2")
    expect(page.get_by_role("status").first).to_contain_text("No longer loaded: adapter-19-")
