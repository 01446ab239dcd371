"""The descriptions of the families: the command that lists them, and errors about fields that a family cannot use."""

from __future__ import annotations

import json
from pathlib import Path
from statistics import median

import pytest
from checkpoints import SIZES

from octavo_engine import model
from octavo_engine.cli import main
from octavo_engine.errors import ModelLoadError
from octavo_engine.model.configuration.read_spec import read_spec
from octavo_engine.model.configuration.supported_models import supported_models
from octavo_engine.model.families import FAMILIES
from octavo_engine.model.families.multimodal_classes import WRAPPERS
from octavo_engine.model.source import ModelFiles


def test_every_family_is_listed_with_what_of_it_runs(
    capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    assert main(["models"]) == 0
    assert not caplog.text  # warnings about a model would be about none that there is
    head, *lines = capsys.readouterr().out.splitlines()
    assert head.split() == [
        "architecture",
        "model_type",
        "gives",
        "feed-forward",
        "windows",
        "--quantization",
        "GGUF",
    ]
    rows = {line.split()[0]: line.split() for line in lines}
    assert list(rows) == [*sorted(FAMILIES), *sorted(WRAPPERS)]
    assert main(["models", "--json"]) == 0
    listed = {each["architecture"]: each for each in json.loads(capsys.readouterr().out)}
    assert list(listed) == list(rows) and listed["LlamaForCausalLM"]["quantization"] == ["fp8", "int8", "int4"]
    assert rows["LlamaForCausalLM"][1:] == ["llama", "text", "dense", "no", "fp8", "int8", "int4", "yes"]
    assert rows["GptOssForCausalLM"][1:] == ["gpt_oss", "text", "experts", "yes", "no", "yes"]
    assert rows["DeepseekV3ForCausalLM"][-1] == "yes" and rows["ModernBertForSequenceClassification"][-1] == "no"
    assert rows["BertModel"][1:4] == ["bert", "embeddings", "dense"]
    assert rows["ModernBertForSequenceClassification"][1:5] == ["modernbert", "classes", "dense", "yes"]
    windows = {model.architecture for model in supported_models() if model.windows}
    assert windows >= {"MistralForCausalLM", "Qwen2ForCausalLM", "Gemma3ForCausalLM", "SmolLM3ForCausalLM"}


def read(tmp_path, architecture, **fields):
    """The spec of a config.json."""
    (tmp_path / "config.json").write_text(json.dumps({**SIZES, "architectures": [architecture], **fields}))
    return read_spec(ModelFiles("test", directory=tmp_path))


@pytest.mark.parametrize(
    ("architecture", "field", "value"),
    [
        ("LlamaForCausalLM", "attn_logit_softcapping", 50.0),
        ("GemmaForCausalLM", "residual_multiplier", 0.2),
        ("Qwen3ForCausalLM", "kv_lora_rank", 512),
        ("OlmoForCausalLM", "use_parallel_residual", None),
        ("GraniteForCausalLM", "alibi", True),
    ],
)
def test_a_field_that_changes_answers_and_is_not_read_is_refused(tmp_path, architecture, field, value) -> None:
    if value is None or value is True:  # nothing is asked for
        assert read(tmp_path, architecture, **{field: None}) == read(tmp_path, architecture)
    if value is not None:
        with pytest.raises(ModelLoadError, match=f"{field} {value} changes answers, and {architecture}"):
            read(tmp_path, architecture, **{field: value})


def test_a_family_may_state_what_has_no_effect_on_it(tmp_path) -> None:
    stated = read(tmp_path, "Gemma3ForCausalLM", attn_logit_softcapping=50.0)
    assert stated == read(tmp_path, "Gemma3ForCausalLM")


def test_the_files_of_families_are_short() -> None:
    """No more than 120 lines, half of them no more than 60; but for what many families read alike and the registry."""
    shared = {"__init__.py", "reading.py", "rope.py"}
    files = [file for file in (Path(model.__file__).parent / "families").glob("*.py") if file.name not in shared]
    lines = {file.name: len(file.read_text().splitlines()) for file in files}
    assert {name: count for name, count in lines.items() if count > 120} == {}
    assert median(lines.values()) <= 60
