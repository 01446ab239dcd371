"""Answers drawn at random from masks alone: those that end follow their grammar, whatever the logits are."""

from __future__ import annotations

import json
import random
import re
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import pairwise
from threading import Event
from types import SimpleNamespace
from typing import Any, cast

import jsonschema
import numpy as np
import pytest
import torch
from llguidance import LLTokenizer

from octavo_engine.core.request import Request
from octavo_engine.engine.guided_requests import GuidedRequests
from octavo_engine.errors import NotAdmissibleError
from octavo_engine.recent_uses import RecentUses
from octavo_engine.sampling_params import SamplingParams
from octavo_engine.structured import grammars_in_use
from octavo_engine.structured.grammar import (
    GrammarError,
    choice_grammar,
    json_object_grammar,
    json_schema_grammar,
    lark_grammar,
    regex_grammar,
)
from octavo_engine.structured.grammar_masks import GrammarMasks
from octavo_engine.structured.mask_provider import MaskRow, RowMasks
from octavo_engine.structured.vocabulary import vocabulary
from octavo_engine.text.tokenizer import Tokenizer
from tests.structured.conftest import ENDS
from tests.structured.random_schemas import random_schema

PERSON: dict[str, Any] = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 12},
        "age": {"type": "integer", "minimum": 0, "maximum": 150},
        "email": {"type": "string", "format": "email", "maxLength": 40},
        "tags": {"type": "array", "items": {"enum": ["a", "b", "ü"]}, "maxItems": 3},
        "home": {"anyOf": [{"type": "null"}, {"$ref": "#/$defs/place"}]},
    },
    "required": ["name", "age", "home"],
    "additionalProperties": False,
    "$defs": {"place": {"type": "object", "properties": {"x": {"type": "number"}}, "required": ["x"]}},
}
SUM = 'start: NUMBER ("+" NUMBER)*\nNUMBER: /[0-9]{1,3}/'
GBNF = 'root ::= number ("+" number)*\nnumber ::= [0-9] [0-9]? [0-9]?'


def sum_of_numbers(text: str) -> bool:
    return re.fullmatch(r"\d{1,3}(\+\d{1,3})*", text) is not None


def valid(schema: dict[str, Any]) -> Callable[[str], bool]:
    return lambda text: jsonschema.validate(json.loads(text), schema) is None


GRAMMARS: dict[str, tuple[str, Callable[[str], bool]]] = {
    "schema": (json_schema_grammar(PERSON), valid(PERSON)),
    "schema as text": (json_schema_grammar(json.dumps(PERSON)), valid(PERSON)),
    "any object": (json_object_grammar(), valid({"type": "object"})),
    "regex": (regex_grammar(r"(foo|bär){2}-\d{3}"), lambda text: bool(re.fullmatch(r"(foo|bär){2}-\d{3}", text))),
    "choice": (choice_grammar(['say "no"', "yes\\", "日本"]), lambda text: text in ('say "no"', "yes\\", "日本")),
    "lark": (lark_grammar(SUM), sum_of_numbers),
    "gbnf": (lark_grammar(GBNF), sum_of_numbers),
}


@pytest.fixture
def masks(tokens: LLTokenizer) -> GrammarMasks:
    return GrammarMasks(lambda: tokens, tokens.vocab_size)


def ask(masks: GrammarMasks, name: str, grammar: str | None, tenant: str = "") -> None:
    sampling = SamplingParams(max_tokens=400, grammar=grammar)
    masks.add(Request(request_id=name, prompt_token_ids=(1,), sampling=sampling, tenant=tenant))


def allowed(line: torch.Tensor) -> list[int]:
    found: list[int] = np.flatnonzero(np.unpackbits(line.numpy().view(np.uint8), bitorder="little")).tolist()
    return found


def lines_of(masks: GrammarMasks, *rows: MaskRow) -> torch.Tensor:
    found = masks.masks(rows)
    assert not found.errors
    assert found.bits.dtype == torch.int32 and found.bits.is_contiguous()
    return found.bits


def line_of(masks: GrammarMasks, name: str, answer: list[int]) -> torch.Tensor:
    [line] = lines_of(masks, MaskRow(name, answer, ()))
    return line


def error_of(masks: GrammarMasks, name: str, answer: Sequence[int] = ()) -> Exception:
    [error] = masks.masks([MaskRow(name, answer, ())]).errors.values()
    return error


