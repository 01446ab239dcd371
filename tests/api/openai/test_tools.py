"""Tools in a chat: the prompt that describes them, and calls in answers as the openai SDK reads them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import msgspec
import pytest
from llguidance import LLMatcher
from openai import BadRequestError, OpenAI

from octavo_engine.output_parsing.answer_form import AnswerForm
from octavo_engine.output_parsing.formats.argument_forms import arguments_of, takes_anything
from octavo_engine.output_parsing.formats.hermes import HERMES
from octavo_engine.output_parsing.formats.tool import Tool
from octavo_engine.server.errors import APIError
from octavo_engine.server.openai.answers.chat_answer import ChatAnswer
from octavo_engine.server.openai.preparation.prepare_chat import prepare
from octavo_engine.server.preparation.loaded_model import LoadedModel
from octavo_engine.structured.grammar import json_schema_grammar
from octavo_engine.structured.structural_tags import structural_tag_grammar
from octavo_engine.structured.vocabulary import vocabulary
from octavo_engine.text.chat_template import ChatTemplate
from octavo_engine.text.tokenizer import Tokenizer
from tests.api.scripted_engine import READY
from tests.api.served import Served

CHAT = "/v1/chat/completions"
PARAMETERS = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
WEATHER: Any = {"type": "function", "function": {"name": "weather", "description": "Rain?", "parameters": PARAMETERS}}
NOW: Any = {"type": "function", "function": {"name": "now"}}
ASK: Any = [{"role": "user", "content": "Will it rain in Paris?"}]
CALLS = (
    'Let me see.\n<tool_call>\n{"name": "weather", "arguments": {"city": "Paris"}}\n</tool_call>\n'
    '<tool_call>\n{"name": "now", "arguments": {}}\n</tool_call>'
)
BOTH = [("weather", '{"city": "Paris"}'), ("now", "{}")]
ALLOWED: Any = {
    "type": "allowed_tools",
    "allowed_tools": {"mode": "required", "tools": [{"type": "function", "function": {"name": "weather"}}]},
}
FORCED = '<tool_call>\n{"name": "weather", "arguments": {"city": "Rome"}}\n</tool_call>'


@pytest.fixture
def client(server: Served) -> OpenAI:
    return OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0)


def ask(client: OpenAI, **options: Any) -> Any:
    return client.chat.completions.create(model="smollm2", **{"messages": ASK, "tools": [WEATHER, NOW], **options})


def calls_of(message: Any) -> list[tuple[str, str]]:
    return [(call.function.name, call.function.arguments) for call in message.tool_calls or ()]


def streamed(chunks: Sequence[Any]) -> tuple[str, list[tuple[str, str, str]], list[str]]:
    """Content, calls (id, name, arguments) and the reasons to end, put together as SDKs do."""
    content, calls, reasons = "", {}, []
    for chunk in chunks:
        [choice] = chunk.choices
        content += choice.delta.content or ""
        reasons += [choice.finish_reason] if choice.finish_reason else []
        for call in choice.delta.tool_calls or ():
            known = calls.setdefault(call.index, ["", "", ""])
            known[0] += call.id or ""
            known[1] += call.function.name or ""
            known[2] += call.function.arguments or ""
    return content, [tuple(call) for call in calls.values()], reasons  # type: ignore[misc]


def test_calls_beside_content(server: Served, client: OpenAI) -> None:
    server.play(CALLS)
    [choice] = ask(client).choices
    assert (choice.message.content, choice.finish_reason) == ("Let me see.", "tool_calls")
    assert calls_of(choice.message) == BOTH
    ids = [call.id for call in choice.message.tool_calls]
    assert len(set(ids)) == 2 and all(each.startswith("call_") for each in ids)


def test_streamed_calls_are_the_same(server: Served, client: OpenAI) -> None:
    server.play(CALLS)
    chunks = list(ask(client, stream=True))
    content, calls, reasons = streamed(chunks)
    assert (content, [call[1:] for call in calls], reasons) == ("Let me see.", BOTH, ["tool_calls"])
    assert all(call[0].startswith("call_") for call in calls)
    pieces = [each for chunk in chunks for each in chunk.choices[0].delta.tool_calls or ()]
    firsts = [each for each in pieces if each.id]
    assert [(each.index, each.type, each.function.arguments) for each in firsts] == [
        (0, "function", ""),
        (1, "function", ""),
    ]
    assert len([each for each in pieces if each.index == 0]) > 2, "arguments come as they are written"


def test_calls_alone_have_no_content(server: Served, client: OpenAI) -> None:
    server.play('<tool_call>{"name": "now", "arguments": {}}</tool_call>')
    [choice] = ask(client).choices
    assert (choice.message.content, calls_of(choice.message)) == (None, [("now", "{}")])


def test_text_without_a_call_is_text(server: Served, client: OpenAI) -> None:
    server.play("It <will> rain.")
    [choice] = ask(client).choices
    assert (choice.message.content, choice.message.tool_calls, choice.finish_reason) == (
        "It <will> rain.",
        None,
        "stop",
    )
    assert streamed(list(ask(client, stream=True)))[0] == "It <will> rain."


def test_without_tools_nothing_is_read_as_a_call(server: Served, client: OpenAI) -> None:
    server.play(CALLS)
    for options in ({"tools": []}, {"tool_choice": "none"}):
        [choice] = ask(client, **options).choices
        assert (choice.message.content, choice.message.tool_calls) == (CALLS, None)


def test_only_one_call_without_parallel_ones(server: Served, client: OpenAI) -> None:
    server.play(CALLS)
    [choice] = ask(client, parallel_tool_calls=False).choices
    assert calls_of(choice.message) == BOTH[:1]
    assert len(streamed(list(ask(client, parallel_tool_calls=False, stream=True)))[1]) == 1


@pytest.mark.parametrize(
    ("choice", "parallel", "tools", "reason"),
    [
        ("required", None, ["weather", "now"], "tool_calls"),
        ("required", False, ["weather", "now"], "tool_calls"),
        ({"type": "function", "function": {"name": "weather"}}, None, ["weather"], "stop"),
        (ALLOWED, None, ["weather"], "tool_calls"),
    ],
)
def test_a_demanded_call_is_held_to_its_schema(
    server: Served, client: OpenAI, choice: Any, parallel: bool | None, tools: list[str], reason: str
) -> None:
    server.play(FORCED)
    options = {} if parallel is None else {"parallel_tool_calls": parallel}
    [answer] = ask(client, tool_choice=choice, **options).choices
    assert (calls_of(answer.message), answer.finish_reason) == ([("weather", '{"city": "Rome"}')], reason)
    assert answer.message.content is None
    known = {"weather": Tool("weather", PARAMETERS), "now": Tool("now")}
    several = choice in ("required", ALLOWED) and parallel is not False
    form = HERMES.calls([known[name] for name in tools], "", several=several)
    assert server.engine.requests[-1].sampling.grammar == structural_tag_grammar(form)
    content, calls, reasons = streamed(list(ask(client, tool_choice=choice, stream=True)))
    assert (content, calls[0][1:], reasons) == ("", ("weather", '{"city": "Rome"}'), [reason])


def test_the_prompt_has_only_the_allowed_tools(server: Served, client: OpenAI) -> None:
    choice = {"type": "allowed_tools", "allowed_tools": {**ALLOWED["allowed_tools"], "mode": "auto"}}
    server.play(CALLS)
    [answer] = ask(client, tool_choice=choice).choices
    assert calls_of(answer.message)[:1] == BOTH[:1]
    asked = server.engine.requests[-1]
    prompt = server.tokenizer.decode(asked.prompt_token_ids)
    assert asked.sampling.grammar is None and "weather" in prompt and '"now"' not in prompt
    with pytest.raises(BadRequestError, match="no tool 'weather'"):
        ask(client, tools=[NOW], tool_choice=choice)


def test_the_prompt_has_tools_calls_and_results(server: Served, client: OpenAI) -> None:
    """SmolLM2's template knows no tools: they stand in its system message."""
    call: Any = {"id": "call_1", "type": "function", "function": {"name": "weather", "arguments": '{"city": "Paris"}'}}
    history: Any = [
        {"role": "system", "content": "Be brief."},
        *ASK,
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "call_1", "content": "Yes."},
    ]
    ask(client, messages=history)
    prompt = server.tokenizer.decode(server.engine.requests[-1].prompt_token_ids, skip_special_tokens=False)
    assert prompt.count("<|im_start|>system") == 1 and "Be brief.\n\nYou may call one or more functions" in prompt
    assert json.dumps(WEATHER) in prompt and json.dumps(NOW) in prompt
    assert '<tool_call>\n{"name": "weather", "arguments": {"city": "Paris"}}\n</tool_call>' in prompt
    assert "<|im_start|>user\n<tool_response>\nYes.\n</tool_response>" in prompt
    answer = server.http.post("/tokenize", json={"messages": history, "tools": [WEATHER, NOW]})
    assert tuple(answer.json()["tokens"]) == server.engine.requests[-1].prompt_token_ids


