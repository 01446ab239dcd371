"""Each format of tool calls, parsed at once and in parts of every length: the same content, reasoning and calls."""

from __future__ import annotations

import json
import random
from itertools import pairwise
from typing import Any

import pytest

from octavo_engine.output_parsing.answer_parser import AnswerParser
from octavo_engine.output_parsing.events import CallArguments, CallStart, Content, Event, Reasoning
from octavo_engine.output_parsing.formats import FORMATS, format_of, python_code
from octavo_engine.output_parsing.formats.forced import FORCED
from octavo_engine.output_parsing.formats.python_code import is_quickly_parsed
from octavo_engine.output_parsing.formats.tool import Format, Tool

WEATHER = {"type": "object", "properties": {"city": {"type": "string"}, "days": {"type": "integer"}}}
TOOLS = {"weather": Tool("weather", WEATHER), "now": Tool("now"), "zip": Tool("zip", WEATHER)}
PARIS = ("weather", {"city": 'Paris "the" {one}', "days": 2})
PARIS_JSON = json.dumps(PARIS[1])
NOW = ("now", {})
HALF = {"a": "\ud800"}
"""A string that UTF-8 cannot hold, and that models can write by an escape."""

CODE = "<function_calls>now()\nx = 1</function_calls>"

Said = tuple[str, str, list[tuple[str, Any]]]
"""Content, reasoning, calls."""

