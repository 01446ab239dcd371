"""Custom tools, whose input is a text, in chats and in the Responses API, through the real `openai` SDK."""

from __future__ import annotations

import json
from typing import Any
from unittest.mock import Mock

import pytest
from llguidance import LLMatcher
from openai import BadRequestError, OpenAI

from octavo_engine.output_parsing.answer_parts import AnswerParts
from octavo_engine.output_parsing.custom_input import CustomInput
from octavo_engine.server.errors import APIError
from octavo_engine.server.openai.preparation.prepare_chat import prepare
from octavo_engine.server.preparation.loaded_model import LoadedModel
from octavo_engine.server.preparation.prepared import Rejected, Task
from octavo_engine.server.text_worker import answer
from octavo_engine.structured import grammar_check
from octavo_engine.structured.grammar_check import CheckImpossibleError
from octavo_engine.structured.vocabulary import vocabulary
from octavo_engine.text.chat_template import ChatTemplate
from octavo_engine.text.tokenizer import Tokenizer
from tests.api.scripted_engine import READY
from tests.api.served import Served

CODE: Any = {"name": "run", "description": "Runs Python."}
NUMBER: Any = {"name": "dial", "format": {"type": "grammar", "grammar": {"syntax": "regex", "definition": r"^\d{3}$"}}}
NOW: Any = {"type": "function", "function": {"name": "now"}}
ASK: Any = [{"role": "user", "content": "Compute."}]
INPUT = 'print("1 + 1")\n\\ \u00e9 \U0001f600'
CALL = f'<tool_call>\n{{"name": "run", "arguments": {json.dumps({"input": INPUT})}}}\n</tool_call>'


def chat(client: OpenAI, **options: Any) -> Any:
    tools = [{"type": "custom", "custom": CODE}, {"type": "custom", "custom": NUMBER}, NOW]
    return client.chat.completions.create(model="smollm2", **{"messages": ASK, "tools": tools, **options})


def respond(client: OpenAI, **options: Any) -> Any:
    dial = {"type": "custom", "name": "dial", "format": {"type": "grammar", "syntax": "regex", "definition": r"\d{3}"}}
    tools: Any = [{"type": "custom", **CODE}, dial]
    return client.responses.create(model="smollm2", **{"input": "Compute.", "tools": tools, **options})


def prompt_of(server: Served) -> str:
    return server.tokenizer.decode(server.engine.requests[-1].prompt_token_ids, skip_special_tokens=False)


def test_a_call_has_its_input_as_text(server: Served) -> None:
    server.play(CALL)
    client = server.openai(_strict_response_validation=True)
    [choice] = chat(client).choices
    [call] = choice.message.tool_calls
    assert (choice.finish_reason, choice.message.content) == ("tool_calls", None)
    assert (call.type, call.custom.name, call.custom.input) == ("custom", "run", INPUT)
    assert call.id.startswith("call_")
    assert '"parameters": {"type": "object", "properties": {"input": {"type": "string"}}' in prompt_of(server)


def test_a_stream_has_the_same_input_in_pieces(server: Served) -> None:
    server.play(CALL)
    found = [choice.delta.tool_calls[0] for chunk in chat(server.openai(), stream=True)
             for choice in chunk.choices if choice.delta.tool_calls]  # fmt: skip
    first, *others = found
    assert (first.index, first.type, first.custom) == (0, "custom", {"name": "run", "input": ""})
    assert "".join(each.custom["input"] for each in others) == INPUT and len(others) > 3
    assert {each.function for each in found} == {None}


def test_a_second_turn_has_the_call_and_its_result(server: Served) -> None:
    server.play(CALL)
    message = chat(server.openai()).choices[0].message
    turns = [*ASK, message.to_dict(), {"role": "tool", "tool_call_id": message.tool_calls[0].id, "content": "2"}]
    server.play("It is 2.")
    assert chat(server.openai(), messages=turns).choices[0].message.content == "It is 2."
    called = json.dumps({"name": "run", "arguments": {"input": INPUT}}, ensure_ascii=False)
    assert f"<tool_call>\n{called}\n</tool_call>" in prompt_of(server)
    assert "<tool_response>\n2\n</tool_response>" in prompt_of(server)