def test_a_call_with_half_a_surrogate_pair_can_be_sent_back(server: Served, client: OpenAI) -> None:
    call = '<tool_call>{"name": "weather", "arguments": {"city": "a\\ud800b \\ud83d\\ude00"}}</tool_call>'
    server.play(call)
    message = ask(client).choices[0].message
    assert message.tool_calls[0].function.arguments.count("\\ud800") == 1
    ask(client, messages=[*ASK, message, {"role": "tool", "tool_call_id": message.tool_calls[0].id, "content": "Yes"}])
    prompt = server.tokenizer.decode(server.engine.requests[-1].prompt_token_ids, skip_special_tokens=False)
    assert '"arguments": {"city": "a\ufffdb \U0001f600"}' in prompt


WRONG: dict[str, tuple[dict[str, Any], str]] = {
    "no tool of that name": (
        {"tools": [NOW], "tool_choice": {"type": "function", "function": {"name": "weather"}}},
        "tool_choice",
    ),
    "nothing to choose from": ({"tool_choice": "required"}, "tool_choice"),
    "the same name twice": ({"tools": [NOW, NOW]}, "tools"),
    "no function": ({"tools": [{"type": "function"}]}, "tools[0].function"),
    "another kind": ({"tools": [{"type": "retrieval"}]}, "tools[0].type"),
    "no name": ({"tools": [{"type": "function", "function": {"name": "a b"}}]}, "tools[0].function.name"),
    "no schema": (
        {"tools": [{"type": "function", "function": {"name": "f", "parameters": [1]}}]},
        "tools[0].function.parameters",
    ),
    "a schema of a text": (
        {"tools": [{"type": "function", "function": {"name": "f", "parameters": {"type": "string"}}}]},
        "tools[0].function.parameters",
    ),
    "a wrong schema": (
        {
            "tools": [
                {"type": "function", "function": {"name": "f", "parameters": {"properties": {"a": {"type": "x"}}}}}
            ],
            "tool_choice": "required",
        },
        "tools",
    ),
    "too many": ({"tools": [NOW] * 129}, "tools"),
    "another form as well": (
        {"tools": [NOW], "tool_choice": "required", "guided_json": {"type": "object"}},
        "tool_choice",
    ),
    "a call without arguments": (
        {
            "messages": [
                {"role": "assistant", "tool_calls": [{"id": "x", "type": "function", "function": {"name": "f"}}]}
            ]
        },
        "messages[0].tool_calls[0].function.arguments",
    ),
}


