"""Tool calls that a request demands: the texts that the grammar of each format allows, and what is read from them."""

from __future__ import annotations

import functools
import json
from typing import Any

import pytest
from llguidance import LLMatcher, LLTokenizer

from octavo_engine.output_parsing.answer_form import AnswerForm
from octavo_engine.output_parsing.answer_parts import AnswerParts
from octavo_engine.output_parsing.formats import FORCED, FORMATS
from octavo_engine.output_parsing.formats.forms import MOST_CALLS, NoFormError
from octavo_engine.output_parsing.formats.tool import Tool
from octavo_engine.structured.grammar_check import check_grammar
from octavo_engine.structured.structural_tags import structural_tag_grammar

NESTED: dict[str, Any] = {
    "type": "object",
    "properties": {"people": {"type": "array", "items": {"$ref": "#/$defs/Person"}}, "const": {"$ref": "#/$defs/Age"}},
    "required": ["people"],
    "$defs": {
        "Person": {
            "type": "object",
            "properties": {
                "age": {"$ref": "#/$defs/Age"},
                "children": {"type": "array", "items": {"$ref": "#/$defs/Person"}},
            },
            "required": ["age"],
            "additionalProperties": False,
        },
        "Age": {"type": "integer", "default": {"$ref": "#/nowhere"}},
    },
}
TREE = {"type": "object", "properties": {"leaves": {"type": "array", "items": {"$ref": "#"}}}}
ANY = {"type": "object", "additionalProperties": True}
NUMBERS = {"type": "object", "additionalProperties": {"type": "integer"}}
LOOSE = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["b"]}
EITHER = {"type": "object", "anyOf": [{"properties": {"a": {"type": "integer"}}}, {"required": ["b"]}]}
TEXTS = {
    "type": "object",
    "properties": {
        "short": {"type": "string", "minLength": 2, "maxLength": 4},
        "any": {"type": "string"},
        "one": {"type": "string", "enum": ["red", "dark red"]},
        "yes": {"type": "boolean"},
    },
    "required": ["short"],
    "additionalProperties": False,
}
STRICT = {"type": "object", "properties": {"day": {"type": "string", "format": "date"}}}
VARIANTS = [
    *((name, "") for name in FORMATS), ("forced", ""), ("deepseek_v3", "```json"), ("mistral", "[ARGS]"),
    ("mistral", "[CALL_ID][ARGS]"),
]  # fmt: skip
"""Formats, with what a chat template has of their variants."""


def grammar_of(name: str, tools: list[Tool], template: str = "", *, several: bool = True) -> str:
    format_ = FORCED if name == "forced" else FORMATS[name]
    grammar = structural_tag_grammar(format_.calls(tools, template, several=several))
    check_grammar(grammar)
    return grammar


class Grammar:
    """A compiled grammar of calls."""

    def __init__(self, grammar: str, tokens: LLTokenizer) -> None:
        self._matcher, self._tokens = LLMatcher(tokens, grammar), tokens
        assert not self._matcher.is_error(), self._matcher.get_error()

    def allows(self, text: str) -> bool:
        """Whether the text is complete under the grammar."""
        ids = self._tokens.tokenize_str(text)
        self._matcher.reset()
        return self._matcher.try_consume_tokens(ids) == len(ids) and self._matcher.is_accepting()


SHAPES = {
    "hermes": '<tool_call>\n{"name": "FUNCTION", "arguments": JSON}\n</tool_call>',
    "qwen3_coder": "<tool_call>\n<function=FUNCTION>\nLINES</function>\n</tool_call>",
    "glm45": "<tool_call>FUNCTION\nLINES</tool_call>",
    "deepseek_v3": "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>FUNCTION<｜tool▁sep｜>JSON<｜tool▁call▁end｜>"
    "<｜tool▁calls▁end｜>",
    "deepseek_v3```json": "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>FUNCTION\n```json\nJSON"
    "\n```<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
    "mistral": '[TOOL_CALLS] [{"name": "FUNCTION", "arguments": JSON}]',
    "mistral[ARGS]": "[TOOL_CALLS]FUNCTION[ARGS]JSON",
    "mistral[CALL_ID][ARGS]": "[TOOL_CALLS]FUNCTION[CALL_ID]abcDEF123[ARGS]JSON",
    "llama3_json": '{"name": "FUNCTION", "parameters": JSON}',
    "pythonic": "[FUNCTION(LINES)]",
    "olmo3": "<function_calls>\nFUNCTION(LINES)\n</function_calls>",
    "openai": "<|channel|>analysis<|message|>Which < one?<|end|><|start|>assistant<|channel|>commentary "
    "to=functions.FUNCTION <|constrain|>json<|message|>JSON",
    "forced": '[{"name": "FUNCTION", "arguments": JSON}]',
}
"""One call as a format writes it, with the texts around all calls."""
LINES = {
    "qwen3_coder": "<parameter=KEY>\nVALUE\n</parameter>\n",
    "glm45": "<arg_key>KEY</arg_key>\n<arg_value>VALUE</arg_value>\n",
    "pythonic": "KEY=VALUE",
    "olmo3": "KEY=VALUE",
}
"""One argument, in the formats that write them one by one."""


