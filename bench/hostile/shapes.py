"""Attacks with unusual bodies, which are hard to process for a tokenizer, a grammar, a template or a JSON parser."""

from __future__ import annotations

from typing import Any

from bench.hostile.kinds import Attack, posts

CHAT, TEXT = "/v1/chat/completions", "/v1/completions"
RESPONSES, MESSAGES = "/v1/responses", "/v1/messages"
WORDS = "lorem ipsum dolor sit amet consectetur "


def said(content: Any = "Hi", **more: Any) -> dict[str, Any]:
    """Return a chat request."""
    return {"messages": [{"role": "user", "content": content}], "max_tokens": 4, **more}


_TEXTS = (
    " ", "a", "e\u0301\u0323\u035c\u0332", "\U0001f469\u200d", "\n", "0", "\u0e33", "A1 ", "''", "<|im_end|>", "\ufdfa",
    "\u4e00", "\t \n",
)  # fmt: skip


def unicode_bomb(number: int) -> dict[str, Any]:
    """Return a prompt that repeats one text up to a million characters."""
    text = _TEXTS[number % len(_TEXTS)]
    return {"prompt": text * (1_300_000 // len(text)), "max_tokens": 1}


def truncated_bomb(number: int) -> dict[str, Any]:
    """Return the body of `unicode_bomb`, of whose prompt only the last five tokens are kept."""
    return {**unicode_bomb(number), "truncate_prompt_tokens": 5}


_ODD_JSON = (
    b'{"prompt": "\\ud800", "max_tokens": 4}',
    b'{"prompt": "x", "stop": ["\\udfff"], "max_tokens": 4}',
    b'{"prompt": "x", "model": "\\ud800"}',
    b'{"prompt": "x", "user": "\\ud800", "max_tokens": 2}',
    b'{"prompt": "x", "\\ud800": 1}',
    b'{"prompt": "x", "guided_choice": ["\\ud800", "b"], "max_tokens": 2}',
    b'{"prompt": "x", "guided_regex": "\\ud800+", "max_tokens": 2}',
    b'{"prompt": "x", "guided_json": {"enum": ["\\ud800"]}, "max_tokens": 2}',
    b'{"prompt": "x", "guided_grammar": "start: \\"\\ud800\\"", "max_tokens": 2}',
    b'{"prompt": "x", "bad_words": ["\\ud800"], "max_tokens": 2}',
    b'{"prompt": "x", "suffix": "\\ud800", "max_tokens": 2}',
    b'{"prompt": "x", "cache_salt": "\\ud800", "max_tokens": 2}',
    b'{"prompt": "x", "max_tokens": 1' + b"0" * 100_000 + b"}",
    b'{"prompt": "x", "temperature": 1e999999}',
    b'{"prompt": "x", "temperature": ' + b"0." + b"1" * 1_000_000 + b', "max_tokens": 1}',
    b'{"prompt": "x", "seed": -0, "temperature": NaN}',
    b"{" + b'"prompt": "x", ' * 300_000 + b'"max_tokens": 1}',
    b'{"prompt": "x", "max_tokens": 1} garbage',
    b"\xef\xbb\xbf{}", "{}".encode("utf-16"), "{}".encode("utf-32"), b"\xff\xfe", b"\x00" * 1000, b"",
    b'"' + b"\\u0041" * 1_000_000 + b'"',
    b'{"prompt": "a\\u0000b", "stop": "\\u0000", "max_tokens": 2}',
    b'{"prompt": "x", "metadata": {"a": "' + b"b" * 4_000_000 + b'"}, "max_tokens": 1}',
    b'{"prompt": "x", "user": "' + b"b" * 4_000_000 + b'", "max_tokens": 1}',
    b"[" + b"[]," * 2_000_000 + b"[]]",
    b'{"a":' * 900 + b"1" + b"}" * 900,
)  # fmt: skip


def doubled(depth: int) -> dict[str, Any]:
    """Return a schema of 2^depth parts, written with `depth` references."""
    defs: dict[str, Any] = {"d0": {"type": "string"}}
    for each in range(1, depth):
        below = {"$ref": f"#/$defs/d{each - 1}"}
        properties = {"a": below, "b": below}
        defs[f"d{each}"] = {"type": "object", "properties": properties, "required": ["a", "b"]}
    return {"$defs": defs, "$ref": f"#/$defs/d{depth - 1}"}


def recursive(number: int) -> dict[str, Any]:
    """Return a schema that refers to itself."""
    node = {"type": "object", "properties": {"next": {"anyOf": [{"$ref": "#/$defs/n"}, {"type": "null"}]}}}
    return {"$defs": {"n": node}, "$ref": "#/$defs/n", "title": f"{number}"}


_SCHEMAS: tuple[Any, ...] = (
    doubled(40), recursive(1),
    {"type": "object", "properties": {f"p{n}": {"type": "string"} for n in range(3000)}},
    {"anyOf": [{"type": "object", "properties": {f"p{n}": {"type": "integer"}}} for n in range(3000)]},
    {"oneOf": [{"type": "string", "pattern": f"^[a-z]{{{n}}}$"} for n in range(1, 300)]},
    {"allOf": [{"type": "object", "properties": {f"p{n}": {"type": "integer"}}} for n in range(1000)]},
    {"type": "array", "items": {"type": "integer"}, "minItems": 10**9},
    {"type": "array", "items": {"type": "integer"}, "minItems": 10_000, "maxItems": 10_000},
    {"type": "string", "minLength": 10**6, "maxLength": 10**9},
    {"type": "number", "minimum": 1e308, "exclusiveMaximum": 1.7e308}, {"type": "integer", "minimum": 10**400},
    {"type": "string", "format": "uri"}, {"const": "x" * 1_000_000}, {"enum": list(range(100_000))},
    {"type": "string", "pattern": "^(?:(?:a?){60}){60}$"}, {"type": "string", "pattern": "\\p{L}{1000}"},
    {"not": {"not": {"not": {}}}}, {"if": {"type": "string"}, "then": {"$ref": "http://127.0.0.1:1/x"}},
    {"$ref": "file:///etc/passwd"}, {"$ref": "#/$defs/" + "x" * 100_000}, {"type": ["object"] * 10_000},
    {"$dynamicRef": "#x", "$anchor": "x"}, [], True, False, None, 5, "x" * 1_000_000,
)  # fmt: skip
_GRAMMARS = (
    'start: a\na: a a | "x"',
    'start: a\na: a "x" | "x" a | "x"',
    "start: /(x+x+)+y/",
    'start: a{1000000}\na: "x"',
    "start: start",
    "start: a\na: b\nb: a",
    'start: "x"*\n' + "%ignore /[ ]+/\n" * 1000,
    "start: /.{1,100000}/",
    "start: " + "(" * 10_000 + '"x"' + ")" * 10_000,
    "start: " + '"x" | ' * 100_000 + '"y"',
    "%llguidance {}\n" * 100_000,
    'start: a b c d\na: "x"*\nb: "x"*\nc: "x"*\nd: "x"*',
    "\0",
    'start: %json {"$ref": "#"}',
    "start: /[^\\x00]*x{999}/",
)
_LONG = {"max_tokens": 300, "logit_bias": {"104": 100, "11792": 100, "105": 90}}


def grammar(number: int) -> dict[str, Any]:
    """Return a body with a grammar that is ambiguous, endless or empty, and settings that keep it busy."""
    return {"prompt": f"{number} x x x x", "guided_grammar": _GRAMMARS[number % len(_GRAMMARS)], "n": 4, **_LONG}


def response(number: int) -> dict[str, Any]:
    """Return a request to /v1/responses with very many items of one kind."""
    audio = {"type": "input_audio", "input_audio": {"data": "A" * 1_000_000}}
    kinds: tuple[dict[str, Any], ...] = (
        {"input": [{"type": "message", "role": "user", "content": [{"type": "input_text", "text": "x"}] * 60}] * 2000},
        {"input": [{"type": "function_call_output", "call_id": "x", "output": "y"}] * 20_000},
        {"input": [{"type": "item_reference", "id": "x"}] * 10_000},
        {"input": "x", "previous_response_id": "r" * 100_000},
        {"input": "x", "instructions": WORDS * 100_000},
        {"input": "x", "metadata": {str(n): "x" for n in range(100_000)}},
        {"input": "x", "tools": [{"type": "function", "name": f"f{n}", "parameters": {}} for n in range(5000)]},
        {"input": "x", "text": {"format": {"type": "json_schema", "name": "x", "schema": doubled(40)}}},
        {"input": "x", "include": ["x"] * 100_000}, {"input": "x", "store": True, "background": True},
        {"input": [{"type": "reasoning", "summary": [{"type": "summary_text", "text": "x"}] * 10_000}] * 10},
        {"input": [{"type": "message", "role": "user", "content": [audio]}]},
    )  # fmt: skip
    return {"max_output_tokens": 2, **kinds[number % len(kinds)]}


def message(number: int) -> dict[str, Any]:
    """Return a request to /v1/messages with very many blocks of one kind."""
    text, deep = {"type": "text", "text": "x"}, {"a": [[[[]]]] * 10_000}
    kinds: tuple[Any, ...] = (
        [{"role": "user", "content": [text] * 60}] * 2000,
        [{"role": "user", "content": [{"type": "tool_result", "tool_use_id": "x", "content": [text] * 1000}] * 50}],
        [{"role": "assistant", "content": [{"type": "tool_use", "id": "x", "name": "y", "input": deep}]}],
        [{"role": "user", "content": [{"type": "image", "source": {"type": "base64", "data": "A" * 2_000_000}}]}],
        [{"role": "user", "content": [{"type": "document", "source": {"type": "url", "url": "http://127.0.0.1:1/"}}]}],
        [{"role": "user" if n % 2 else "assistant", "content": "x"} for n in range(16_384)],
    )  # fmt: skip
    return {"model": "smollm2", "max_tokens": 2, "messages": kinds[number % len(kinds)], "system": [text] * 1000}


def functions(count: int) -> list[dict[str, Any]]:
    """Return `count` tools."""
    schema = {"type": "object", "properties": {"a": {"type": "string"}}}
    return [
        {"type": "function", "function": {"name": f"f{n}", "description": "x" * 50, "parameters": schema}}
        for n in range(count)
    ]


_REPETITIONS = ("a{30}{10000}", "(a{3}){100000}", "a{99999}{99999}", "x((ab){100}){5000}", "[xy]a{300}{1000}")


_EXTREME: tuple[dict[str, Any], ...] = (
    {"temperature": 1e-300}, {"top_p": 1e-320}, {"temperature": 2, "top_p": 5e-324, "min_p": 1},
    {"repetition_penalty": 100, "presence_penalty": -2, "frequency_penalty": -2, "logit_bias": {"5": 100}},
    {"repetition_penalty": 0.01, "logit_bias": {str(n): -100 for n in range(300)}}, {"top_k": 2**31 - 1},
    {"top_k": -1}, {"seed": -(2**63)}, {"seed": 2**63 - 1}, {"timeout": 0.001}, {"priority": -1000, "n": 8},
    {"min_tokens": 100, "max_tokens": 100, "stop_token_ids": list(range(128))}, {"max_tokens": 16_000_000},
    {"n": 8, "best_of": 8, "logprobs": 5}, {"allowed_token_ids": list(range(1000))},
    {"logprobs": 20, "top_logprobs": 20},
    {"echo": True, "logprobs": 0, "max_tokens": 0}, {"suffix": "x" * 100_000}, {"prompt_logprobs": 20},
    {"bad_words": [chr(0x4e00 + n) for n in range(64)]}, {"stop": ["\u0301", " ", "\n", "e"]},
    {"length_penalty": 1e308}, {"use_beam_search": True}, {"skip_special_tokens": False},
    {"stream_options": {"include_usage": True}}, {"truncate_prompt_tokens": 1}, {"add_special_tokens": True},
    {"kv_transfer_params": {"x": 1}},
)  # fmt: skip


def token_prompts(number: int) -> dict[str, Any]:
    """Return a body whose prompts are token ids."""
    kinds: tuple[Any, ...] = (
        [[number % 40_000 + 5] * 8000] * 4,
        [7] * 1_000_000,
        [[7]] * 32,
        [[]],
        [True, False],
        [0] * 8100,
    )
    return {"prompt": kinds[number % len(kinds)], "max_tokens": 2}


def score(number: int) -> dict[str, Any]:
    """Return a body with the most pairs that are allowed."""
    return {"text_1": f"{number}", "text_2": [f"{number} {each} {WORDS}" for each in range(2048)]}


_LONG_ANSWERS = {"n": 8, "max_tokens": 2000, "ignore_eos": True, "stream": True}
_LONGEST = WORDS * 500

_MORE_REGEXES = (
    "(?=a)b", "(a)\\1", "\\p{Han}{1,900}", "[^\\x00-\\U0010ffff]", "\\b" * 2000, "(a|a|a|a)*" * 60,
    "((((((((a?)*)*)*)*)*)*)*)*", "a{0}", "(" * 900 + ")" * 900, "|" * 50_000, "x{4294967296}", ".*" * 3000,
    "(?:a|b){0,3000}(?:c|d){0,3000}",
)  # fmt: skip
_MORE_SCHEMAS: tuple[dict[str, Any], ...] = (
    {"type": "object", "propertyNames": {"pattern": "(a|b)*c{99}"}, "minProperties": 50},
    {"$ref": "#/properties/a", "properties": {"a": {"$ref": "#/properties/b"}, "b": {"$ref": "#/properties/a"}}},
    {"type": "object", "properties": {"x" * 30_000: {"type": "null"}}}, {"anyOf": [{"$ref": "#"}] * 50},
    {"type": "array", "prefixItems": [{"type": "integer"}] * 5000}, {"type": "number", "multipleOf": 0},
    {"type": "integer", "multipleOf": 1e-300}, {"enum": [{"a": [{"b": [None] * 100}]}] * 300},
    {"type": "object", "patternProperties": {"(.+)+$": {}}, "additionalProperties": {"$ref": "#"}},
    {"type": "string", "minLength": 3000, "maxLength": 3001}, {"const": {"k" * 100: [0.1] * 9000}},
    {"definitions": {str(n): {"$ref": f"#/definitions/{n + 1}"} for n in range(3000)}, "$ref": "#/definitions/0"},
    {"allOf": [{"properties": {str(n): True}} for n in range(200)], "unevaluatedProperties": False},
)  # fmt: skip


def structural(number: int) -> dict[str, Any]:
    """A structural tag of very many parts, or of none."""
    kinds: tuple[dict[str, Any], ...] = (
        {"type": "sequence", "elements": [{"type": "const_string", "value": "a"}] * 128},
        {"type": "or", "elements": [{"type": "json_schema", "json_schema": {"$ref": "#"}}] * 128},
        {"type": "triggered_tags", "triggers": ["<"] * 64, "tags": [
            {"begin": "<" * 500 + str(n), "content": {"type": "any_text"}, "end": ">"} for n in range(128)
        ]},
        {"type": "sequence", "elements": [{"type": "sequence", "elements": [{"type": "any_text"}] * 100}] * 100},
    )  # fmt: skip
    return {"response_format": {"type": "structural_tag", "format": kinds[number % len(kinds)]}, "max_tokens": 40}


_NAME = "n" * 4_000_000
_LONG_NAMES: tuple[dict[str, Any], ...] = (
    {_NAME: 1}, {"metadata": {_NAME: 1}}, {"logit_bias": {_NAME: 1}}, {"chat_template_kwargs": {_NAME: 1}},
    {"response_format": {"type": _NAME}}, {"tool_choice": {"type": "function", "function": {"name": _NAME}}},
    {"model": _NAME}, {"stop": [_NAME]}, {"guided_regex": f"[{_NAME}"}, {"guided_json": {"type": _NAME}},
)  # fmt: skip
_LIMITS: tuple[dict[str, Any], ...] = (
    {"max_tokens": 1}, {"max_tokens": 2}, {"max_tokens": 0, "echo": True}, {}, {"max_tokens": 1, "n": 8},
)  # fmt: skip

SHAPES: dict[str, Attack] = {
    "more regular expressions (G)": posts(
        CHAT, lambda n: said(guided_regex=_MORE_REGEXES[n % len(_MORE_REGEXES)], max_tokens=40), 12
    ),
    "more JSON schemas (H)": posts(
        CHAT, lambda n: said(guided_json=_MORE_SCHEMAS[n % len(_MORE_SCHEMAS)], max_tokens=60), 12
    ),
    "structural tags of many parts (H)": posts(CHAT, lambda n: said(**structural(n))),
    "grammars × 64 answers (H)": posts(
        CHAT, lambda n: said(guided_regex=f"({n}|[a-z]{{3,50}} ?)+", n=64, max_tokens=60, temperature=2)
    ),
    "field names of 4 MB": posts(CHAT, lambda n: said(**_LONG_NAMES[n % len(_LONG_NAMES)])),
    "unpaired surrogates in names": posts(
        RESPONSES, lambda n: b'{"input": "x", "\\ud800": ' + b"[" * (n % 500 + 1) + b"]" * (n % 500 + 1) + b"}"
    ),
    "8,000 messages that are wrong": posts(
        CHAT, lambda n: {"messages": [{"role": "x", "content": [{"type": "text"}] * 40}] * (4000 + n % 3)}
    ),
    "prompts exactly as long as the context": posts(
        TEXT, lambda n: {"prompt": [5 + n % 900] * (8190 + n % 3), **_LIMITS[n % len(_LIMITS)]}
    ),
    "prompts of special tokens": posts(
        TEXT,
        lambda n: {"prompt": [n % 17] * 2000, "max_tokens": 50, "ignore_eos": True, "skip_special_tokens": False},
        16,
    ),
    "salted prompts of 3,000 tokens": posts(
        TEXT, lambda n: {"prompt": [12 + n % 9000] * 3000, "cache_salt": f"s{n}", "max_tokens": 1}
    ),
    "1,024 × 1,024 pairs to /v1/score": posts(
        "/v1/score", lambda n: {"text_1": [f"{n} {k} {WORDS}" for k in range(1024)], "text_2": [WORDS] * 1024}, 6
    ),
    "1.3 million times one character": posts(TEXT, unicode_bomb, 6),
    "1.3 million times one character, truncated": posts(TEXT, truncated_bomb, 6),
    "odd JSON": posts(TEXT, lambda n: _ODD_JSON[n % len(_ODD_JSON)]),
    "schemas that multiply (H)": posts(CHAT, lambda n: said(guided_json=_SCHEMAS[n % len(_SCHEMAS)], max_tokens=50)),
    "repetitions without a choice (G)": posts(
        CHAT, lambda n: said(guided_regex=f"{n}{_REPETITIONS[n % len(_REPETITIONS)]}", max_tokens=50), 16
    ),
    "ambiguous grammars with long answers (H)": posts(TEXT, grammar, 16),
    "very many items to /v1/responses": posts(RESPONSES, response),
    "very many blocks to /v1/messages": posts(MESSAGES, message),
    "3,000 functions": posts(CHAT, lambda n: said(tools=functions(3000), tool_choice="required" if n % 2 else "auto")),
    "extremes of every field": posts(TEXT, lambda n: {"prompt": f"{n}", **_EXTREME[n % len(_EXTREME)]}, 16),
    "prompts of token ids": posts(TEXT, token_prompts),
    "1,600 long answers at once": posts(TEXT, lambda n: {"prompt": f"{n}", **_LONG_ANSWERS}, 200),
    "prompts of 6,500 tokens": posts(TEXT, lambda n: {"prompt": f"{n} {_LONGEST}", "max_tokens": 50}, 16),
    "prompt log probabilities of 6,500 tokens": posts(
        TEXT, lambda n: {"prompt": f"{n} {_LONGEST}", "max_tokens": 1, "prompt_logprobs": 20}
    ),
    "answers that are over at once": posts(TEXT, lambda n: {"prompt": f"{n}", "max_tokens": 1}, 64),
    "requests of a millisecond": posts(TEXT, lambda n: {"prompt": f"{n} " + WORDS * 100, "timeout": 0.001}, 32),
    "2,048 pairs to /v1/score": posts("/v1/score", score, 4),
    "2,048 inputs of token ids to /v1/embeddings": posts(
        "/v1/embeddings", lambda n: {"input": [[n % 1000] * 100] * 2048, "encoding_format": "base64"}, 4
    ),
}