def draw(masks: GrammarMasks, tokenizer: Tokenizer, grammar: str, seed: int) -> str | None:
    """An answer that is drawn from masks alone; None for one that has not ended after 150 tokens."""
    draws = random.Random(seed)
    closing = {*ENDS, *(token for text in ('"', "}", "]", '"}', "1") for token in tokenizer.encode(text, False))}
    answer: list[int] = []
    ask(masks, str(seed), grammar)
    while len(answer) < 150 and not (answer and answer[-1] in ENDS):
        choices = allowed(line_of(masks, str(seed), answer))
        ends = closing.intersection(choices)  # texts of random tokens would not end by themselves
        answer.append(draws.choice(sorted(ends) if ends and draws.random() < 0.5 else choices))
    masks.remove(str(seed))
    return tokenizer.decode(answer[:-1]) if answer[-1] in ENDS else None


@pytest.mark.parametrize("name", GRAMMARS)
def test_what_ends_follows_its_grammar(name: str, masks: GrammarMasks, tokenizer: Tokenizer) -> None:
    grammar, follows = GRAMMARS[name]
    ended = [text for seed in range(4) if (text := draw(masks, tokenizer, grammar, seed)) is not None]
    assert ended
    for text in ended:
        assert follows(text), text


def test_what_follows_a_random_schema_is_valid(masks: GrammarMasks, tokenizer: Tokenizer) -> None:
    formats = jsonschema.Draft202012Validator.FORMAT_CHECKER  # the one of all drafts reads `time` as draft 3
    ended = 0
    for seed in range(500):
        schema = random_schema(seed)
        text = draw(masks, tokenizer, json_schema_grammar(schema), seed)
        if text is not None:
            ended += 1
            jsonschema.validate(json.loads(text), schema, format_checker=formats)
    assert ended >= 400


def test_requests_without_a_grammar_and_those_that_ended_are_not_guided(masks: GrammarMasks) -> None:
    ask(masks, "free", None)
    ask(masks, "guided", GRAMMARS["choice"][0])
    assert (masks.guides("free"), masks.guides("guided")) == (False, True)
    for name in ("free", "guided"):
        masks.remove(name)
    assert not masks.guides("guided")


def test_a_complete_answer_may_only_end_and_by_any_of_the_models_ends(
    masks: GrammarMasks, tokenizer: Tokenizer
) -> None:
    ask(masks, "a", choice_grammar(["yes"]))
    assert allowed(line_of(masks, "a", tokenizer.encode("yes", add_special_tokens=False))) == sorted(ENDS)


def test_control_tokens_are_no_text(masks: GrammarMasks, tokenizer: Tokenizer) -> None:
    """A grammar of any text allows the characters of `<|im_start|>`, not the token."""
    ask(masks, "a", regex_grammar(r"(.|\n)*"))
    control = {token for token in range(tokenizer.vocab_size) if tokenizer.is_special(token)}
    assert control & set(allowed(line_of(masks, "a", []))) == set(ENDS)


def test_drafts_get_the_lines_that_their_tokens_would(masks: GrammarMasks, tokenizer: Tokenizer) -> None:
    answer = tokenizer.encode('{"name":', add_special_tokens=False)
    drafts = tokenizer.encode(' "Ann", "age"', add_special_tokens=False)
    for name in ("drafts", "plain"):
        ask(masks, name, GRAMMARS["schema"][0])
    mask = lines_of(masks, MaskRow("drafts", answer, drafts))
    for count in range(len(drafts) + 1):
        assert torch.equal(mask[count], line_of(masks, "plain", answer + drafts[:count]))
    assert torch.equal(line_of(masks, "drafts", answer), mask[0]), "drafts are taken back"


def test_many_rows_get_what_each_alone_does(masks: GrammarMasks, tokenizer: Tokenizer) -> None:
    texts = {"schema": '{"name": "Bo', "regex": "foo", "lark": "12+3", "choice": "say"}
    rows = []
    for name, text in texts.items():
        for copy in ("alone", "together"):
            ask(masks, f"{name} {copy}", GRAMMARS[name][0])
        rows.append(MaskRow(f"{name} together", tokenizer.encode(text, add_special_tokens=False), ()))
    for row, line in zip(rows, lines_of(masks, *rows), strict=True):
        assert torch.equal(line, line_of(masks, row.request_id.replace("together", "alone"), list(row.answer)))