def written(name: str, template: str, tool: str, arguments: dict[str, Any]) -> str:
    """The text of a call in a format."""
    lines = []
    for key, value in arguments.items():
        text = json.dumps(value)
        if name in ("pythonic", "olmo3"):
            text = {"true": "True"}.get(text, text)
        elif isinstance(value, str):
            text = value
        lines.append(LINES.get(name, "").replace("KEY", key).replace("VALUE", text))
    shape = SHAPES[name + template].replace("FUNCTION", tool)
    return shape.replace("LINES", (", " if name in ("pythonic", "olmo3") else "").join(lines)).replace(
        "JSON", json.dumps(arguments)
    )


TWO = {
    "hermes": "\n", "qwen3_coder": "\n", "glm45": "\n", "deepseek_v3": "<｜tool▁calls▁end｜><｜tool▁calls▁begin｜>",
    "deepseek_v3```json": "<｜tool▁calls▁end｜><｜tool▁calls▁begin｜>", "mistral": "][TOOL_CALLS] [", "forced": "][",
    "llama3_json": "; ", "pythonic": "][", "mistral[ARGS]": "", "mistral[CALL_ID][ARGS]": "",
    "olmo3": "\n</function_calls><function_calls>\n",
}  # fmt: skip
"""What comes between two calls that are each written alone; the texts around all calls are replaced by a separator."""


def two(name: str, template: str, first: str, second: str) -> str:
    """Two answers of one call each as one answer of two calls."""
    seam = TWO[name + template]
    kept = {"deepseek_v3": "\n" if template else "", "mistral": "" if template else ", ", "forced": ", ",
            "pythonic": ", ", "olmo3": "\n"}.get(name)  # fmt: skip
    return first + seam + second if kept is None else (first + second).replace(seam, kept)


def read(name: str, text: str, tools: list[Tool]) -> list[tuple[str, Any]]:
    parts = AnswerParts(AnswerForm(format=name, tools=tuple(tools)))
    for character in text:
        parts.push(character, last=False)
    parts.push("", last=True)
    assert all(part.kind == "call" or (name == "openai" and part.kind == "reasoning") for part in parts.parts)
    return [(call.name, json.loads(call.text)) for call in parts.calls]


CALLS: list[tuple[str, dict[str, Any], bool]] = [
    ("do.it-2", {"short": "a c", "any": "a <b> {c}", "one": "dark red", "yes": True}, True),
    ("do.it-2", {"short": "12"}, True),
    ("do.it-2", {"any": "x"}, False),
    ("do.it-2", {"short": "1"}, False),
    ("do.it-2", {"short": "12345"}, False),
    ("do.it-2", {"short": "ab", "one": "blue"}, False),
    ("do.it-2", {"short": "ab", "made_up": 1}, False),
    ("now", {}, True),
    ("now", {"short": "ab"}, False),
    ("meet", {"people": [{"age": 3, "children": [{"age": 1}]}], "const": 7}, True),
    ("meet", {"people": [{"age": 3, "children": [{}]}]}, False),
    ("any", {"a": 1, "b": "x <y>", "c": [True]}, True),
    ("any", {}, True),
    ("other", {}, False),
]
"""Calls, and whether their schema allows them."""


FAULTS: list[dict[str, Any]] = [
    {"properties": {"a": {"type": "integer"}}, "required": required} for required in (None, 5, "a", [["a"]])
]
FAULTS_OF_TEXTS: list[dict[str, Any]] = [
    {"properties": {"a": {"type": "string", **fault}}}
    for fault in ({"enum": 5}, {"enum": []}, {"enum": None}, {"minLength": "5"}, {"maxLength": -1}, {"minLength": True})
]
COPIED: dict[str, Any] = {
    "properties": {f"argument_{number}": {"$ref": "#/$defs/one"} for number in range(400)},
    "$defs": {"one": {"type": "integer"}},
}
"""A schema that each of its arguments would need a copy of."""


