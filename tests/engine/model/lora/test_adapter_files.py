"""Adapter files from untrusted sources: the error names the fault, and nothing of the adapter is used."""

from __future__ import annotations

import gc
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from adapters import PREFIX, write_adapter

from octavo_engine.engine.adapter_store import AdapterStore
from octavo_engine.errors import AdapterNotFoundError, ModelLoadError
from octavo_engine.model.checkpoint.names import StoredNames
from octavo_engine.model.lora import adapter_files
from octavo_engine.model.lora.adapter import Adapter, AdapterModule, MemoryFile, decode_write, encode_write
from octavo_engine.model.lora.adapter_files import AdapterLimits, read_adapter
from octavo_engine.model.lora.expert_targets import ExpertStack
from octavo_engine.model.lora.module_names import ModuleNames
from octavo_engine.model.lora.peft_config import PeftConfig, read_peft_config
from octavo_engine.model.lora.targets import ModuleShape
from octavo_engine.model.source import resolve_adapter

Q, V = "model.layers.0.self_attn.q_proj", "model.layers.0.self_attn.v_proj"
NAMES = ModuleNames(
    {Q: ModuleShape(32, 16), V: ModuleShape(8, 16)},
    StoredNames(renamed=(("model.language_model.", "model."),)),
    {"lm_head": "adapters of the head are not supported", "experts": "experts cannot have adapters yet"},
)
LIMITS = AdapterLimits(NAMES, max_rank=8, half=False)
CONFIG = {"peft_type": "LORA", "r": 4, "lora_alpha": 8, "target_modules": ["q_proj"]}


def tensors(module: str = Q, rank: int = 4, rows: int = 32, columns: int = 16) -> dict[str, torch.Tensor]:
    name = f"{PREFIX}{module}"
    return {
        f"{name}.lora_A.weight": torch.full((rank, columns), 0.5),
        f"{name}.lora_B.weight": torch.full((rows, rank), 0.25),
    }


def read(
    folder: Path, found: dict[str, torch.Tensor] | None = None, limits: AdapterLimits = LIMITS, **config: Any
) -> Adapter:
    return read_adapter(write_adapter(folder, tensors() if found is None else found, {**CONFIG, **config}), limits)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"peft_type": "IA3"}, ["peft_type", "IA3"]),
        ({"use_dora": True}, ["use_dora", "DoRA"]),
        ({"bias": "lora_only"}, ["bias", "lora_only"]),
        ({"lora_bias": True}, ["lora_bias"]),
        ({"modules_to_save": ["lm_head"]}, ["modules_to_save", "lm_head"]),
        ({"layer_replication": [[0, 1], [0, 1]]}, ["layer_replication"]),
        ({"init_lora_weights": "pissa"}, ["init_lora_weights", "pissa"]),
        ({"trainable_token_indices": [1]}, ["trainable_token_indices"]),
        ({"target_parameters_beside": ["x"]}, ["target_parameters_beside"]),
        ({"r": 16}, ["rank 16", "--max-lora-rank is 8", "raise --max-lora-rank to 16"]),
        ({"r": 0}, ["r '0'"]),
        ({"r": "4"}, ["r '4'"]),
        ({"use_rslora": "false"}, ["use_rslora 'false'", "neither true nor false"]),
        ({"lora_alpha": 1e300}, ["lora_alpha", "is not a number between -1e6 and 1e6, other than 0"]),
        ({"lora_alpha": float("nan")}, ["lora_alpha"]),
        ({"alora_invocation_tokens": [5]}, ["alora_invocation_tokens", "activated LoRA"]),
        ({"rank_pattern": {"(a+)+$": 4}}, ["rank_pattern", "too long"]),
        ({"alpha_pattern": {".*.*.*.*.*q": 4}}, ["alpha_pattern", "too long"]),
        ({"alpha_pattern": {f".*{n}.*.*.*q": 4 for n in range(4)}}, ["alpha_pattern", "too long"]),
        ({"alpha_pattern": {"(": 4}}, ["alpha_pattern", "not a regular expression"]),
        ({"alpha_pattern": {"(?i)q": 4}}, ["alpha_pattern", "not a regular expression"]),
        ({"rank_pattern": {"q_proj": 2}}, ["expected [2, 16]", "rank 2"]),
    ],
)  # fmt: skip
def test_a_configuration_that_would_be_computed_otherwise_is_refused_by_name(
    changes: dict[str, Any], words: list[str], tmp_path: Path
) -> None:
    with pytest.raises(ModelLoadError) as error:
        read(tmp_path, **changes)
    assert all(word in str(error.value) for word in words), error.value