def test_a_form_of_the_content_does_not_matter_to_a_demanded_call(server: Served, client: OpenAI) -> None:
    """This is as in OpenAI's API; instructor asks for both."""
    server.play(FORCED)
    form = {"type": "json_schema", "json_schema": {"name": "other", "schema": {"type": "string"}}}
    [answer] = ask(client, tool_choice="required", response_format=form).choices
    assert calls_of(answer.message) == [("weather", '{"city": "Rome"}')]
    calls = HERMES.calls([Tool("weather", PARAMETERS), Tool("now")], "", several=True)
    assert server.engine.requests[-1].sampling.grammar == structural_tag_grammar(calls)


@pytest.mark.parametrize(
    ("form", "schema"),
    [
        ({"type": "json_object"}, {"type": "object"}),
        ({"type": "json_schema", "json_schema": {"name": "city", "schema": PARAMETERS}}, PARAMETERS),
    ],
)
def test_an_answer_of_a_form_may_be_calls_instead(
    server: Served, client: OpenAI, form: Any, schema: dict[str, Any], tokenizer: Tokenizer
) -> None:
    """Agents need it, as they call tools before they give their result."""
    tokens = vocabulary(tokenizer, tokenizer.vocab_size, [2])
    server.play(CALLS.removeprefix("Let me see.\n"))
    [choice] = ask(client, response_format=form).choices
    assert (calls_of(choice.message), choice.finish_reason, choice.message.content) == (BOTH, "tool_calls", None)
    matcher = LLMatcher(tokens, server.engine.requests[-1].sampling.grammar)
    for text, allowed in (
        ('{"city": "Rome"}', True),
        (CALLS.removeprefix("Let me see.\n"), True),
        ('<tool_call>{"name": "weather", "arguments": {"city": "Paris"}}</tool_call>', True),
        ("<tool_call>No.</tool_call>", False),
        ('<tool_call>{"name": "weather", "arguments": {"town": "Paris"}}</tool_call>', False),
        ("No.", False),
    ):
        ids = tokens.tokenize_str(text)
        taken = matcher.try_consume_tokens(ids)
        assert (taken == len(ids) and matcher.is_accepting()) == allowed, text
        matcher.reset()
    server.play('{"city": "Rome"}')
    [choice] = ask(client, response_format=form).choices
    assert (choice.message.content, choice.message.tool_calls, choice.finish_reason) == (
        '{"city": "Rome"}',
        None,
        "stop",
    )
    ask(client, response_format=form, tool_choice="none")
    assert server.engine.requests[-1].sampling.grammar == json_schema_grammar(schema)