def test_a_grammar_that_fails_gives_an_error_for_its_row_alone(masks: GrammarMasks) -> None:
    ask(masks, "wrong", "start: nothing {")
    ask(masks, "right", GRAMMARS["lark"][0])
    found = masks.masks([MaskRow(name, (), ()) for name in ("wrong", "right")])
    assert [*found.errors] == [0]
    assert torch.equal(found.bits[1], line_of(masks, "right", []))


def test_a_grammar_that_allows_no_text_is_said_to_be_one(masks: GrammarMasks) -> None:
    ask(masks, "empty", regex_grammar("[^\\x00-\\U0010ffff]"))
    error = error_of(masks, "empty")
    assert isinstance(error, NotAdmissibleError) and str(error) == "the grammar allows no text"


def test_an_error_of_a_clients_grammar_is_not_logged(caplog: pytest.LogCaptureFixture) -> None:
    failed: list[Exception] = []
    errors = [GrammarError("of the client"), ValueError("of ours")]
    provider: Any = SimpleNamespace(masks=lambda rows: RowMasks(torch.zeros(2, 1), dict(enumerate(errors))))
    guided = GuidedRequests(provider, lambda _, error: failed.append(error))
    state: Any = SimpleNamespace(request_id="r", token_ids=[], prompt_len=0)
    assert not guided.masks([(0, state), (1, state)], {})
    assert failed == errors
    assert caplog.messages == ["request r: its grammar's next tokens cannot be computed: of ours"]


_PRIMES = {"type": "integer", "allOf": [{"multipleOf": prime} for prime in (999_983, 999_979, 999_961, 999_959)]}


@pytest.mark.parametrize("schema", [{"$ref": "#"}, _PRIMES])
def test_a_grammar_that_allows_nothing_or_takes_too_much_is_the_requests_own_fault(
    masks: GrammarMasks, schema: dict[str, Any]
) -> None:
    ask(masks, "bomb", json_schema_grammar(schema))
    error = error_of(masks, "bomb")
    assert isinstance(error, NotAdmissibleError)


def test_a_text_that_can_be_read_in_very_many_ways_ends_its_request(masks: GrammarMasks, tokenizer: Tokenizer) -> None:
    """One mask took 0.38 s, in which all other requests waited, and each of several answers has a mask of its own."""
    answer = tokenizer.encode(" " * 200, add_special_tokens=False)
    ask(masks, "ambiguous", lark_grammar('start: s\ns: s s | "a" | "b" | " "'))
    found = (masks.masks([MaskRow("ambiguous", answer[:count], ())]).errors for count in range(len(answer) + 1))
    [error] = next(errors for errors in found if errors).values()
    assert isinstance(error, NotAdmissibleError)
    assert "reads the text in more than 10,000 ways; write rules that read it in one way" in str(error)


