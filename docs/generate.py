"""Writes docs/reference from the code (`make docs`); with --check it only reports whether the pages are up to date."""

from __future__ import annotations

import argparse
import json
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from prometheus_client.parser import text_string_to_metric_families

from octavo_engine.commands.models import COLUMNS, table
from octavo_engine.config import EngineConfig, ServerConfig
from octavo_engine.config.setting import default_of, flag_name, settings_of
from octavo_engine.engine.client import EngineState
from octavo_engine.model.configuration.supported_models import supported_models
from octavo_engine.model.gguf.architectures import ARCHITECTURES
from octavo_engine.server.telemetry.metrics import Metrics
from octavo_engine.sizes import format_size
from octavo_operator.api.crd import custom_resource_definition, default_sentence

FOLDER = Path(__file__).parent / "reference"
_HEAD = "<!-- Made by `make docs` from the code; edit the code. -->\n\n"


def engine_flags() -> str:
    """Return every setting of `octavo-engine serve`."""
    lines = [
        _HEAD + "# Engine settings\n",
        "You can give each setting as a flag of `octavo-engine serve`, as an environment variable `OCTAVO_<NAME>`\n"
        "(in capitals, with `_` for `-`), or as a key in the YAML file that `--config` names. A flag overrides the\n"
        "variable, and the variable overrides the file. Sizes take units, such as `2GiB`. A variable `OCTAVO_…` that\n"
        "is no setting has no effect, and a warning at the start names it.\n",
    ]
    for title, config in (("Engine", EngineConfig), ("Server", ServerConfig)):
        lines += [f"## {title}\n", "| flag | takes | default | meaning |", "| --- | --- | --- | --- |"]
        for field, known in settings_of(config):
            default = default_of(field)
            shown = format_size(default) if known.kind == "size" and default is not None else _default(default)
            takes = " · ".join(map(str, known.choices)) if known.choices else _range(known)
            lines.append(f"| `--{flag_name(field.name)}` | {takes} | {shown} | {known.help} |")
        lines.append("")
    return "\n".join(lines)


def _default(value: Any) -> str:
    """Return a setting's default as a user writes it; empty if it has none."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    return " ".join(map(str, value)) if isinstance(value, list) else "" if value is None else str(value)


def _range(known: Any) -> str:
    kind = known.metavar or {"int": "whole number", "float": "number", "bool": "yes or `--no-…`"}.get(
        known.kind, "text"
    )
    low, high = known.minimum, known.maximum
    if low is None:
        return str(kind)
    return f"{kind}, {low:,} to {high:,}" if high is not None else f"{kind}, at least {low:,}"


def llmservice() -> str:
    """Return every field of an LLMService's spec."""
    crd = custom_resource_definition()
    schema = crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"]
    lines = [
        _HEAD + "# LLMService `octavo.dev/v1alpha1`\n",
        "`kubectl explain llms.spec` prints the same text. [Work with an LLMService](../how-to/llmservice.md)\n"
        "explains the most important fields, and [manifests/samples](../../manifests/samples) has examples.\n"
        "A *required* field must be set if the object that contains it is.\n",
    ]
    lines += ["| field | type | default | meaning |", "| --- | --- | --- | --- |"]
    lines += [f"| `{path}` | {kind} | {default} | {text} |" for path, kind, default, text in _fields(schema, "spec")]
    return "\n".join(lines) + "\n"


def _fields(schema: dict[str, Any], path: str) -> Iterator[tuple[str, str, str, str]]:
    for name, child in schema.get("properties", {}).items():
        here = f"{path}.{name}"
        default = child.get("default", "")
        described = str(child.get("description", "")).removesuffix(default_sentence(default))  # it has a column
        text = " ".join(described.split()).replace("|", "\\|")
        shown = "required" if name in schema.get("required", ()) else _yaml(default)
        yield here, _type(child), shown, text
        inner = child.get("items", child)
        if child.get("x-kubernetes-preserve-unknown-fields") is None:
            yield from _fields(inner, here + ("[]" if "items" in child else ""))


def _yaml(default: Any) -> str:
    """Return a field's default as YAML has it; empty for a section, whose fields have their own."""
    if default == "" or isinstance(default, dict | list):
        return ""
    return f"`{default}`" if isinstance(default, str) else f"`{json.dumps(default)}`"


def _type(schema: dict[str, Any]) -> str:
    if "enum" in schema:
        return " · ".join(str(value) for value in schema["enum"])
    if schema.get("x-kubernetes-int-or-string"):
        return "integer or string"
    kind = str(schema.get("type", "any"))
    bounds = [str(schema[key]) for key in ("minimum", "maximum") if key in schema]
    return f"{kind} {' to '.join(bounds)}" if len(bounds) == 2 else kind