def test_a_response_and_its_second_turn(server: Served) -> None:
    server.play(CALL)
    first = respond(server.openai(_strict_response_validation=True))
    [item] = first.output
    assert (item.type, item.name, item.input, item.status) == ("custom_tool_call", "run", INPUT, "completed")
    assert [tool.type for tool in first.tools] == ["custom", "custom"]
    turns = [{"role": "user", "content": "Compute."}, item.to_dict(),
             {"type": "custom_tool_call_output", "call_id": item.call_id, "output": "2"}]  # fmt: skip
    server.play("It is 2.")
    assert respond(server.openai(), input=turns).output_text == "It is 2."
    assert "<tool_response>\n2\n</tool_response>" in prompt_of(server)


def test_the_events_of_a_streamed_response(server: Served) -> None:
    server.play(CALL)
    with server.openai(_strict_response_validation=True).responses.stream(
        model="smollm2", input="Compute.", tools=[{"type": "custom", **CODE}]
    ) as stream:
        events: list[Any] = list(stream)
    kinds = [event.type for event in events]
    assert kinds[2] == "response.output_item.added" and events[2].item.input == ""
    assert set(kinds[3:-3]) == {"response.custom_tool_call_input.delta"}
    assert kinds[-3:] == [
        "response.custom_tool_call_input.done", "response.output_item.done", "response.completed"
    ]  # fmt: skip
    assert "".join(event.delta for event in events[3:-3]) == events[-3].input == events[-2].item.input == INPUT
    assert {event.item_id for event in events[3:-2]} == {events[-2].item.id}


CALLED = '<tool_call>\n{{"name": "{}", "arguments": {}}}\n</tool_call>'


@pytest.mark.parametrize(
    ("options", "taken", "refused"),
    [
        ({}, ["Hi", CALLED.format("dial", '{"input": "112"}'), CALLED.format("run", '{"input": "\\"1\\n"}')],
         [CALLED.format("dial", '{"input": "11"}'), CALLED.format("run", '{"code": "1"}')]),
        ({"tool_choice": {"type": "custom", "custom": {"name": "dial"}}}, [CALLED.format("dial", '{"input": "112"}')],
         ["Hi", CALLED.format("run", '{"input": "1"}'), CALLED.format("dial", '{"input": "1x2"}')]),
        ({"tool_choice": {"type": "allowed_tools", "allowed_tools": {"mode": "required", "tools": [
            {"type": "custom", "custom": {"name": "run"}}, {"type": "function", "function": {"name": "now"}}]}}},
         [CALLED.format("run", '{"input": "1"}'), CALLED.format("now", "{}")],
         ["Hi", CALLED.format("dial", '{"input": "112"}')]),
    ],
)  # fmt: skip
def test_a_grammar_holds_calls_to_their_form(
    server: Served, options: dict[str, Any], taken: list[str], refused: list[str]
) -> None:
    chat(server.openai(), **options)
    grammar = server.engine.requests[-1].sampling.grammar
    assert grammar is not None
    assert [text for text in taken if not accepts(server.tokenizer, grammar, text)] == []
    assert [text for text in refused if accepts(server.tokenizer, grammar, text)] == []


def accepts(tokenizer: Tokenizer, grammar: str, text: str) -> bool:
    tokens = vocabulary(tokenizer, READY.vocab_size, READY.eos_token_ids)
    matcher, written = LLMatcher(tokens, grammar), tokens.tokenize_str(text)
    return matcher.consume_tokens(written) and matcher.is_accepting()


LARK = 'start: term (" + " term)*\nterm: INT\n%import common.INT'