ANSWERS: dict[str, tuple[str, str, Said]] = {
    "hermes": (
        "hermes",
        f'Let me see.\n<tool_call>\n{{"name": "weather", "arguments": {PARIS_JSON}}}\n</tool_call>\n'
        '<tool_call>\n{"name": "now", "arguments": {}}\n</tool_call>\n',
        ("Let me see.", "", [PARIS, NOW]),
    ),
    "hermes, a list": (
        "hermes",
        f'<tool_call>[{{"arguments": {PARIS_JSON}, "name": "weather"}}, {{"name": "now"}}]</tool_call>',
        ("", "", [PARIS, NOW]),
    ),
    "hermes, arguments as a string": (
        "hermes",
        f'<tool_call>{{"name": "weather", "arguments": {json.dumps(PARIS_JSON)}}}</tool_call>',
        ("", "", [PARIS]),
    ),
    "hermes, half a character in arguments as a string": (
        "hermes",
        f'<tool_call>{{"name": "now", "arguments": {json.dumps(json.dumps(HALF, ensure_ascii=False))}}}</tool_call>',
        ("", "", [("now", HALF)]),
    ),
    "hermes, half a character in a name": (
        "hermes",
        r'<tool_call>{"name": "\ud800", "arguments": {}}</tool_call>',
        ("", "", [(r"\ud800", {})]),
    ),
    "hermes, no call": (
        "hermes",
        "a <tool_ca b <tool_call>what?</tool_call> c",
        ("a <tool_ca b<tool_call>what?</tool_call> c", "", []),
    ),
    "hermes, after reasoning": (
        "hermes",
        '<think>\nIt is late </thin.\n</think>\n\nWell.\n<tool_call>{"name": "now"}</tool_call>',
        ("Well.", "It is late </thin.", [NOW]),
    ),
    "qwen3 coder, half a character": (
        "qwen3_coder",
        '<tool_call>\n<function=now>\n<parameter=a>\n"\\ud800"\n</parameter>\n</function>\n</tool_call>',
        ("", "", [("now", HALF)]),
    ),
    "qwen3 coder": (
        "qwen3_coder",
        "Well.\n<tool_call>\n<function=weather>\n<parameter=city>\nParis \"the\" {one}\n</parameter>\n"
        "<parameter=days>\n2\n</parameter>\n</function>\n</tool_call>\n<tool_call>\n<function=now>\n</function>\n</tool_call>",
        ("Well.", "", [PARIS, NOW]),
    ),
    "qwen3 coder, texts that look like numbers": (
        "qwen3_coder",
        "<tool_call><function=weather><parameter=city>007</parameter><parameter=days>x</parameter></function></tool_call>",
        ("", "", [("weather", {"city": "007", "days": "x"})]),
    ),
    "glm": (
        "glm45",
        'Well.\n<tool_call>weather\n<arg_key>city</arg_key>\n<arg_value>Paris "the" {one}</arg_value>\n'
        "<arg_key>days</arg_key>\n<arg_value>2</arg_value>\n</tool_call>\n<tool_call>now\n</tool_call>",
        ("Well.", "", [PARIS, NOW]),
    ),
    "deepseek v3": (
        "deepseek_v3",
        f"Well.<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>weather\n```json\n{PARIS_JSON}\n```"
        "<｜tool▁call▁end｜>\n<｜tool▁call▁begin｜>function<｜tool▁sep｜>now\n```json\n{}\n```<｜tool▁call▁end｜>"
        "<｜tool▁calls▁end｜>",
        ("Well.", "", [PARIS, NOW]),
    ),
    "deepseek v3.1": (
        "deepseek_v3",
        "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>weather<｜tool▁sep｜>" + PARIS_JSON + "<｜tool▁call▁end｜>"
        "<｜tool▁call▁begin｜>now<｜tool▁sep｜>{}<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
        ("", "", [PARIS, NOW]),
    ),
    "mistral": (
        "mistral",
        f'[TOOL_CALLS] [{{"name": "weather", "arguments": {PARIS_JSON}}}, {{"name": "now", "arguments": {{}}}}]',
        ("", "", [PARIS, NOW]),
    ),
    "mistral, by name": (
        "mistral",
        f"Well.[TOOL_CALLS]weather[ARGS]{PARIS_JSON}[TOOL_CALLS]now{{}}",
        ("Well.", "", [PARIS, NOW]),
    ),
    "llama 3": (
        "llama3_json",
        f'{{"name": "weather", "parameters": {PARIS_JSON}}}; {{"name": "now", "parameters": {{}}}}',
        ("", "", [PARIS, NOW]),
    ),
    "llama 3, with its tag": (
        "llama3_json",
        f'<|python_tag|>{{"name": "weather", "parameters": {PARIS_JSON}}}',
        ("", "", [PARIS]),
    ),
    "llama 3, JSON that is no call": (
        "llama3_json",
        '{"name": "Ann", "age": 5} is a person.',
        ('{"name": "Ann", "age": 5} is a person.', "", []),
    ),
    "llama 3, text": ("llama3_json", " Hello {name}", (" Hello {name}", "", [])),
    "pythonic": (
        "pythonic",
        "[weather(city='Paris \"the\" {one}', days=2), now()]",
        ("", "", [PARIS, NOW]),
    ),
    "olmo 3": (
        "olmo3",
        "So.\n<function_calls>\nweather(city='Paris \"the\" {one}',\n  days=2)\nnow()\n</function_calls>",
        ("So.", "", [PARIS, NOW]),
    ),
    "olmo 3, words of JSON": (
        "olmo3",
        "<function_calls>now(a=true, b='x', c=[null])</function_calls>",
        ("", "", [("now", {"a": True, "b": "x", "c": [None]})]),
    ),
    "olmo 3, code": ("olmo3", CODE, (CODE, "", [])),
    "olmo 3, cut off": ("olmo3", "<function_calls>now(", ("<function_calls>now(", "", [])),
    "pythonic, half a character": ("pythonic", r"[now(a='\ud800')]", ("", "", [("now", HALF)])),
    "pythonic, arguments without names": ("pythonic", "[now(**{'a': 1})]", ("[now(**{'a': 1})]", "", [])),
    "pythonic, a list": ("pythonic", "[1, 2] are numbers", ("[1, 2] are numbers", "", [])),
    "pythonic, code": ("pythonic", "[__import__('os').system('x')]", ("[__import__('os').system('x')]", "", [])),
    "pythonic, a set": ("pythonic", "[now(a={1, 2})]", ("[now(a={1, 2})]", "", [])),
    "pythonic, keys of no kind": ("pythonic", "[now(a={(1, 2): 3})]", ("[now(a={(1, 2): 3})]", "", [])),
    "pythonic, nested without end": ("pythonic", "[" * 5000, ("[" * 5000, "", [])),
    "harmony": (
        "openai",
        "<|channel|>analysis<|message|>Where?<|end|><|start|>assistant<|channel|>commentary<|message|>Let me see."
        "<|end|><|start|>assistant<|channel|>commentary to=functions.weather <|constrain|>json<|message|>"
        + PARIS_JSON + "<|call|><|start|>assistant to=functions.now<|channel|>commentary json<|message|>{}<|call|>",
        ("Let me see.", "Where?", [PARIS, NOW]),
    ),
    "harmony, an answer": (
        "openai",
        "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant<|channel|>final<|message|>It < rains.<|return|>",
        ("It < rains.", "Hm.", []),
    ),
    "forced": (
        "forced",
        f'[{{"name": "weather", "arguments": {PARIS_JSON}}},\n{{"name":"now","arguments":{{}}}}]',
        ("", "", [PARIS, NOW]),
    ),
}  # fmt: skip


