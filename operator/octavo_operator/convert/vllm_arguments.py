"""Arguments of `vllm serve` as parts of an LLMService's spec."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from octavo_operator.api.engine_flags import EXTRA


def _count(text: str) -> int:
    """Return a number of tokens, which vLLM also takes as 32k (32,000) and 32K (32,768)."""
    units = {"k": 1000, "K": 1 << 10, "m": 1_000_000, "M": 1 << 20}
    return int(float(text[:-1]) * units[text[-1]]) if text[-1:] in units else int(text)


_FIELDS: dict[str, tuple[str, Callable[[str], Any]]] = {
    "dtype": ("dtype", lambda value: {"half": "float16", "float": "float32"}.get(value, value)),
    "max-model-len": ("maxModelLength", _count),
    "max-num-seqs": ("maxConcurrentRequests", int),
    "gpu-memory-utilization": ("gpuMemoryUtilization", lambda value: f"{float(value):g}"),
    "tensor-parallel-size": ("tensorParallelSize", int),
}
"""Flags that have a field in `spec.engine`, and how their values are read."""
_OTHER_NAMES = {
    "kv-cache-memory-bytes": "kv-cache-memory",
    "num-gpu-blocks-override": "num-kv-blocks",
    "tp": "tensor-parallel-size",
    "pp": "pipeline-parallel-size",
    "dp": "data-parallel-size",
    "q": "quantization",
    "O": "compilation-config",
    "model-name": "served-model-name",
    "model-id": "model",
    "model-revision": "revision",
}
"""Other names of flags: vLLM's short ones, and those of KServe's runtime."""
_WITHOUT_VALUE = frozenset({
    "enforce-eager", "enable-prefix-caching", "enable-chunked-prefill", "enable-auto-tool-choice", "enable-lora",
    "trust-remote-code", "disable-custom-all-reduce", "disable-log-stats", "disable-log-requests",
    "enable-log-requests",
})  # fmt: skip
_NEEDLESS = frozenset({
    "host", "port", "enable-chunked-prefill", "enable-auto-tool-choice", "reasoning-parser", "enable-reasoning",
    "disable-log-stats", "disable-log-requests", "enable-log-requests", "enable-lora", "max-loras", "max-lora-rank",
    "max-cpu-loras", "guided-decoding-backend", "download-dir", "load-format", "uvicorn-log-level", "tokenizer-mode",
    "config-format", "model-dir", "backend",
})  # fmt: skip
"""Flags for what Octavo does by itself, or the operator decides."""
_FLAG = re.compile("--|-[A-Za-z]")
"""The beginning of a flag; a value may begin with a hyphen too, as -1 does."""
_SHORTEST = 5
"""The letters of an abbreviation; shorter names are too likely to be flags that are not known here."""
_CONVERTIBLE_SCHEMES = ("fp8", "int8", "int4", "awq", "gptq")
_ADVICE = {
    "api-key": "keys are in a Secret that spec.auth.apiKeysSecretRef names, one entry for each client",
    "chat-template": "the template is the one in the model's files",
    "trust-remote-code": "code in a model's repository is never run",
    "pipeline-parallel-size": "a replica runs on the GPUs of one node; use tensorParallelSize or more replicas",
    "data-parallel-size": "use replicas or autoscaling",
    "enable-chunked-prefill": "it is always on",
    "compilation-config": "give its cudagraph_mode in engine.extraArgs, as --cudagraph-mode or --enforce-eager",
    "tool-call-parser": "the chat template shows the format; where it does not, name it in engine.extraArgs",
    "attention-backend": "the engine chooses its own",
    "task": "the files of the model say what it does",
    "lora-modules": "list the adapters in spec.adapters, each with its source",
}


@dataclass
class Arguments:
    """A parsed command line. `engine` is `spec.engine`; `notes` are sentences about flags that were left out."""

    model: str | None = None
    revision: str | None = None
    served_names: list[str] = field(default_factory=list)
    engine: dict[str, Any] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)


def read_arguments(words: Sequence[str]) -> Arguments:
    """Read the words after `vllm serve`."""
    found = Arguments()
    extra: list[str] = []
    for flag, values in _flags(words):
        value = values[0] if values else ""
        if not flag and found.model:
            found.notes.append(f"the word {value} was left out: the model is {found.model}")
        elif not flag or flag == "model":
            found.model = value
        elif flag == "revision":
            found.revision = value
        elif flag == "served-model-name":
            found.served_names = values
        elif flag == "quantization":
            _quantization(found, value)
        elif flag in _FIELDS:
            _field(found, flag, value)
        elif flag == "swap-space":
            extra.append(f"--swap-space={value}GiB")  # vLLM's number counts GiB
        elif flag in EXTRA and flag not in _ADVICE:
            extra.append(f"--{flag}={value}" if values else f"--{flag}")
        elif flag not in _NEEDLESS or value.lower() == "false":
            advice = _ADVICE.get(flag.removeprefix("no-"), "it has no counterpart")
            found.notes.append(f"--{flag} was left out: {advice}")
    if extra:
        found.engine["extraArgs"] = extra
    return found


def _quantization(found: Arguments, value: str) -> None:
    scheme = value.removesuffix("_marlin")
    if scheme in _CONVERTIBLE_SCHEMES:
        found.engine["quantization"] = scheme
    else:
        found.notes.append(f"--quantization {value} was left out: the checkpoint's config.json says its scheme")


def _field(found: Arguments, flag: str, value: str) -> None:
    if flag == "max-model-len" and value in ("-1", "auto"):  # as long as fits, which is the default here
        return
    name, read = _FIELDS[flag]
    try:
        found.engine[name] = read(value)
    except ValueError:
        found.notes.append(f"--{flag} was left out: {value!r} is not a number")


def _full_name(name: str) -> str:
    """Return the flag that `name` abbreviates, as vLLM's parser allows; `name` itself if it is none's or several's."""
    known = {*_FIELDS, *EXTRA, *_NEEDLESS, *_ADVICE, "served-model-name"}
    meant = [flag for flag in known if len(name) > _SHORTEST and flag.startswith(name)]
    return meant[0] if name not in known and len(meant) == 1 else name


def _flags(words: Sequence[str]) -> Iterator[tuple[str, list[str]]]:
    """Yield each flag by its present name, with its values; the empty name stands for the model given by position."""
    position = 0
    while position < len(words):
        word = words[position]
        position += 1
        if not word.startswith("-"):
            yield "", [word]
            continue
        # vLLM's level of compilation may stand without a space, as in -O3.
        name, equals, value = re.sub(r"^-O(?=\d)", "-O=", word).lstrip("-").partition("=")
        name = name.replace("_", "-")
        name = _full_name(_OTHER_NAMES.get(name, name))
        values = [value] if equals else []
        if not equals and name not in _WITHOUT_VALUE and not name.startswith("no-"):
            while position < len(words) and not _FLAG.match(words[position]):
                values.append(words[position])
                position += 1
                if name not in ("served-model-name", "lora-modules"):
                    break
        yield name, values