@pytest.mark.parametrize(
    ("grammar", "begun"),
    [
        (regex_grammar("a{30}{10000}"), ""),
        (regex_grammar("x(ab){100000}"), ""),
        (regex_grammar("(b|c)a{99999}{99999}"), "b"),
        (regex_grammar("(b|c)(word ){9}"), "c"),
        (lark_grammar('{"grammars": [{"lark_grammar": "start: /(b|c)(word ){9}/"}], "unknown": [1]}'), "c"),
        (lark_grammar(' {"max_tokens": null, "grammars": [{"lark_grammar": "start: /(b|c)a{999}/"}]}'), "b"),
    ],
)
def test_no_mask_looks_along_a_text_without_a_choice(
    grammar: str, begun: str, masks: GrammarMasks, tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It did, and asked the tokenizer for the tokens of such a text: up to 110 ms of everyone's step."""

    def tokenized(*_: object, **__: object) -> list[int]:
        raise AssertionError("a mask asked the tokenizer")

    answer = tokenizer.encode(begun, add_special_tokens=False) if begun else []
    monkeypatch.setattr(Tokenizer, "encode", tokenized)
    ask(masks, "forced", grammar)
    for _ in range(3):
        choices = [tokenizer.decode([token]) for token in allowed(line_of(masks, "forced", answer))]
        assert all(one.startswith(another) for one, another in pairwise(sorted(choices, key=len, reverse=True)))
        answer = [*answer, min(allowed(line_of(masks, "forced", answer)))]


def test_a_const_is_written_as_it_is(masks: GrammarMasks, tokenizer: Tokenizer) -> None:
    text = "long " * 20
    written = draw(masks, tokenizer, json_schema_grammar({"const": text}), 0)
    assert written is not None and json.loads(written) == text


def test_a_token_that_the_grammar_does_not_allow_is_an_error_of_its_request(masks: GrammarMasks) -> None:
    ask(masks, "a", GRAMMARS["choice"][0])
    assert isinstance(error_of(masks, "a", [999]), Exception)


def test_a_model_without_an_end_is_an_error_of_the_request(tokenizer: Tokenizer) -> None:
    masks = GrammarMasks(lambda: vocabulary(tokenizer, tokenizer.vocab_size, ()), tokenizer.vocab_size)
    ask(masks, "a", GRAMMARS["choice"][0])
    assert "names no token that ends an answer" in str(error_of(masks, "a"))


@pytest.mark.parametrize("more", [-1000, 1000])
def test_a_mask_has_the_models_width_not_the_tokenizers(more: int, tokenizer: Tokenizer, tokens: LLTokenizer) -> None:
    """A model may have fewer logits than its tokenizer has tokens, or more; what is no text is not allowed."""
    size = tokenizer.vocab_size + more
    masks = GrammarMasks(lambda: vocabulary(tokenizer, size, ENDS), size)
    ask(masks, "a", regex_grammar("[a-z]+"))
    line = line_of(masks, "a", [])
    assert len(line) == -(-size // 32)
    assert max(allowed(line)) < min(tokenizer.vocab_size, len(line) * 32)


def compiled(masks: GrammarMasks, name: str) -> None:
    """Wait for the request's grammar."""
    matcher = masks._answers[name].matcher
    assert matcher is not None
    matcher.exception()


def test_half_of_the_cores_that_a_container_may_use_compute_masks(monkeypatch: pytest.MonkeyPatch) -> None:
    from octavo_engine.structured import grammar_masks

    threads: list[int] = []
    monkeypatch.setattr(grammar_masks, "usable_cores", lambda: 6)
    monkeypatch.setattr(grammar_masks, "LLExecutor", threads.append)
    GrammarMasks(lambda: cast("LLTokenizer", None), 8)
    assert threads[0] == 3


def test_a_compiled_grammar_is_used_again_and_few_are_kept(
    masks: GrammarMasks, monkeypatch: pytest.MonkeyPatch
) -> None:
    from octavo_engine.structured import grammar_masks

    asked: list[str] = []
    real = grammar_masks.LLMatcher

    def compile_(tokens: LLTokenizer, grammar: str, **options: Any) -> Any:
        asked.append(json.loads(grammar)["grammars"][0]["lark_grammar"])
        return real(tokens, grammar, **options)

    monkeypatch.setattr(grammar_masks, "LLMatcher", compile_)
    grammars = [choice_grammar([f"choice {number}"]) for number in range(20)]
    monkeypatch.setattr(grammars_in_use, "KEPT_BYTES", 16.5 * grammars_in_use.estimated_bytes(grammars[0]))
    for number, grammar in enumerate([grammars[0], grammars[0], *grammars, grammars[0], grammars[19]]):
        ask(masks, str(number), grammar)
        compiled(masks, str(number))
        masks.remove(str(number))
    assert asked == [*grammars, grammars[0]]


def test_a_tenant_has_room_for_some_grammars_at_a_time_and_for_any_one(
    masks: GrammarMasks, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Compiled, a grammar may take 200 times its length, and hundreds of requests may wait."""
    grammars = [choice_grammar([f"choice {number}"]) for number in range(4)]
    monkeypatch.setattr(grammars_in_use, "TENANT_BYTES", 2.5 * grammars_in_use.estimated_bytes(grammars[0]))
    for number, grammar in enumerate([grammars[0], *grammars]):
        ask(masks, f"rude {number}", grammar, "rude")
    ask(masks, "large", choice_grammar(["long" * 10_000]), "another")
    begun = [name for name, answer in masks._answers.items() if answer.matcher is not None]
    assert begun == ["rude 0", "rude 1", "rude 2", "large"]
    for name in begun:
        compiled(masks, name)
        assert masks.is_ready(name)
    assert not masks.is_ready("rude 3")
    for name in ("rude 3", "rude 0"):  # the one has never begun, and the grammar of the other is still used
        masks.remove(name)
        assert masks._answers["rude 4"].matcher is None
    masks.remove("rude 1")
    compiled(masks, "rude 4")
    for name in ("rude 2", "rude 4", "large"):
        masks.remove(name)
    assert not masks._waiting and not masks._in_use._bytes and not masks._in_use._requests


def test_grammars_of_all_tenants_have_one_limit_and_each_has_one_in_any_case(
    masks: GrammarMasks, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those of eight keys, each within its own limit, took 338 MiB."""
    grammars = [choice_grammar([f"word {each}"]) for each in range(4)]
    monkeypatch.setattr(grammars_in_use, "ALL_BYTES", 2.5 * grammars_in_use.estimated_bytes(grammars[0]))
    for name, tenant in (("a0", "a"), ("a1", "a"), ("a2", "a"), ("b0", "b"), ("b1", "b")):
        ask(masks, name, grammars[int(name[1])], tenant)
    assert [name for name, each in masks._answers.items() if each.matcher is not None] == ["a0", "a1", "b0"]
    masks.remove("a0")  # with the second of two tenants' grammars gone, the one with less has its turn
    assert masks._answers["a2"].matcher is None and masks._answers["b1"].matcher is None
    masks.remove("a1")
    compiled(masks, "a2")
    masks.remove("b0")
    compiled(masks, "b1")
    for name in ("a2", "b1"):
        masks.remove(name)
    assert not masks._waiting and not masks._in_use._bytes and not masks._in_use._requests


def test_of_requests_that_wait_for_one_grammar_the_one_that_ends_is_forgotten(
    masks: GrammarMasks, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(grammars_in_use, "TENANT_BYTES", 1)
    ask(masks, "before", 'start: "before"')
    for name in ("first", "second", "third"):
        ask(masks, name, 'start: "wanted"')
    masks.remove("third")
    masks.remove("before")
    for name in ("first", "second"):
        compiled(masks, name)
        masks.remove(name)
    assert not masks._waiting and not masks._in_use._requests


def test_a_grammar_whose_request_has_ended_is_not_compiled(masks: GrammarMasks) -> None:
    go_on = Event()
    masks._thread.submit("", lambda: go_on.wait(120))
    ask(masks, "gone", 'start: "never compiled"')
    masks.remove("gone")
    ask(masks, "here", 'start: "compiled"')
    go_on.set()
    compiled(masks, "here")
    assert 'start: "compiled"' in masks._kept._kept and 'start: "never compiled"' not in masks._kept._kept


def test_a_tenants_grammar_waits_for_few_of_another(masks: GrammarMasks, monkeypatch: pytest.MonkeyPatch) -> None:
    """However many grammars a key sends, another's newcomer waits for one of them, and what it sent before stays."""
    honest = [choice_grammar([text]) for text in ("kept", "newcomer")]
    monkeypatch.setattr(grammars_in_use, "KEPT_BYTES", 16.5 * grammars_in_use.estimated_bytes(honest[1]))
    ask(masks, "first", honest[0], "honest")
    compiled(masks, "first")
    masks._thread._uses = RecentUses(time.monotonic)  # both keys have used the thread for as long: not at all
    go_on, order = Event(), list[str]()
    masks._thread.submit("rude", lambda: go_on.wait(120))
    for name, tenant, grammar in (
        *((f"rude {number}", "rude", choice_grammar([f"rude {number}"])) for number in range(30)),
        ("second", "honest", honest[1]),
    ):
        ask(masks, name, grammar, tenant)
        matcher = masks._answers[name].matcher
        assert matcher is not None
        matcher.add_done_callback(lambda _, tenant=tenant: order.append(tenant))
    go_on.set()
    for name in masks._answers:
        compiled(masks, name)
    assert order.index("honest") <= 1
    assert honest[0] in masks._kept._kept and honest[1] in masks._kept._kept
    assert len(masks._kept._kept) == 16


def test_sampling_params_carry_the_grammar() -> None:
    params = SamplingParams(max_tokens=1, grammar="x")
    assert replace(params, seed=1).grammar == "x"