def read(format_: Format | None, pieces: list[str], **options: bool) -> list[Event]:
    parser = AnswerParser(format_, TOOLS, **options)
    events = [event for piece in pieces for event in parser.push(piece)] + parser.finish()
    for event in events:
        (event.name if isinstance(event, CallStart) else event.text).encode()  # as it is sent
    return events


def said(events: list[Event]) -> Said:
    calls: list[tuple[str, str]] = []
    for event in events:
        match event:
            case CallStart(name):
                calls.append((name, ""))
            case CallArguments(text):
                calls[-1] = calls[-1][0], calls[-1][1] + text
    content = "".join(event.text for event in events if isinstance(event, Content))
    reasoning = "".join(event.text for event in events if isinstance(event, Reasoning))
    return content, reasoning, [(name, json.loads(arguments)) for name, arguments in calls]


def format_named(name: str) -> Format:
    return FORCED if name == "forced" else FORMATS[name]


@pytest.mark.parametrize("name", ANSWERS)
def test_however_it_is_cut(name: str) -> None:
    format_name, text, expected = ANSWERS[name]
    format_ = format_named(format_name)
    draws = random.Random(name)
    cuts = [[text], list(text), *(pieces(text, draws) for _ in range(20))]
    for each in cuts:
        assert said(read(format_, each, reasons=not format_.reasons)) == expected


def pieces(text: str, draws: random.Random) -> list[str]:
    places = sorted({0, len(text), *(draws.randrange(len(text)) for _ in range(draws.randrange(1, 12)))})
    return [text[start:end] for start, end in pairwise(places)]


@pytest.mark.parametrize(
    ("argument", "value"),
    [
        ("'" + "1,[\\'" * 10_000 + "'", "1,['" * 10_000),
        ("'''" + '1,"[\n' * 10_000 + "'''", '1,"[\n' * 10_000),
        ("[" + "1," * 5_000 + "'']", None),
    ],
    ids=("quotes", "three quotes", "numbers"),
)
@pytest.mark.parametrize("form", ["[{}]", "<function_calls>{}</function_calls>"])
def test_long_python_is_parsed_only_if_that_is_quick(form: str, argument: str, value: str | None) -> None:
    """64 K of other code than strings took 160 ms, in which no other request was answered."""
    text = form.format(f"now(a={argument})")
    expected: Said = (text, "", []) if value is None else ("", "", [("now", {"a": value})])
    assert said(read(FORMATS["pythonic" if form == "[{}]" else "olmo3"], [text])) == expected


def test_code_in_an_f_string_or_behind_a_comment_is_measured() -> None:
    assert is_quickly_parsed("f(a='" + "1," * 5_000 + "')")
    assert not is_quickly_parsed("f(a=f'{" + "1," * 5_000 + "}')")
    for start in ("f(a=fr'{", "f(a=Rf'{", "f(a=tr'{", "f(a=f'{'"):  # Python 3.12 allows quotes in an f-string
        assert not is_quickly_parsed(start + "1," * 5_000 + "'}')")
    assert is_quickly_parsed("f(a=br'" + "1," * 5_000 + "')")
    assert not is_quickly_parsed("f(a=[ # '\n" + "1," * 5_000 + "'\\'']")
    assert not is_quickly_parsed("f(a=['\\\n', '''\"''', " + "1," * 5_000 + "'\"'])")


@pytest.mark.parametrize("quotes", ["'''", '"""'])
def test_code_that_ends_in_a_backslash_is_read_once(quotes: str) -> None:
    """Each of the quotes was tried as the beginning of a text up to the end, which took 18 s."""
    source = quotes + f"\\{quotes}\n" * 10_000 + "\\"
    assert [found[0] for found in python_code._TEXT_OR_COMMENT.finditer(source)] == [source]