def test_arguments_are_an_object_whatever_else_the_schema_allows(tokenizer: Tokenizer) -> None:
    """A call had `null` for its arguments, which SDKs do not read as an object."""
    schema = {"type": ["null", "object"], "properties": {}}
    tool = {"type": "function", "function": {"name": "f", "parameters": schema}}
    body = {"messages": ASK, "tools": [tool], "tool_choice": "required"}
    request = prepare(LoadedModel(READY, tokenizer), json.dumps(body).encode())
    expected = HERMES.calls([Tool("f", {"type": "object", "properties": {}})], "", several=True)
    assert request.sampling.grammar == structural_tag_grammar(expected)
    # So it is where a model writes arguments one by one.
    assert [*arguments_of(Tool("f", {**schema, "properties": {"a": {}}}))] == [("a", {}, False)]
    assert takes_anything(Tool("f", {"type": ["null", "object"], "additionalProperties": True}))


ODD: Any = {
    "type": "object",
    "properties": {
        "tags": {"type": "array", "items": {"enum": ["a", "b"]}, "uniqueItems": True},
        "size": {"oneOf": [{"type": "integer"}, {"minimum": 2, "type": "number"}]},
    },
    "required": ["tags"],
    "if": {"properties": {"size": {"const": 1}}}, "then": {"required": ["size"]},
}  # fmt: skip