def lark_tool(name: str, text: str) -> Any:
    return {"name": name, "format": {"type": "grammar", "grammar": {"syntax": "lark", "definition": text}}}


ADD = lark_tool("add", LARK)


def test_an_input_follows_a_lark_grammar(server: Served) -> None:
    server.play("Let me see.\n<tool_call>\nadd\n1 + 23")
    tools = [{"type": "custom", "custom": ADD}, {"type": "custom", "custom": CODE}]
    [choice] = chat(server.openai(), tools=tools).choices
    [call] = choice.message.tool_calls
    assert (choice.message.content, call.custom.name, call.custom.input) == ("Let me see.", "add", "1 + 23")
    assert "A text of this Lark grammar:" in prompt_of(server)
    grammar = server.engine.requests[-1].sampling.grammar
    assert grammar is not None
    for text, taken in (
        ("Hi", True), ("<tool_call>\nadd\n1 + 23", True), ("<tool_call>\nadd\n1 +", False),
        (CALLED.format("run", '{"input": "1"}'), True),
        ('<tool_call>\n{"name": "add", "arguments": {"input": "1"}}\n</tool_call>', False),
    ):  # fmt: skip
        assert accepts(server.tokenizer, grammar, text) == taken, text
    deltas = [each for chunk in chat(server.openai(), tools=tools, stream=True)
              for each in chunk.choices[0].delta.tool_calls or ()]  # fmt: skip
    assert "".join(each.custom["input"] for each in deltas) == "1 + 23" and len(deltas) > 3


def test_an_input_of_a_lark_grammar_in_a_response(server: Served) -> None:
    server.play("<tool_call>\nadd\n1 + 23")
    form: Any = {"type": "grammar", "syntax": "lark", "definition": LARK}
    found = respond(server.openai(), tools=[{"type": "custom", "name": "add", "format": form}], tool_choice="required")
    assert [(item.type, item.input) for item in found.output] == [("custom_tool_call", "1 + 23")]
    assert found.tools[0].format.to_dict() == form


