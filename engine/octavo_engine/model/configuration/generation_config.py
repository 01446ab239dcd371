"""Reads a model's own sampling defaults from its generation_config.json, or from the header of its GGUF file.

The fields are transformers' (GenerationConfig). `do_sample` is not read: as in vLLM, the values that are given apply.
llama.cpp's converter copies them to keys `general.sampling.*`.
"""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

from octavo_engine.errors import ModelLoadError, NotAdmissibleError
from octavo_engine.model.configuration.read_spec import read_json
from octavo_engine.model.fields import Fields
from octavo_engine.model.gguf.parts import read_model
from octavo_engine.model.model_file import has_file
from octavo_engine.model.source import ModelFiles
from octavo_engine.request_checks import check_sampling
from octavo_engine.sampling_params import LEAST_TOP_P, SamplingDefaults, SamplingParams

_NUMBERS = ("temperature", "top_p", "min_p", "repetition_penalty")
_GGUF_KEYS = {
    "temperature": "temp",
    "top_p": "top_p",
    "top_k": "top_k",
    "min_p": "min_p",
    "repetition_penalty": "penalty_repeat",
}
"""The keys of GGUF headers, after `general.sampling.`. Keys of samplers that Octavo does not have are not read."""
_LARGEST = 1e9
"""The bound of all numbers and of top_k; SamplingParams checks the range of each."""


def read_sampling_defaults(files: ModelFiles) -> SamplingDefaults:
    """Return the default sampling parameters of the model in `files`; ModelLoadError if one of them cannot be used."""
    if files.gguf is not None:
        fields = _of_header(files.gguf)
    elif files.directory is not None and has_file(path := files.directory / "generation_config.json"):
        fields = Fields(str(path), read_json(path))
    else:
        return SamplingDefaults()
    try:
        return _checked(fields)
    except ModelLoadError as error:
        raise ModelLoadError(f"{error}; --generation-config vllm takes neutral values instead") from None


def _of_header(path: Path) -> Fields:
    """Return the fields in the header of a GGUF file; float32's 0.6 is 0.6 again, not 0.60000002."""
    keys, prefix = read_model(path).metadata, "general.sampling."
    found = {ours: keys.get(f"{prefix}{theirs}") for ours, theirs in _GGUF_KEYS.items()}
    values = {name: float(f"{value:.6g}") if isinstance(value, float) else value for name, value in found.items()}
    return Fields(f"{path}: {prefix}*", values)


def _checked(fields: Fields) -> SamplingDefaults:
    numbers = {name: fields.number(name, -_LARGEST, _LARGEST) for name in _NUMBERS if fields.has(name)}
    if numbers.get("top_p") == 0:  # greedy, as in a request
        numbers["top_p"] = LEAST_TOP_P
    top_k = fields.number("top_k", -1, _LARGEST, 0)
    if not top_k.is_integer():
        raise fields.wrong("top_k", top_k, "is not a whole number")
    defaults = SamplingDefaults(**numbers, top_k=max(0, int(top_k)))
    try:
        check_sampling(SamplingParams(max_tokens=1, **asdict(defaults)))
    except NotAdmissibleError as error:
        raise ModelLoadError(f"{fields.origin}: {error}") from None
    return defaults
