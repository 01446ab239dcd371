"""Attacks through fields that few clients use, and through values that contradict each other."""

from __future__ import annotations

from typing import Any

from bench.hostile.kinds import Attack, posts

CHAT, TEXT = "/v1/chat/completions", "/v1/completions"


_TOOLS = [{"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}]


_FORCED = (
    r'<tool_call>\{"name": "f", "arguments": (\{"a":){3000}',
    r"(<tool_call>\{){900}",
    r"<tool_call>\[{3000}",
    r'<tool_call>\{"name": "f", "arguments": "(\\\\u[dD]83[dD]){900}',
    r"<think>(</think><think>){900}",
    r'<tool_call>\{"name": "f", "arguments": \{"a": "(\\\\\\\\){2000}',
    r"(</tool_call>){900}",
    r"[ \n]{3000}<tool_call>",
    r"(data: \[DONE\]\n\n){900}",
    r"[\u2028\u0085\ufeff]{2000}",
)


def forced(number: int) -> dict[str, Any]:
    """Return a chat whose answer is forced to be what a parser of tool calls takes longest for."""
    tools = {"tools": _TOOLS} if number % 2 else {}
    said = [{"role": "user", "content": f"{number}"}]
    pattern = _FORCED[number % len(_FORCED)]
    return {"messages": said, "max_tokens": 3000, "guided_regex": pattern, "stream": number % 3 == 0, **tools}


_ALL = list(range(49_152))


_IMPOSSIBLE: tuple[dict[str, Any], ...] = (
    {"allowed_token_ids": []},
    {"allowed_token_ids": [0], "bad_words": ["<|endoftext|>"]},
    {"min_tokens": 40, "guided_regex": "a"},
    {"min_tokens": 40, "stop_token_ids": _ALL[:4096], "max_tokens": 40},
    {"logit_bias": {str(each): -100 for each in range(300)}, "allowed_token_ids": _ALL[:300]},
    {"guided_choice": ["a"], "allowed_token_ids": [0]},
    {"guided_choice": ["a"], "bad_words": ["a"]},
    {"guided_regex": "[a-c]+", "logit_bias": {"66": -100, "67": -100, "68": -100}, "temperature": 2},
    {"temperature": 1e-300},
    {"temperature": 2, "top_p": 1e-300},
    {"temperature": 2, "min_p": 1.0, "top_k": 1},
    {"repetition_penalty": 1e38},
    {"repetition_penalty": 1e-38},
    {"presence_penalty": -2, "frequency_penalty": -2},
    {"logit_bias": {"5": float("inf")}},
    {"logit_bias": {" 5": 1}},
    {"logit_bias": {"\u0665": 1}},
    {"logit_bias": {"5": 1, "05": 2, "+5": 3}},
    {"logit_bias": {"-5": 1}},
    {"logit_bias": {"1e3": 1}},
    {"stop": [""]},
    {"stop": ["\ud800"]},
    {"bad_words": ["", " "]},
    {"max_tokens": 0},
    {"max_tokens": 0, "echo": True},
    {"prompt": ""},
    {"prompt": []},
    {"prompt": [[]]},
    {"prompt": [[1], "x"]},
    {"prompt": ["x", [1]]},
    {"prompt_embeds": "gASVAAAAAAAAAACMBXBvc2l4lIwGc3lzdGVtlJOULg=="},
    {"logits_processors": ["os.system"]},
    {"kv_transfer_params": {"do_remote_prefill": True}},
    {"best_of": 10**6},
    {"use_beam_search": True, "n": 64},
    {"suffix": "x" * 1_000_000},
    {"timeout": 1e308},
    {"timeout": -0.0},
    {"priority": -(2**63)},
    {"seed": -(2**63)},
    {"truncate_prompt_tokens": -1, "prompt": "x " * 9000},
    {"n": 64, "echo": True, "prompt_logprobs": 20},
    {"stream": True, "stream_options": {"include_usage": True, "continuous_usage_stats": True}, "n": 32},
    {"thinking_token_budget": -5},
    {"lora_request": {"lora_path": "/etc"}},
    {"model": None},
    {"n": True},
)


def impossible(number: int) -> dict[str, Any]:
    """Return a request whose fields leave no token, contradict each other, or ask for what a server must not do."""
    return {"prompt": f"{number}", "max_tokens": 8, "temperature": 1, **_IMPOSSIBLE[number % len(_IMPOSSIBLE)]}


def media(number: int) -> dict[str, Any]:
    """Return a chat with parts of 6 MB that are no text, or claim to be."""
    data = "QUFB" * 1_500_000
    kinds: tuple[dict[str, Any], ...] = (
        {"type": "input_audio", "input_audio": {"data": data, "format": "wav"}},
        {"type": "file", "file": {"file_data": data}},
        {"type": "image_url", "image_url": {"url": f"data:image/svg+xml;base64,{data}"}},
        {"type": "video_url", "video_url": {"url": "file:///dev/zero"}},
        {"type": "text", "text": f"data:text/plain;base64,{data}"},
        {"type": "image_url", "image_url": {"url": "gopher://169.254.169.254/" + data[:9000]}},
    )
    return {"messages": [{"role": "user", "content": [kinds[number % len(kinds)]]}], "max_tokens": 1}


def pooled(number: int) -> dict[str, Any]:
    """Return a request for embeddings with odd settings and inputs."""
    odd: tuple[dict[str, Any], ...] = (
        {"dimensions": 10**9},
        {"dimensions": 1, "encoding_format": "base64"},
        {"encoding_format": "x" * 100_000},
        {"input": [[]]},
        {"input": [""] * 2048},
        {"input": [[10**9]]},
        {"input": {"a": 1}},
        {"input": ["x", 1]},
        {"input": [[[1]]]},
        {"input": "x" * 4_000_000, "truncate_prompt_tokens": 1},
        {"normalize": "x"},
    )
    return {"input": ["x"], **odd[number % len(odd)]}


FIELDS: dict[str, Attack] = {
    "answers forced into odd calls of tools": posts(CHAT, forced, 8),
    "fields that leave no token, or contradict each other": posts(TEXT, impossible, 16),
    "files, sounds and videos in chats (D, J)": posts(CHAT, media, 4),
    "odd inputs to /v1/embeddings": posts("/v1/embeddings", pooled, 8),
}
"""Attacks by name, as in `attacks.py`."""