def test_lark_grammars_of_many_tools_are_checked_together_and_may_name_control_tokens(
    tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each had a limit of CPU time of its own, so one request could take a minute of it."""
    checked = Mock(wraps=grammar_check._error_in_child)
    monkeypatch.setattr(grammar_check, "_error_in_child", checked)
    texts = ['start: "x" <reponame>', 'start: "y"', 'start: "z"\n}\npart_0: "w"']
    tools = [lark_tool(f"f{number}", text) for number, text in enumerate(texts)]
    body = {"messages": ASK, "tool_choice": "required", "tools": [{"type": "custom", "custom": each} for each in tools]}
    model = LoadedModel(READY, tokenizer)
    with pytest.raises(APIError, match="expecting rule, token or statement"):
        prepare(model, json.dumps(body).encode())
    checked.reset_mock()
    del body["tools"][-1]
    assert accepts(tokenizer, prepare(model, json.dumps(body).encode()).sampling.grammar or "", "<tool_call>\nf1\ny")
    # Under load a check begins anew in a second child, of the same grammar.
    assert len({call.args[0] for call in checked.call_args_list}) == 1


def test_a_grammar_that_cannot_be_checked_now_is_503(tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch) -> None:
    failing = Mock(side_effect=CheckImpossibleError("no process"))
    monkeypatch.setattr(grammar_check, "_error_in_child", failing)
    body = {"messages": ASK, "guided_regex": "never asked for before"}
    found = answer(tokenizer, Task("chat", READY, json.dumps(body).encode()))
    assert isinstance(found, Rejected) and (found.status, found.message) == (503, "no process")


CODER = "{{ tools }}{{ messages }} <tool_call> <function="


def test_a_format_that_cannot_hold_an_input_to_its_grammar_says_so(
    tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tokenizer, "chat_template", ChatTemplate(CODER, {}))
    body = {"messages": ASK, "tools": [{"type": "custom", "custom": NUMBER}]}
    model = LoadedModel(READY, tokenizer)
    with pytest.raises(APIError, match="cannot hold the input of dial to its grammar; demand the call"):
        prepare(model, json.dumps(body).encode())
    demanded = prepare(model, json.dumps({**body, "tool_choice": "required"}).encode())
    assert demanded.form.format == "forced"
    free = prepare(model, json.dumps({**body, "tools": [{"type": "custom", "custom": CODE}]}).encode())
    assert free.form.format == "qwen3_coder" and free.sampling.grammar is not None
    body["tools"] = [{"type": "custom", "custom": ADD}]
    with pytest.raises(APIError, match="cannot hold the input of add to its grammar; demand the call"):
        prepare(model, json.dumps(body).encode())
    demanded = prepare(model, json.dumps({**body, "tool_choice": "required"}).encode())
    assert accepts(tokenizer, demanded.sampling.grammar or "", "add\n1 + 2")
    parts = AnswerParts(demanded.form)
    parts.push("add\n1 + ", last=False)
    parts.push('2 \\ "', last=True)
    assert [(part.name, part.text) for part in parts.calls] == [("add", '1 + 2 \\ "')]


@pytest.mark.parametrize(
    ("tool", "param"),
    [
        ({"type": "custom"}, "tools[0].custom"),
        ({"type": "custom", "custom": {"name": "a b"}}, "tools[0].custom.name"),
        ({"type": "custom", "custom": {"name": "f", "format": {"type": "xml"}}}, "tools[0].custom.format.type"),
        ({"type": "custom", "custom": {"name": "f", "format": {"type": "grammar"}}}, "tools[0].custom.format.grammar"),
        ({"type": "custom", "custom": {**NUMBER, "format": {"type": "grammar", "grammar": {
            "syntax": "regex", "definition": "("}}}}, "tools"),
        ({"type": "custom", "custom": {**NUMBER, "format": {"type": "grammar", "grammar": {
            "syntax": "lark", "definition": "start: ("}}}}, "tools"),
        ({"type": "web_search"}, "tools[0].type"),
    ],
)  # fmt: skip
def test_wrong_tools(server: Served, tool: dict[str, Any], param: str) -> None:
    with pytest.raises(BadRequestError) as caught:
        chat(server.openai(), tools=[tool])
    assert caught.value.param == param


@pytest.mark.parametrize("size", [1, 2, 3, 5, 100])
def test_an_input_is_decoded_as_it_comes(size: int) -> None:
    text = '"a" \\ / \u00e9\U0001f600\n\x01 end'
    for written in (json.dumps({"input": text}), json.dumps({"input": text}, ensure_ascii=False)):
        reader = CustomInput()
        pieces = [reader.push(written[at : at + size]) for at in range(0, len(written), size)]
        assert "".join(pieces) == text
    reader = CustomInput()
    halves = '{ "input" : "a\\ud83d\\u0041\\ude00\\ud83d."}'
    assert "".join(reader.push(halves[at : at + size]) for at in range(0, len(halves), size)) == "a\ufffdA\ufffd\ufffd."
    reader = CustomInput()
    wrong = r'{"input": "a\d\\d\u12g4\ud83d\udcg0\'"}' + "}"
    assert "".join(reader.push(wrong[at : at + size]) for at in range(0, len(wrong), size)) == (
        "a\\d\\d\\u12g4\ufffd\\udcg0\\'"
    )


def test_a_model_that_writes_an_invalid_escape_is_read_as_it_wrote(server: Served) -> None:
    """The answer was 500, and a stream ended with an error."""
    server.play(r'<tool_call>{"name": "run", "arguments": {"input": "re.split(\"\s+\")"}}</tool_call>')
    [choice] = chat(server.openai()).choices
    assert choice.message.tool_calls[0].custom.input == r're.split("\s+")'