BAD: dict[str, tuple[dict[str, torch.Tensor], list[str]]] = {
    "other model": (tensors(Q.replace("0", "9")), ["layers.9", "no such linear layer", Q]),
    "shape": (tensors(columns=17), ["[4, 17]", "expected [4, 16]", "16 to 32"]),
    "rank": (tensors(rank=3), ["[3, 16]", "rank 4"]),
    "half": (dict([next(iter(tensors().items()))]), ["lora_A is present without lora_B"]),
    "nothing": ({}, ["no tensors"]),
    "integers": ({name: tensor.int() for name, tensor in tensors().items()}, ["I32", "floating point"]),
    "nan": ({name: tensor * float("nan") for name, tensor in tensors().items()}, ["not finite"]),
    "infinite": ({name: (tensor / 0).half() for name, tensor in tensors().items()}, ["not finite"]),
    "infinite bfloat16": ({name: (tensor / 0).bfloat16() for name, tensor in tensors().items()}, ["not finite"]),
    "head": (tensors("lm_head"), ["adapters of the head"]),
    "saved head": ({f"{PREFIX}lm_head.base_layer.weight": torch.ones(9, 16)}, ["head, which are not supported"]),
    "experts": (tensors("model.layers.0.mlp.experts.3.up_proj"), ["experts cannot have adapters"]),
    "embedding": ({f"{PREFIX}model.embed_tokens.lora_embedding_A": torch.ones(4, 9)}, ["embeddings"]),
    "magnitude": ({f"{PREFIX}{Q}.lora_magnitude_vector": torch.ones(32)}, ["DoRA"]),
    "saved": ({**tensors(), f"{PREFIX}model.norm.weight": torch.ones(16)}, ["model.norm.weight", "not a lora_A"]),
    "twice": ({**tensors(), **tensors(f"model.language_model.{Q.removeprefix('model.')}")}, ["another module"]),
    "both names": (
        {**tensors(), f"{PREFIX}{Q}.lora_A.default.weight": torch.ones(4, 16)},
        ["lora_A.default.weight' and", "both lora_A of one module"],
    ),
    "long name": (tensors("x" * 2000), ["its name has 2031 characters"]),
    "no part of it": ({**tensors(), "x": torch.zeros(9)}, ["tensor 'x'", "not a lora_A or lora_B"]),
    "large": (tensors(rank=4000), ["[4000, 16]", "expected [4, 16]"]),
}


@pytest.mark.parametrize("kind", BAD)
def test_a_file_of_bad_tensors_is_refused_by_name(kind: str, tmp_path: Path) -> None:
    found, words = BAD[kind]
    with pytest.raises(ModelLoadError) as error:
        read(tmp_path, found)
    assert all(word in str(error.value) for word in words), error.value