@pytest.mark.parametrize(("name", "template"), VARIANTS)
def test_calls_follow_their_schemas_in_each_format(name: str, template: str, tokens: LLTokenizer) -> None:
    tools = [Tool("now"), Tool("do.it-2", TEXTS), Tool("meet", NESTED), Tool("any", ANY)]
    several = Grammar(grammar_of(name, tools, template), tokens)
    for tool, arguments, allowed in CALLS:
        text = written(name, template, tool, arguments)
        assert several.allows(text) == allowed, text
        if allowed:
            assert read(name, text, tools) == [(tool, arguments)]
    one = Grammar(grammar_of(name, tools[1:2], template, several=False), tokens)
    texts = [written(name, template, tool, arguments) for tool, arguments, _ in (CALLS[7], CALLS[1])]
    assert [one.allows(text) for text in texts] == [False, True]
    if name != "openai":  # the first call ends such an answer
        text = two(name, template, *texts)
        assert (several.allows(text), one.allows(two(name, template, texts[1], texts[1]))) == (True, False), text
        assert read(name, text, tools) == [("now", {}), ("do.it-2", {"short": "12"})]
        most = functools.reduce(functools.partial(two, name, template), texts[1:] * MOST_CALLS)
        assert (several.allows(most), several.allows(two(name, template, most, texts[1]))) == (True, False)
    assert not several.allows(f"Well. {texts[0]}") and not several.allows("")


@pytest.mark.parametrize("name", ["qwen3_coder", "glm45", "pythonic"])
@pytest.mark.parametrize("parameters", [STRICT, NUMBERS, LOOSE, EITHER, *FAULTS, *FAULTS_OF_TEXTS, COPIED])
def test_what_plain_text_cannot_follow_has_no_form(name: str, parameters: dict[str, Any]) -> None:
    if name == "pythonic" and parameters in (STRICT, *FAULTS_OF_TEXTS):
        return  # its strings are JSON, and a fault in their schema is found when the grammar is compiled
    with pytest.raises(NoFormError):
        FORMATS[name].calls([Tool("f", parameters)], "", several=True)


THOUGHT = "<|channel|>analysis<|message|>to=functions.f{}<|end|><|start|>assistant"
FINAL = "<|channel|>final<|message|>"
F_JSON, G_JSON = '{"name": "f", "parameters": {"short": "ab"}}', '{"name": "g", "parameters": {}}'
MIXED: dict[str, tuple[dict[str, list[str]], list[str]]] = {
    "llama3_json": (
        {
            "": [], "So.": [], f"So: {F_JSON}": [], '{"id": 1, "name": "Ann"}': [], '{"name": "go"}': [],
            "So. <|python_ta": [], F_JSON: ["f"], f"\n{F_JSON}; {G_JSON}": ["f", "g"], f"<|python_tag|>{F_JSON}": ["f"],
            f'{{"name": "Ann"}} <|python_tag|>{G_JSON}; {F_JSON}': ["g", "f"],
            '{"name": "g", "parameters": {"a": 1}}': ["g"],
        },
        ['{"name": "f"}', F_JSON.replace("short", "long"), '{ "type": "function", "name" : "f", "parameters": {}}',
         f'<|python_tag|>{F_JSON.replace("ab", "a")}', "<|python_tag|>So.", f"So. <|python_tag|>{F_JSON} So."],
    ),
    "pythonic": (
        {
            "": [], "So.": [], '[1, 2], [f(short="a")]': [], 'So: [f(short="a")]': [], "[f](https://x)": [],
            "[fx(1)] [go()]": [], '[f(short="ab"), g(a=[1], b=None)]': ["f", "g"], "\n[g()]": ["g"],
            '<|python_start|>[f(short="ab")]<|python_end|>': ["f"], 'So.<|python_tag|>[f(short="ab")]': ["f"],
        },
        ['[f(short="a")]', "[f()]", "[ f ()]", '[#x\n(f)(short="a")]', '<|python_start|>[f(short="a")]', "[g(), f()]"],
    ),
    "openai": (
        {
            f"{FINAL}So.": [], f"{THOUGHT}{FINAL}to=functions.f": [],
            "<|channel|>final <|constrain|>json<|message|>{}": [],
            f"{THOUGHT}<|channel|>commentary<|message|>So.<|end|><|start|>assistant"
            '<|channel|>commentary to=functions.f <|constrain|>json<|message|>{"short": "ab"}': ["f"],
            ' to=functions.g<|channel|>commentary json<|message|>{"a": 1}': ["g"],
        },
        ["So.", '<|channel|>commentary to=functions.f json<|message|>{"short": "a"}', f"{THOUGHT}So.",
         ' to=functions.f<|channel|>commentary json<|message|>{}', "<|channel|>analysis to=functions.f<|message|>{}"],
    ),
}  # fmt: skip
"""Texts that may be answers of a format without a marker for calls, with the calls in them; and texts that may not."""


