"""Reads the tokenizer of a directory in Hugging Face's layout.

Its files are tokenizer.json, tokenizer_config.json, special_tokens_map.json and chat_template.jinja, and of models of
sentence-transformers sentence_bert_config.json, which may say that texts are lowercased first.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer as Backend
from tokenizers import normalizers

from octavo_engine.model.model_file import has_file, read_file, read_own_file
from octavo_engine.text.sentencepiece_file import read_sentencepiece
from octavo_engine.text.tokenizer_parts import TokenizerParts, library_errors

_MAX_JSON = 64 << 20
_MAX_TOKENIZER = 64 << 20
"""Bytes. The library reads 5 MB a second and holds the interpreter's lock; a vocabulary of 262,144 tokens has 33 MB."""
_SPECIAL = ("bos_token", "eos_token", "unk_token", "pad_token", "sep_token", "cls_token", "mask_token")


def read_directory(directory: Path) -> TokenizerParts:
    """Return the directory's tokenizer; ValueError, which names the file, if one is missing or broken."""
    config = _read_json(directory / "tokenizer_config.json")
    backend = _read_backend(directory, config)
    if _read_json(directory / "sentence_bert_config.json").get("do_lower_case") is True:
        own = backend.normalizer
        backend.normalizer = normalizers.Sequence([normalizers.Lowercase(), *([] if own is None else [own])])
    names = _special_tokens(_read_json(directory / "special_tokens_map.json")) | _special_tokens(config)
    return TokenizerParts(
        backend=backend,
        special_tokens=names,
        bos=backend.token_to_id(names["bos_token"]) if "bos_token" in names else None,
        chat_template=_chat_template(directory, config),
    )


def _read_backend(directory: Path, config: dict[str, Any]) -> Backend:
    path, old = directory / "tokenizer.json", directory / "tokenizer.model"
    if not has_file(path):
        if has_file(old):
            return read_sentencepiece(read_file(old, _MAX_TOKENIZER), config)
        alone = "; vocab.json alone is not enough: save the tokenizer with transformers to get one"
        raise ValueError(f"there is no tokenizer.json{alone if (directory / 'vocab.json').is_file() else ''}")
    content = read_file(path, _MAX_TOKENIZER)
    with library_errors("tokenizer.json is broken"):
        return Backend.from_buffer(content)


def _read_json(path: Path) -> dict[str, Any]:
    """Return the object in an optional file; an empty object if there is no file."""
    if not has_file(path):
        return {}
    try:
        content = json.loads(read_file(path, _MAX_JSON))
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path.name} is broken: {error}") from None
    if not isinstance(content, dict):
        raise ValueError(f"{path.name} is broken: it does not hold a JSON object")
    return content


def _special_tokens(config: dict[str, Any]) -> dict[str, str]:
    names = {}
    for name in _SPECIAL:
        value = config.get(name)
        content = value.get("content") if isinstance(value, dict) else value
        if isinstance(content, str):
            names[name] = content
    return names


def _chat_template(directory: Path, config: dict[str, Any]) -> str | None:
    path = directory / "chat_template.jinja"
    if has_file(path):
        try:
            return read_own_file(path, _MAX_JSON).decode()
        except UnicodeDecodeError:
            raise ValueError("chat_template.jinja is broken: it is not UTF-8") from None
    template = config.get("chat_template")
    if isinstance(template, list):  # a list of templates, each with a name
        template = next(
            (t.get("template") for t in template if isinstance(t, dict) and t.get("name") == "default"), None
        )
    if template is not None and not isinstance(template, str):
        raise ValueError(f"tokenizer_config.json is broken: its chat_template is of type {type(template).__name__}")
    return template