@pytest.mark.parametrize("choice", ["required", {"type": "function", "function": {"name": "tag"}}, "auto"])
def test_what_no_grammar_can_enforce_is_left_to_the_model_unless_a_function_is_strict(
    choice: Any, tokenizer: Tokenizer
) -> None:
    """Servers of tools have such schemas. OpenAI enforces none of a schema that is not strict."""
    function = {"name": "tag", "parameters": ODD}
    asked = {"messages": ASK, "tools": [{"type": "function", "function": function}, NOW], "tool_choice": choice}
    if choice == "auto":
        asked["response_format"] = {"type": "json_object"}
    model = LoadedModel(READY, tokenizer)
    grammar = prepare(model, json.dumps(asked).encode()).sampling.grammar
    tokens = vocabulary(tokenizer, tokenizer.vocab_size, [2])
    for arguments, allowed in (
        ('{"tags": ["a", "a"], "size": 2}', True),
        ('{"tags": ["c"]}', False),
        ('{"tags": [], "size": "x"}', False),
        ("{}", False),
    ):
        matcher = LLMatcher(tokens, grammar)
        ids = tokens.tokenize_str(f'<tool_call>\n{{"name": "tag", "arguments": {arguments}}}\n</tool_call>')
        assert (matcher.try_consume_tokens(ids) == len(ids)) == allowed, arguments
    strict = {**asked, "tools": [{"type": "function", "function": {**function, "strict": True}}, NOW]}
    with pytest.raises(APIError, match=r'^tools: the arguments of tag: .*"if", "then"'):
        prepare(model, json.dumps(strict).encode())


@pytest.mark.parametrize("place", [0, 1, 4])
def test_the_tool_whose_schema_is_wrong_is_named_with_its_own_paths(server: Served, place: int) -> None:
    functions = [{"name": f"f{each}", "parameters": PARAMETERS} for each in range(5)]
    functions[place] = {"name": "lost", "parameters": {"type": "object", "properties": {"a": {"$ref": "#/$defs/a"}}}}
    tools = [{"type": "function", "function": each} for each in functions]
    answer = server.http.post(CHAT, json={"messages": ASK, "tools": tools, "tool_choice": "required"})
    assert answer.json()["error"]["message"] == (
        "tools: the arguments of lost: a $ref leads to '/$defs/a', which the schema does not have"
    )


@pytest.mark.parametrize("name", WRONG)
def test_what_is_wrong_is_named(server: Served, name: str) -> None:
    fields, param = WRONG[name]
    answer = server.http.post(CHAT, json={"messages": ASK, **fields})
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, param)
    assert "start: " not in answer.text  # the grammar into which the server put the schema
    assert server.engine.requests == []


THINKING = "{% if tools %}<tool_call>{% endif %}{% for m in messages %}{{ m.content }}{% endfor %}</think><think>\n"
OFF = THINKING + "\n</think>\n\n"
HARMONY = "{% if tools %}x{% endif %}<|channel|>analysis<|message|>"
LLAMA = '{% if tools %}"parameters"{% endif %}<|eom_id|>'
SILENT = "{{ tools }}"
CODER = "{% if tools %}<tool_call><function={% endif %}"
DATE: Any = {"type": "object", "properties": {"day": {"type": "string", "format": "date"}}}
DAY: Any = {"type": "function", "function": {"name": "day", "parameters": DATE}}
"""A tool whose argument Qwen3-Coder's plain text cannot hold to its format."""
STRICT_DAY: Any = {"type": "function", "function": {**DAY["function"], "strict": True}}