@pytest.mark.parametrize("name", MIXED)
def test_text_may_be_an_answer_and_calls_in_it_follow_their_schemas(name: str, tokens: LLTokenizer) -> None:
    tools, format_ = [Tool("f", TEXTS), Tool("g", ANY)], FORMATS[name]
    form = format_.text_or_calls(tools, "", several=True, unless="<think>")
    grammar, (allowed, refused) = Grammar(structural_tag_grammar(form), tokens), MIXED[name]
    for text, calls in allowed.items():
        assert grammar.allows(text), text
        parts = AnswerParts(AnswerForm(format=name, tools=tuple(tools)))
        parts.push(text, last=True)
        assert [call.name for call in parts.calls] == calls, text
    assert [text for text in ("<think>", *refused) if grammar.allows(text)] == []


def test_a_list_of_calls_may_be_long() -> None:
    """What is read without Python's parser takes a time that grows with its length alone."""
    assert read("pythonic", f'[now(a="{"x" * 70_000}")]', [Tool("now")]) == [("now", {"a": "x" * 70_000})]


CONTROL = {
    "[TOOL_CALLS]": 5, "[ARGS]": 6, "<|end|>": 7, "<|channel|>": 8, "<|message|>": 9, "</arg_value>": 10,
    "<|start|>": 11, "<|python_tag|>": 12, "<|python_start|>": 13, "<|python_end|>": 14, "<|constrain|>": 15,
}  # fmt: skip
CALL: list[str | int] = [8, "commentary to=functions.f ", 15, "json", 9, '{"short": "ab"}']


@pytest.mark.parametrize(
    ("name", "template", "parts", "demanded"),
    [
        ("mistral", "[ARGS]", [5, "f", 6, '{"short": "ab"}'], True),
        ("openai", "", [8, "analysis", 9, "So <|end|> so", 7, 11, "assistant", *CALL], True),
        ("openai", "", [8, "commentary", 9, "So", 7, 11, "assistant", *CALL], False),
        ("glm45", "", ["<tool_call>f\n<arg_key>short</arg_key><arg_value>ab", 10, "</tool_call>"], True),
        ("llama3_json", "", ['<|python_tag|> {"name": "x"}', 12, F_JSON], False),
        ("pythonic", "", [13, '[f(short="ab")]', 14], False),
    ],
)  # fmt: skip
def test_a_marker_is_the_control_token_of_its_text(
    name: str, template: str, parts: list[str | int], demanded: bool, tokens: LLTokenizer
) -> None:
    """Control tokens are never the text of a grammar, so a model could not begin a call without them."""
    tools, format_ = [Tool("f", TEXTS)], FORMATS[name]
    demanded_form = format_.calls(tools, template, several=True)
    for form, allowed in ((demanded_form, demanded), (format_.text_or_calls(tools, template, several=True), True)):
        matcher = LLMatcher(tokens, structural_tag_grammar(form, CONTROL.get))
        ids = [id_ for part in parts for id_ in ([part] if isinstance(part, int) else tokens.tokenize_str(part))]
        assert (matcher.try_consume_tokens(ids) == len(ids) and matcher.is_accepting()) == allowed


@pytest.mark.parametrize("others", [[], [Tool("now")]], ids=["alone", "beside another"])
@pytest.mark.parametrize(
    ("parameters", "arguments", "allowed"),
    [
        (NESTED, '{"people": [{"age": 3, "children": [{"age": 1}]}]}', True),
        (NESTED, '{"people": [{"age": "3"}]}', False),
        (NESTED, '{"people": [{"age": 3, "children": [{}]}]}', False),
        (NESTED, '{"people": [], "const": 7}', True),
        (NESTED, '{"people": [], "const": "7"}', False),
        (NESTED, '{"people": [], "made_up": 7}', False),
        ({"$id": "https://example.com/a", **TREE}, '{"leaves": [{"leaves": []}]}', True),
        (TREE, '{"leaves": [{"leaves": 5}]}', False),
        (ANY, '{"made_up": 7}', True),
        (LOOSE, '{"b": 7}', True),
        (EITHER, '{"b": 7}', True),
        ({}, "{}", True),
        ({}, '{"made_up": 7}', False),
    ],
)  # fmt: skip
def test_arguments_follow_their_own_schema(
    parameters: dict[str, Any], arguments: str, allowed: bool, others: list[Tool], tokens: LLTokenizer
) -> None:
    """References within a tool's schema mean that schema, and a list of arguments is all of them."""
    text = f'[{{"name": "f", "arguments": {arguments}}}]'
    assert Grammar(grammar_of("forced", [*others, Tool("f", parameters)]), tokens).allows(text) == allowed