def metrics() -> str:
    """Return every octavo_* metric in /metrics."""
    lines = [
        _HEAD + "# Metrics\n",
        "An engine serves these metrics at `/metrics` from the start of its process. All series exist from the\n"
        "beginning, with the value 0, and label values come from fixed sets. Unless `--no-vllm-metrics` is set, the\n"
        "same measurements also exist under vLLM's names (`vllm:*`). The operator has [metrics of its\n"
        "own](../concepts/operator.md#metrics-of-the-operator).\n",
        "| metric | type | labels beside `model_name` | meaning |",
        "| --- | --- | --- | --- |",
    ]
    shown = Metrics("MODEL", EngineState, lambda: 0, vllm_names=False).render().decode()
    for family in text_string_to_metric_families(shown):
        name = f"{family.name}_total" if family.type == "counter" else family.name
        values: dict[str, dict[str, None]] = {}
        for sample in family.samples:
            for label in sample.labels.keys() - {"model_name", "le"}:
                values.setdefault(label, {})[sample.labels[label]] = None
        labels = "; ".join(f"`{label}`: {', '.join(found)}" for label, found in values.items())
        lines.append(f"| `{name}` | {family.type} | {labels} | {family.documentation} |")
    return "\n".join(lines) + "\n"


def models() -> str:
    """Return every family of models."""
    lines = [
        _HEAD + "# Models\n",
        "`octavo-engine models` prints the same table. The architecture of a model is in its config.json\n"
        "(`architectures`). A model of another architecture is refused with exit code 3, and so is a config.json with\n"
        "a setting that Octavo does not support.\n",
        "- Every family runs on a CPU, on one GPU, and on several GPUs (`--tensor-parallel-size`), even if the number\n"
        "  of heads is not a multiple of the number of GPUs.\n"
        "- Of models that also read images or audio (`text_config`), only the language model runs, for text.\n"
        "- A model that gives text also gives [embeddings](../how-to/openai-api.md#embeddings-scores-and-ranks).\n"
        "- An architecture that is listed as `…ForCausalLM` or `…LMHeadModel` also loads as `…Model`, which has no\n"
        "  head and gives vectors, and as `…ForSequenceClassification`, which gives classes from the last token's\n"
        "  hidden state.\n"
        "- A model needs a tokenizer.json (or Llama's tokenizer.model). The folders that Qwen 1, ChatGLM 2 and 3,\n"
        "  GLM-4 in its own format, InternLM 1, Orion and Baichuan were published in have none, so their tokenizer\n"
        "  has to be converted first.\n"
        "- The column *windows* says whether the family has layers with a sliding window, *--quantization* which\n"
        "  values of this flag it takes for checkpoints that are not quantized, and *GGUF* whether its .gguf files\n"
        "  are read. Experts are quantized to int8 and int4 on CPUs, and on GPUs only if they are gated by SiLU.\n",
        "| " + " | ".join(COLUMNS) + " |",
        "| --- " * len(COLUMNS) + "|",
    ]
    lines += ["| " + " | ".join(row) + " |" for row in table(supported_models())]
    lines += [
        "\n## GGUF files\n",
        "A file is read if its `general.architecture` is one of these. `+` stands for those that are read only with\n"
        "experts, `±` with and without.\n",
        *textwrap.wrap(", ".join(_gguf_names()) + ".", 100, break_on_hyphens=False),
    ]
    return "\n".join(lines) + "\n"


def _gguf_names() -> list[str]:
    """Return each GGUF architecture's name, with a mark that says whether its files may have experts."""
    experts: dict[str, set[bool]] = {}
    for each in ARCHITECTURES:
        experts.setdefault(each.name, set()).add(each.experts)
    marks = {frozenset((False,)): "", frozenset((True,)): "+", frozenset((False, True)): "±"}
    return [f"{name}{marks[frozenset(found)]}" for name, found in sorted(experts.items())]


PAGES = {
    "engine-flags.md": engine_flags,
    "llmservice.md": llmservice,
    "metrics.md": metrics,
    "models.md": models,
}


def main() -> int:
    """Entry point of `python -m docs.generate`."""
    parser = argparse.ArgumentParser(prog="docs.generate", description=__doc__)
    parser.add_argument("--check", action="store_true")
    check = parser.parse_args().check
    FOLDER.mkdir(parents=True, exist_ok=True)
    stale = []
    for name, make in PAGES.items():
        page, text = FOLDER / name, make()
        if check and (not page.exists() or page.read_text() != text):
            stale.append(name)
        elif not check:
            page.write_text(text)
    if stale:
        sys.stderr.write(f"docs/reference is out of date: {', '.join(stale)}; run make docs\n")
    return 1 if stale else 0


if __name__ == "__main__":
    sys.exit(main())