@pytest.mark.parametrize("name", [name for name, (_, _, (_, _, calls)) in ANSWERS.items() if NOW in calls])
def test_no_arguments_are_two_braces_whatever_space_is_between(name: str) -> None:
    format_name, text, _ = ANSWERS[name]
    for spaced in (text.replace("{}", "{\n }"), text.replace("{}", "{ }")):
        for cut in ([spaced], list(spaced)):
            events = read(format_named(format_name), cut, reasons=format_name != "openai")
            assert "".join(each.text for each in events if isinstance(each, CallArguments)).endswith("{}")


@pytest.mark.parametrize("name", ANSWERS)
def test_an_answer_that_is_cut_off_is_read_as_far_as_it_goes(name: str) -> None:
    """max_tokens may end it anywhere; no call is made up. What begins a call that was demanded is not content."""
    format_name, text, (_, _, calls) = ANSWERS[name]
    for index in range(len(text)):
        events = read(format_named(format_name), [text[:index]], reasons=format_name != "openai")
        names = [event.name for event in events if isinstance(event, CallStart)]
        arguments = "".join(event.text for event in events if isinstance(event, CallArguments))
        assert names == [name for name, _ in calls[: len(names)]]
        assert len(arguments) <= sum(len(json.dumps(each)) for _, each in calls)
        demanded = read(format_named(format_name), [text[:index]], reasons=format_name != "openai", demanded=True)
        assert demanded == [event for event in events if not isinstance(event, Content)]


@pytest.mark.parametrize("name", [name for name in FORMATS if not FORMATS[name].reasons])
def test_plain_text_is_content_as_it_arrives(name: str) -> None:
    parser = AnswerParser(FORMATS[name], TOOLS, reasons=True)
    sent = "".join(event.text for word in ["Hello ", "people, ", "a < b"] for event in parser.push(word))  # type: ignore[union-attr]
    assert sent.startswith("Hello people,")
    assert said([Content(sent), *parser.finish()]) == ("Hello people, a < b", "", [])
    assert not parser.called


WORDS = [
    "<tool_call>", "</tool_call>", "{", "}", "[", "]", '"name"', ":", '"now"', '"arguments"', ",", "\\", '"', " ", "x",
    "<function=", ">", "<parameter=", "[TOOL_CALLS]", "<arg_key>", "</arg_key>", "<|channel|>", "<|message|>", "1",
    "<｜tool▁calls▁begin｜>", "<｜tool▁call▁begin｜>", "<｜tool▁sep｜>", "<think>", "</think>", "é", "\n",
]  # fmt: skip


@pytest.mark.parametrize("name", [*FORMATS, "forced"])
def test_junk_ends_without_an_error(name: str) -> None:
    draws = random.Random(name)
    for _ in range(300):
        answer = draws.choices(WORDS, k=draws.randrange(40))
        for event in read(format_named(name), answer, reasons=draws.random() < 0.5):
            assert event.text if not isinstance(event, CallStart) else isinstance(event.name, str)


def test_an_answer_begins_as_reasoning_if_the_prompt_has_opened_it() -> None:
    events = read(None, ["I won", "der</thi", "nk>\n\nYes"], reasons=True, begun=True)
    assert said(events) == ("Yes", "I wonder", [])
    assert said(read(None, ["never ending"], reasons=True, begun=True)) == ("", "never ending", [])


TEMPLATES = {
    "{% if tools %}<tool_call>{{ x }}</tool_call>": "hermes",
    "{% if tools %}<tool_call>\n<function=name>": "qwen3_coder",
    "{% if tools %}<tool_call>{{ n }}<arg_key>": "glm45",
    "{% if tools %}[TOOL_CALLS]": "mistral",
    "{% if tools %}<|channel|>final<|message|>": "openai",
    "{% if tools %}<｜tool▁calls▁begin｜>": "deepseek_v3",
    '{% if tools %}{"name": n, "parameters": p} <|eom_id|>': "llama3_json",
    "{% if tools %}<function_calls></function_calls>": "olmo3",
    "{% if tools %}[func_name1(params_name1=": "pythonic",
}


@pytest.mark.parametrize(("template", "name"), TEMPLATES.items())
def test_the_template_says_which_format(template: str, name: str) -> None:
    found = format_of(template)
    assert found is not None and found.name == name
    assert format_of(template.replace("tools", "x")) is None