@pytest.mark.parametrize(
    ("template", "fields", "form"),
    [
        (THINKING, {}, AnswerForm(reasons=True, begun=True)),
        (OFF, {}, AnswerForm(reasons=True)),
        (THINKING, {"tools": [NOW]}, AnswerForm(format="hermes", tools=(Tool("now"),), reasons=True, begun=True)),
        (THINKING, {"response_format": {"type": "json_object"}}, AnswerForm()),
        (HARMONY, {}, AnswerForm(format="openai")),
        (HARMONY, {"tools": [NOW]}, AnswerForm(format="openai", tools=(Tool("now"),))),
        (HARMONY, {"guided_regex": "a+"}, AnswerForm()),
        (SILENT, {}, AnswerForm()),
        (
            SILENT,
            {"tools": [NOW], "tool_choice": "required"},
            AnswerForm(format="forced", tools=(Tool("now"),), demanded=True),
        ),
        (
            HARMONY,
            {"tools": [NOW], "tool_choice": "required"},
            AnswerForm(format="openai", tools=(Tool("now"),), demanded=True),
        ),
        (
            THINKING,
            {"tools": [NOW], "tool_choice": "required", "parallel_tool_calls": False},
            AnswerForm(format="hermes", tools=(Tool("now"),), reasons=True, begun=True, single=True, demanded=True),
        ),
        (
            CODER,
            {"tools": [DAY], "tool_choice": "required"},
            AnswerForm(format="forced", tools=(Tool("day", DATE),), demanded=True),
        ),
    ],
)
def test_the_template_decides_how_an_answer_is_read(
    template: str, fields: dict[str, Any], form: AnswerForm, tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tokenizer, "chat_template", ChatTemplate(template, {}))
    prepared = prepare(LoadedModel(READY, tokenizer), json.dumps({"messages": ASK, **fields}).encode())
    assert prepared.form == form
    assert prepared.text.skip_special_tokens == (form.format in (None, "forced"))


CALL = '<tool_call>{"name": "now", "arguments": {}}</tool_call>'
STRICT: Any = {**WEATHER, "function": {**WEATHER["function"], "strict": True}}
AUTO = {"tools": [STRICT, NOW]}
RIGHT = FORCED
WRONG_CALL = RIGHT.replace("city", "town")
LOOSE = '<tool_call>{"name": "now", "arguments": {"zone": [1]}}</tool_call>'
XML = "<tool_call>\n<function=weather>\n<parameter=city>\nRome\n</parameter>\n</function>\n</tool_call>"
LLAMA_CALL = '{"name": "weather", "parameters": {"city": "Rome"}}'
REQUIRED = {"tools": [NOW], "tool_choice": "required"}
EITHER = {"tools": [NOW], "response_format": {"type": "json_object"}}


