"""The tokenizer of a directory in Hugging Face layout: tokenizer.json and the small files around it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer as Backend

from octavo_engine.text.parts import TokenizerParts

_MAX_JSON = 64 << 20
_MAX_TOKENIZER = 512 << 20
_SPECIAL = ("bos_token", "eos_token", "unk_token", "pad_token", "sep_token", "cls_token", "mask_token")


def read_directory(directory: Path) -> TokenizerParts:
    """ValueError says which file is missing or broken."""
    backend = _read_backend(directory)
    config = _read_json(directory / "tokenizer_config.json")
    names = _special_tokens(_read_json(directory / "special_tokens_map.json")) | _special_tokens(config)
    eos = [backend.token_to_id(names["eos_token"]) if "eos_token" in names else None, *_model_eos(directory)]
    return TokenizerParts(
        backend=backend,
        special_tokens=names,
        bos=backend.token_to_id(names["bos_token"]) if "bos_token" in names else None,
        eos=tuple(dict.fromkeys(token_id for token_id in eos if token_id is not None)),
        chat_template=_chat_template(directory, config),
    )


def _read_backend(directory: Path) -> Backend:
    path = directory / "tokenizer.json"
    if not path.is_file():
        old = next((name for name in ("tokenizer.model", "vocab.json") if (directory / name).is_file()), None)
        hint = f"; {old} alone is not enough: save the tokenizer with transformers to get one" if old else ""
        raise ValueError(f"there is no tokenizer.json{hint}")
    if (size := path.stat().st_size) > _MAX_TOKENIZER:
        raise ValueError(f"tokenizer.json has {size} bytes, more than any tokenizer needs ({_MAX_TOKENIZER})")
    try:
        return Backend.from_file(str(path))
    except BaseException as error:
        # The library raises bare Exceptions, and its Rust panics are no Exceptions at all.
        if isinstance(error, KeyboardInterrupt | SystemExit):
            raise
        raise ValueError(f"tokenizer.json is broken: {error}") from None


def _read_json(path: Path) -> dict[str, Any]:
    """The object in an optional file; empty if there is none."""
    if not path.is_file():
        return {}
    if (size := path.stat().st_size) > _MAX_JSON:
        raise ValueError(f"{path.name} has {size} bytes, more than {_MAX_JSON}")
    try:
        content = json.loads(path.read_bytes())
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path.name} is broken: {error}") from None
    if not isinstance(content, dict):
        raise ValueError(f"{path.name} is broken: it holds no object")
    return content


def _special_tokens(config: dict[str, Any]) -> dict[str, str]:
    names = {}
    for name in _SPECIAL:
        value = config.get(name)
        content = value.get("content") if isinstance(value, dict) else value
        if isinstance(content, str):
            names[name] = content
    return names


def _model_eos(directory: Path) -> list[int]:
    """The model's own ends of sequence; generation_config.json counts before config.json."""
    for name in ("generation_config.json", "config.json"):
        value = _read_json(directory / name).get("eos_token_id")
        values = value if isinstance(value, list) else [value]
        if ids := [v for v in values if isinstance(v, int) and not isinstance(v, bool) and v >= 0]:
            return ids
    return []


def _chat_template(directory: Path, config: dict[str, Any]) -> str | None:
    path = directory / "chat_template.jinja"
    if path.is_file():
        if path.stat().st_size > _MAX_JSON:
            raise ValueError(f"chat_template.jinja has more than {_MAX_JSON} bytes")
        return path.read_text(encoding="utf-8")
    template = config.get("chat_template")
    if isinstance(template, list):  # several, by name
        named = {t.get("name"): t.get("template") for t in template if isinstance(t, dict)}
        template = named.get("default")
    return template if isinstance(template, str) else None