@pytest.mark.parametrize("found", [tensors(rank=300_000), {**tensors(), "x": torch.zeros(5_000_000)}])
def test_nothing_is_copied_of_a_file_that_is_no_adapter_of_the_model(
    found: dict[str, torch.Tensor], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(adapter_files, "_copy", pytest.fail)
    with pytest.raises(ModelLoadError, match=r"adapter_model\.safetensors: "):
        read(tmp_path, found)


def test_a_header_that_is_longer_than_an_adapter_of_the_model_has_is_not_parsed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """To parse 30 MiB takes long, and meanwhile no step is planned."""
    monkeypatch.setattr(adapter_files, "parse_header", pytest.fail)
    with pytest.raises(ModelLoadError, match=r"a header of \d+ bytes, and at most 1049\d\d\d are read"):
        read(tmp_path, {**tensors(), **{f"{'x' * 600}{n}": torch.zeros(0) for n in range(2000)}})


def test_an_adapter_of_layers_without_slots_is_refused_by_their_reason(tmp_path: Path) -> None:
    """Although its header is longer than one of all layers that have slots."""
    others = {f"model.layers.{n}.mlp.experts.{'x' * 400}": "it is not among --lora-target-modules" for n in range(2000)}
    found: dict[str, torch.Tensor] = {}
    for name in others:
        found |= tensors(name, rows=1, rank=1, columns=1)
    limits = AdapterLimits(replace(NAMES, left_out=others), max_rank=8, half=False)
    with pytest.raises(ModelLoadError, match="it is not among --lora-target-modules"):
        read(tmp_path, found, limits)


def test_a_projection_alone_and_together_with_others_is_refused(tmp_path: Path) -> None:
    """Both change the same rows, and only one of them could be kept."""
    limits = AdapterLimits(replace(NAMES, whole_of={Q: V}), max_rank=8, half=False)
    assert read(tmp_path, limits=limits).modules
    with pytest.raises(
        ModelLoadError, match=r"q_proj: the file has a module of .*v_proj, too, which includes its rows"
    ):
        read(tmp_path, {**tensors(), **tensors(V, rows=8)}, limits)


def test_more_patterns_than_can_be_compared_with_so_many_modules_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(adapter_files, "_MOST_COMPARISONS", 9)
    both = {**tensors(), **tensors(V, rows=8)}
    assert len(read(tmp_path, both, rank_pattern={f"x{n}": 4 for n in range(4)}).modules) == 2
    for field in ("rank_pattern", "alpha_pattern"):
        with pytest.raises(ModelLoadError, match=rf"{field} has 5 patterns for 2 modules, .* at most 4 are compared"):
            read(tmp_path, both, **{field: {f"x{n}": 4 for n in range(5)}})


def test_patterns_that_take_long_are_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(adapter_files, "_MOST_SECONDS", -1.0)
    with pytest.raises(ModelLoadError, match=r"to find 1 modules takes more than .* adapter_config.json"):
        read(tmp_path, alpha_pattern={".*.*.*q": 4})


def test_an_adapter_that_grows_while_it_is_copied_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else a writer that never ends would fill the memory."""
    folder, modules_of = write_adapter(tmp_path, tensors(), CONFIG), adapter_files._modules
    monkeypatch.setattr(adapter_files, "_COPY_BYTES", 1000)
    copied, write = list[int](), os.write

    def then_it_grows(*arguments: Any) -> Any:
        with (folder / "adapter_model.safetensors").open("ab") as file:
            file.truncate(1 << 24)
        return modules_of(*arguments)

    monkeypatch.setattr(adapter_files, "_modules", then_it_grows)
    monkeypatch.setattr(adapter_files.os, "write", lambda fd, data: copied.append(write(fd, data)) or copied[-1])
    with pytest.raises(ModelLoadError, match="changed while they were read"):
        read_adapter(folder, LIMITS)
    assert sum(copied) < 10_000


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.float64])
@pytest.mark.parametrize("place", [0, -1])
def test_one_number_that_is_not_finite_is_found(
    dtype: torch.dtype, place: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever its sign, in the first and the last part that is checked."""
    monkeypatch.setattr(adapter_files, "_CHECK_BYTES", 16)
    found = {name: tensor.to(dtype) for name, tensor in tensors().items()}
    found[f"{PREFIX}{Q}.lora_A.weight"].zero_()  # so that no product is too large
    b = found[f"{PREFIX}{Q}.lora_B.weight"].view(-1)
    b[place] = -torch.finfo(dtype).max if dtype != torch.float64 else -3e38
    assert read(tmp_path / "largest", found).rank == 4
    infinity = float("inf")
    for number in (infinity, -infinity, float("nan"), *([1e39] if dtype == torch.float64 else [])):
        b[place] = number
        with pytest.raises(ModelLoadError, match=r"lora_B\.weight' holds a number that is not finite"):
            read(tmp_path / str(number), found)


def test_products_that_overflow_are_refused_with_both_tensors(tmp_path: Path) -> None:
    """Finite numbers, too, can leave no answer: each request for the adapter would be an internal error."""
    large = {name: torch.full_like(tensor, 1e8) for name, tensor in tensors().items()}
    message = r"lora_A.* and .*lora_B.* hold numbers up to 1e\+08 and 1e\+08, and so they may change a weight by 4e\+16"
    with pytest.raises(ModelLoadError, match=message):
        read(tmp_path, large, lora_alpha=4)
    assert read(tmp_path, large, lora_alpha=0.01).rank == 4


def test_numbers_that_float16_does_not_have_are_refused_where_it_is_computed_in(tmp_path: Path) -> None:
    large = {name: tensor * 1e6 for name, tensor in tensors().items()}
    assert read(tmp_path, large).rank == 4
    with pytest.raises(ModelLoadError, match="float16's largest"):
        read(tmp_path, large, AdapterLimits(NAMES, 8, half=True))


def _cut(folder: Path) -> None:
    path = folder / "adapter_model.safetensors"
    path.write_bytes(path.read_bytes()[:-8])


def _pickle(folder: Path) -> None:
    (folder / "adapter_model.safetensors").rename(folder / "adapter_model.bin")


def _pipe(folder: Path) -> None:
    """A pipe without a writer: opening it would wait for one."""
    (folder / "adapter_config.json").unlink()
    os.mkfifo(folder / "adapter_config.json")


@pytest.mark.parametrize(
    ("spoil", "words", "missing"),
    [
        (_cut, ["adapter_model.safetensors", "cut short"], False),
        (_pipe, ["adapter_config.json", "no such file"], True),
        (_pickle, ["adapter_model.bin, a pickle"], True),
        (lambda folder: (folder / "adapter_config.json").unlink(), ["adapter_config.json", "no such file"], True),
        (lambda folder: (folder / "adapter_config.json").write_text("{"), ["not valid JSON"], False),
        (lambda folder: (folder / "adapter_config.json").write_text("[" * 100_000), ["not valid JSON"], False),
        (
            lambda folder: (folder / "adapter_config.json").write_text(" " * (2 << 20)),
            ["too large"],
            False,
        ),
        (lambda folder: (folder / "adapter_config.json").write_text("[]"), ["not an object"], False),
    ],
)
def test_a_spoilt_directory_is_refused(
    spoil: Callable[[Path], object], words: list[str], missing: bool, tmp_path: Path
) -> None:
    folder = write_adapter(tmp_path, tensors(), CONFIG)
    spoil(folder)
    with pytest.raises(ModelLoadError) as error:
        read_adapter(folder, LIMITS)
    assert all(word in str(error.value) for word in words), error.value
    assert str(tmp_path) in str(error.value)
    assert isinstance(error.value, AdapterNotFoundError) == missing


@pytest.mark.parametrize("replaced", [True, False])
def test_files_that_change_while_they_are_read_are_refused(
    replaced: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else weights of one adapter could be computed with the scale of another, or be half of each."""
    folder, other = write_adapter(tmp_path / "a", tensors(), CONFIG), tmp_path / "b"
    read_config = adapter_files.read_peft_config

    def then_saved_anew(directory: Path) -> PeftConfig:
        config = read_config(directory)
        write_adapter(other if replaced else folder, tensors(), {**CONFIG, "lora_alpha": 160})
        if replaced:
            for file in other.iterdir():
                file.replace(folder / file.name)
        return config

    monkeypatch.setattr(adapter_files, "read_peft_config", then_saved_anew)
    with pytest.raises(ModelLoadError, match="changed while they were read"):
        read_adapter(folder, LIMITS)
    monkeypatch.undo()
    assert read_adapter(folder, LIMITS).modules[0].scale == 40


def test_a_file_that_is_cut_short_while_it_is_read_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder, read_header = write_adapter(tmp_path, tensors(), CONFIG), adapter_files.header_bytes

    def then_it_is_cut(path: Path, *arguments: Any) -> bytes:
        os.truncate(path, 4)
        return read_header(path, *arguments)

    monkeypatch.setattr(adapter_files, "header_bytes", then_it_is_cut)
    with pytest.raises(ModelLoadError, match="cut short while it was read"):
        read_adapter(folder, LIMITS)


@pytest.mark.parametrize("path", ["", "/no/such/place", "three/parts/here", "x" * 5000, "a\0b"])
def test_what_is_no_place_of_an_adapter_is_not_found(path: str) -> None:
    with pytest.raises(AdapterNotFoundError):
        resolve_adapter(path)


def test_names_and_types_that_peft_has_written_are_read(tmp_path: Path) -> None:
    old = {name.replace(".weight", ".default.weight"): tensor.bfloat16() for name, tensor in tensors().items()}
    wrapped = tensors(f"model.language_model.{V.removeprefix('model.')}", rank=2, rows=8)
    adapter = read(tmp_path, {**old, **wrapped}, rank_pattern={"v_proj": 2}, alpha_pattern={"layers.[0-3].*v_proj": 6})
    assert {module.name: (module.rank, module.scale) for module in adapter.modules} == {Q: (4, 2.0), V: (2, 3.0)}
    assert adapter.rank == 4


@pytest.mark.parametrize(
    ("base", "served", "warns"),
    [
        ("meta-llama/Llama-3.1-8B", "meta-llama/Llama-3.1-8B-Instruct", True),
        ("unsloth/Meta-Llama-3.1-8B-Instruct-bnb-4bit", "meta-llama/Llama-3.1-8B-Instruct", False),
        ("openai/gpt-oss-20b", "unsloth/gpt-oss-20b-BF16", False),
        ("openai/gpt-oss-20b", "unsloth/gpt-oss-20b-GGUF:Q4_K_M", False),
        ("openai/gpt-oss-20b", "unsloth/gpt-oss-120b-GGUF:Q4_K_M", True),
        ("Qwen/Qwen3-8B", "Qwen/Qwen3-8B-FP8", False),
        ("owner/phi4mini", "other/phi4", True),
        ("/home/me/checkpoint", "owner/model", False),
        ("owner/model", "/models/own", False),
        (None, "owner/model", False),
    ],
)
def test_an_adapter_of_another_base_model_is_warned_of(
    base: str | None, served: str, warns: bool, tmp_path: Path
) -> None:
    write_adapter(tmp_path, tensors(), {**CONFIG, "base_model_name_or_path": base})
    warning = AdapterStore(LIMITS, 1, served).load("a", str(tmp_path)).warning
    assert (f"trained on {base}, and {served} is served" in warning) if warns else not warning


def test_the_digest_is_of_weights_and_scales(tmp_path: Path) -> None:
    digests = [
        read(tmp_path / "a").digest,
        read(tmp_path / "b").digest,
        read(tmp_path / "c", lora_alpha=9).digest,
        read(tmp_path / "d", {name: tensor + 1 for name, tensor in tensors().items()}).digest,
    ]
    assert digests[0] == digests[1]
    assert len(set(digests)) == 3


def test_the_digest_tells_transposed_weights_from_others(tmp_path: Path) -> None:
    """Of a square parameter only PEFT's version says which they are."""
    experts = "model.layers.0.mlp.experts"
    name = f"{experts}.down_proj"
    shapes, stack = {name: ModuleShape(16, 16, 2)}, ExpertStack({name: ModuleShape(16, 16)}, "rows")
    limits = replace(LIMITS, names=replace(NAMES, shapes=shapes, stacks={experts: stack}))
    found = {
        f"{PREFIX}{experts}.lora_A.weight": torch.ones(8, 16),
        f"{PREFIX}{experts}.lora_B.weight": torch.ones(16, 8),
    }
    old, new = (read(tmp_path / version, found, limits, peft_version=version) for version in ("0.18.1", "0.19.0"))
    assert old.digest != new.digest


def test_the_file_of_an_adapter_is_there_for_as_long_as_a_write_of_it() -> None:
    """Its requests may have left, and others' adapters taken its slot, before a busy device comes to the write."""
    file = MemoryFile("adapter")
    modules = (AdapterModule("layer", "a", "b", 1, 1.0, 1),)
    (write,) = Adapter("digest", 1, modules, 1, file).writes(0)
    path = Path(write.path)
    del file
    gc.collect()
    assert path.exists()
    assert decode_write(encode_write(write)) == write
    del write
    gc.collect()
    assert not path.exists()


def test_an_adapter_is_written_in_bounded_parts(tmp_path: Path) -> None:
    """Modules are put together up to 8 MiB, and larger ones, such as those of all experts, are cut by ranks."""
    mebibytes = {"small": 1, "large": 30, "one rank": 20, "last": 1}
    modules = tuple(
        AdapterModule(name, "a", "b", 1 if name == "one rank" else 16, 1.0, size << 20)
        for name, size in mebibytes.items()
    )
    adapter = replace(read(tmp_path), modules=modules)
    writes = list(adapter.writes(3))
    found = [[(part.module.name, part.begin, part.end) for part in write.modules] for write in writes]
    quarters = [[("large", begin, begin + 4)] for begin in range(0, 16, 4)]
    assert found == [[("small", 0, 16)], *quarters, [("one rank", 0, 1)], [("last", 0, 16)]]
    assert [sum(part.num_bytes for part in write.modules) / 2**20 for write in writes] == [1, 7.5, 7.5, 7.5, 7.5, 20, 1]
    assert [decode_write(encode_write(write)) for write in writes] == writes
    assert [(write.slot, write.first, write.last) for write in writes] == [
        (3, index == 0, index == 6) for index in range(7)
    ]


@pytest.mark.parametrize(
    ("pattern", "module", "fits"),
    [
        ("q_proj", Q, True),
        ("proj", Q, False),
        ("layers.0.self_attn.q_proj", Q, True),
        ("^q_proj", Q, False),
        (r"layers\.\d+\.self_attn\.q_proj", Q, True),
        ("layers.[1-9].self_attn.q_proj", Q, False),
        ("k_proj|q_proj", Q, True),
        (r"^model\.layers\.(?:0|1)\..*q_proj$", Q, True),
        (r".*\.layers\.\d+\..*q_proj", Q, True),
        (r"\bq_proj", Q, True),
    ],
)
def test_patterns_fit_as_in_peft(pattern: str, module: str, fits: bool, tmp_path: Path) -> None:
    write_adapter(tmp_path, tensors(), {**CONFIG, "alpha_pattern": {pattern: 4}})
    assert read_peft_config(tmp_path).scale(module, 4) == (1.0 if fits else 2.0)


def test_every_module_of_a_large_model_may_have_a_rank_of_its_own(tmp_path: Path) -> None:
    """EVA writes such files."""
    ranks = {f"model.layers.{layer}.self_attn.{name}_proj": 5 for layer in range(200) for name in "qkvo"}
    write_adapter(tmp_path, tensors(), {**CONFIG, "rank_pattern": ranks})
    config = read_peft_config(tmp_path)
    assert config.rank_of("model.layers.199.self_attn.o_proj") == 5
    assert config.rank_of("model.layers.200.self_attn.o_proj") == 4


@pytest.mark.parametrize("config", ["corda_config", "lora_ga_config", "loftq_config"])
def test_what_was_converted_to_plain_lora_is_read(config: str, tmp_path: Path) -> None:
    """PEFT leaves the configuration of the first weights there."""
    assert read(tmp_path, init_lora_weights=True, **{config: {"beta": 1}}).rank == 4