@pytest.mark.parametrize(
    ("template", "fields", "allowed", "refused"),
    [
        (THINKING, REQUIRED, [f"So <so>.\n</think>\n\n{CALL}"], [CALL, "So.</think>{}", "So.</think>"]),
        (OFF, REQUIRED, [CALL], [f"So.</think>{CALL}", f"<think>So.</think>{CALL}"]),
        (THINKING + "!", REQUIRED, [CALL, f"<think>So.</think>\n{CALL}"], [f"So.</think>{CALL}"]),
        (THINKING, EITHER, [f"So.</think>{CALL}", 'So.</think>{"a": 1}'], [CALL, '{"a": 1}']),
        (OFF, EITHER, [CALL, '{"a": 1}'], ["So."]),
        (
            OFF,
            AUTO,
            ["So.", "", RIGHT, f"So. {RIGHT}\n{LOOSE}", "<tool_cal>"],
            [WRONG_CALL, f"So. {WRONG_CALL}", f"{RIGHT}\n{WRONG_CALL}", "<tool_call>No.", f"{RIGHT} So."],
        ),
        (THINKING, AUTO, [f"So <tool_call>.</think>\n{RIGHT}", "So.</think>Yes."], [f"So.</think>{WRONG_CALL}", "So."]),
        (
            THINKING + "!",
            AUTO,
            [f"<think>So <tool_call>.</think>{RIGHT}", "So.", RIGHT, f"So <think> {RIGHT}"],
            ["<think>So.", WRONG_CALL, f"<think>So.</think>{WRONG_CALL}"],
        ),
        (CODER, {"tools": [STRICT, STRICT_DAY]}, ["So.", f"So. {XML}"], ["<tool_call>", XML.replace("city", "town")]),
        (LLAMA, AUTO, ["So.", LLAMA_CALL], [LLAMA_CALL.replace("city", "town")]),
    ],
)
def test_calls_follow_their_schemas_behind_text_and_reasoning(
    template: str, fields: Any, allowed: list[str], refused: list[str], tokenizer: Tokenizer,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.setattr(tokenizer, "chat_template", ChatTemplate(template, {}))
    prepared = prepare(LoadedModel(READY, tokenizer), json.dumps({"messages": ASK, **fields}).encode())
    tokens = vocabulary(tokenizer, tokenizer.vocab_size, [2])
    matcher = LLMatcher(tokens, prepared.sampling.grammar)
    for text in (*allowed, *refused):
        matcher.reset()
        ids = tokens.tokenize_str(text)
        complete = matcher.try_consume_tokens(ids) == len(ids) and matcher.is_accepting()
        assert complete == (text in allowed), text
        if complete:
            answer = ChatAnswer(prepared.form, tokenizer)
            answer.push(text, ids, last=True)
            message = answer.message()
            rome = ("weather", '{"city": "Rome"}')
            called = {CALL: ("now", "{}"), RIGHT: rome, LOOSE: ("now", '{"zone": [1]}'), XML: rome, LLAMA_CALL: rome}
            assert calls_of(message) == [call for written, call in called.items() if written in text]
            assert bool(message.reasoning_content) == ("</think>" in text)


def test_a_format_that_is_not_known_is_an_error_that_names_the_flag(
    tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tokenizer, "chat_template", ChatTemplate(SILENT, {}))
    body = json.dumps({"messages": ASK, "tools": [NOW]}).encode()
    with pytest.raises(APIError, match="--tool-call-parser"):
        prepare(LoadedModel(READY, tokenizer), body)
    prepared = prepare(LoadedModel(READY, tokenizer, "mistral"), body)
    assert prepared.form.format == "mistral"


def test_reasoning_is_apart_from_content_and_its_tokens_are_counted(tokenizer: Tokenizer) -> None:
    for pieces in (["<think>So", " so</th", "ink>\n\nYes."], ["<think>So so</think>\n\nYes."]):
        answer = ChatAnswer(AnswerForm(reasons=True), tokenizer)
        deltas = [
            delta
            for index, text in enumerate(pieces)
            for delta in answer.push(text, tokenizer.encode(text), last=index == len(pieces) - 1)
        ]
        thought = tokenizer.encode("".join(pieces).partition("</think>")[0])
        assert len(thought) <= answer.reasoning.count <= len(thought) + len(tokenizer.encode("</think>"))
        assert "".join(delta.reasoning_content or "" for delta in deltas if delta.reasoning) == "So so"
        message = answer.message()
        assert (message.content, message.reasoning_content, message.reasoning) == ("Yes.", "So so", "So so")


def test_reasoning_is_left_out_where_it_is_not_wanted(tokenizer: Tokenizer) -> None:
    body = json.dumps({"messages": ASK, "include_reasoning": False}).encode()
    assert prepare(LoadedModel(READY, tokenizer), body).form.hides_reasoning
    answer = ChatAnswer(AnswerForm(reasons=True, hides_reasoning=True), tokenizer)
    text = "<think>So so</think>Yes."
    [delta] = answer.push(text, tokenizer.encode(text), last=True)
    assert (delta.content, delta.reasoning) == ("Yes.", msgspec.UNSET)
    assert (answer.message().content, answer.message().reasoning) == ("Yes.", msgspec.UNSET)
    assert answer.reasoning.count > 0


def test_mistrals_ids_are_those_that_its_template_takes(tokenizer: Tokenizer) -> None:
    answer = ChatAnswer(AnswerForm(format="mistral", tools=(Tool("now"),)), tokenizer)
    answer.push("[TOOL_CALLS]now{}", (1, 2, 3), last=True)
    [call] = answer.message().tool_calls or []
    assert len(call.id) == 9 and call.id.isalnum() and answer.reasoning.count == 0
