"""`make bench-gpu` without a GPU: lower bounds checked by other formulas, a dry run of every part, targets and page."""

from __future__ import annotations

import json
import math
import re
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch.autograd import DeviceType

from bench.gpu import __main__ as bench_gpu
from bench.gpu import floors, peers, roofline, shapes, startup
from bench.gpu.busy import seconds_by_kernel, short_name, union_seconds
from bench.gpu.context import FULL, TINY, Context
from bench.gpu.floors import Rates
from bench.gpu.result import Figure, Part, Result, read, timed
from bench.gpu.shapes import Shape
from bench.gpu.targets import AIMS, targets

RATES = Rates("round numbers", 1e12, {"bf16": 1e14, "fp8": 2e14})


@pytest.mark.parametrize(
    ("shape", "millions"), [(shapes.LLAMA_8B, 8030), (shapes.LLAMA_1B, 1236), (shapes.QWEN3_06B, 596)]
)
def test_shapes_have_as_many_weights_as_published(shape: Shape, millions: int) -> None:
    assert round(sum(math.prod(size) for _, size in shape.tensors()) / 1e6) == millions


@pytest.mark.parametrize("shape", [shapes.TINY_LLAMA, shapes.TINY_QWEN3, shapes.TINY_GPT_OSS], ids=lambda s: s.name)
def test_checkpoints_have_the_names_and_shapes_that_transformers_expects(shape: Shape, tmp_path: Path) -> None:
    import transformers

    (tmp_path / "config.json").write_text(json.dumps(shape.config()))
    config = transformers.AutoConfig.from_pretrained(tmp_path)
    with torch.device("meta"):
        model = transformers.AutoModelForCausalLM.from_config(config)
    theirs = {name: tuple(value.shape) for name, value in model.named_parameters() if ".experts." not in name}
    ours = {name: size for name, size in shape.tensors() if ".experts." not in name}
    assert ours == theirs
    assert model.__class__.__name__ == shape.architecture


@pytest.mark.parametrize("shape", [shapes.TINY_LLAMA, shapes.TINY_QWEN3], ids=lambda s: s.name)
def test_floors_count_what_a_loop_over_tensors_and_positions_counts(shape: Shape) -> None:
    matrices = {name: size for name, size in shape.tensors() if len(size) == 2}
    embedding = matrices.pop("model.embed_tokens.weight")
    matrices.setdefault("lm_head.weight", embedding)
    weights = sum(math.prod(size) for size in matrices.values())
    past = 0
    for _layer in range(shape.layers):
        for _token in range(20):
            past += 2 * shape.kv_heads * shape.head_dim * 2
    step = floors.decode(shape, 3, 20, RATES)
    assert step.bytes == 2 * weights + 3 * past
    pairs = sum(shape.heads * (place + 1) for place in range(20)) * shape.layers
    prompt = floors.prefill(shape, 20, RATES)
    head = math.prod(embedding)
    assert prompt.operations == 2 * (20 * (weights - head) + head) + pairs * 4 * shape.head_dim
    attention = 3 * 20 * 4 * shape.query * shape.layers
    assert step.operations == 3 * 2 * weights + attention
    products = max(2 * (weights - head) / 1e12, 6 * (weights - head) / 1e14) + max(2 * head / 1e12, 6 * head / 1e14)
    assert step.seconds == pytest.approx(products + max(3 * past / 1e12, attention / 1e14))


def test_products_and_attention_take_their_time_one_after_another() -> None:
    """256 tokens are multiplied as quickly as compute allows, while 34 GB of keys and values are read for attention."""
    step = floors.decode(shapes.LLAMA_8B, 256, 1024, floors.H200_SEEN)
    assert (round(1e3 * step.seconds, 1), step.bound) == (12.9, "both")
    assert step.bytes / floors.H200_SEEN.read == pytest.approx(11.5e-3, rel=0.01), "less than both together"
    both = floors.mixed(shapes.LLAMA_8B, 32, 1024, 2048, floors.H200_SEEN).seconds
    alone = floors.prefill(shapes.LLAMA_8B, 2048, floors.H200_SEEN).seconds
    assert alone < both < alone + floors.decode(shapes.LLAMA_8B, 32, 1024, floors.H200_SEEN).seconds


def test_kernels_are_distinguished_by_their_functions() -> None:
    assert short_name("void cutlass::Kernel2<cutlass_80_wmma, float>(Params)") == "cutlass::Kernel2"
    assert short_name("attention_kernel") == "attention_kernel"
    events = [
        SimpleNamespace(name=name, device_type=kind, time_range=SimpleNamespace(start=start, end=end))
        for name, kind, start, end in (
            ("norm", DeviceType.CUDA, 0, 1e6),
            ("aten::mm", DeviceType.CPU, 0, 9e6),
            ("void mm<a>(b)", DeviceType.CUDA, 1e6, 4e6),
            ("norm", DeviceType.CUDA, 5e6, 6e6),
        )
    ]
    found = seconds_by_kernel(SimpleNamespace(events=lambda: events))
    assert list(found.items()) == [("mm", 3.0), ("norm", 2.0)]


def test_experts_are_counted_once_for_all_tokens_that_need_them() -> None:
    shape = shapes.TINY_GPT_OSS
    one, many = floors.weight_bytes(shape, 1), floors.weight_bytes(shape, 1000)
    expert = 3 * shape.hidden * shape.inner * (0.5 + 1 / 32)
    assert many - one == pytest.approx(shape.layers * expert * (shape.experts - shape.active_experts))
    layer = floors.kv_bytes(shape, 1000) - floors.kv_bytes(shape, 32)
    assert layer == 968 * 2 * shape.key * 2, "one of two layers sees no further than its window"
    assert floors.attention_operations(shape, 100, 1) == 4 * shape.query * (101 + 32)


@pytest.mark.parametrize("weights", ["bf16", "fp8"])
def test_prompts_that_share_a_step_share_its_weights(weights: str) -> None:
    """Memory is so slow here that one short prompt alone takes as long as reading the weights."""
    shape, slow = shapes.TINY_LLAMA, Rates("slow memory", 1e9, {"bf16": 1e14, "fp8": 2e14})
    run = floors.offline(shape, 8, 4, 6, 4, slow, weights)
    step = floors.decode(shape, 4, 4 + 3, slow, weights)
    prompts = 8 * floors.prefill(shape, 4, slow, weights).operations
    assert run.seconds == pytest.approx(prompts / slow.matmul[weights] + 2 * 6 * step.seconds)
    assert run.operations == prompts + 12 * step.operations
    assert floors.prefill(shape, 4, slow, weights).bound == "memory", "which is not counted for each of them"


def test_a_shared_beginning_is_computed_once() -> None:
    shape = shapes.TINY_QWEN3
    alone = floors.offline(shape, 4, 20 + 5, 6, 4, RATES)
    assert floors.shared_beginnings(shape, 4, 4, 20, 5, 6, 4, RATES).operations == alone.operations
    two = floors.shared_beginnings(shape, 4, 2, 20, 5, 6, 4, RATES)
    beginning = floors.prefill(shape, 20, RATES).operations - 2 * shape.vocab * shape.hidden
    assert alone.operations - two.operations == 2 * beginning
    assert alone.seconds - two.seconds == pytest.approx(2 * beginning / RATES.matmul["bf16"])


def test_what_overlaps_is_busy_once() -> None:
    assert union_seconds([(5.0, 6.0), (0.0, 2.0), (1.0, 3.0), (1.5, 1.75)]) == 4.0


def test_a_dry_run_of_every_part(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    arguments = ["--tiny", "--device=cpu", f"--out={tmp_path / 'out'}", f"--scratch={tmp_path / 'scratch'}"]
    monkeypatch.setattr(sys, "argv", ["bench.gpu", *arguments])
    assert bench_gpu.main() == 0
    [file] = (tmp_path / "out").glob("*.json")
    written = json.loads(file.read_text())
    assert set(written["parts"]) == set(bench_gpu.PARTS)
    assert {part["ended"] for part in written["parts"].values()} == {"in time"}
    assert [set(target) for target in written["targets"]] == [{"name", "target", "unit", "measured", "note"}] * len(
        AIMS
    )
    assert {target["measured"] for target in written["targets"]} == {None}, "a dry run measures no target"
    assert all(target["note"].startswith("not measured") for target in written["targets"])
    figures = {figure.key: figure for part in read(file).parts.values() for figure in part.figures}
    absent = {"fp8 matmul", "vLLM offline"}
    assert [key for key, figure in figures.items() if figure.value is None and figure.what not in absent] == []
    assert "No module named 'vllm'" in figures["tiny-llama/vLLM offline/8 + 8"].note
    for key in (
        "tiny-llama/decode step/batch 4, context 32",
        "tiny-llama/sampled decode step/batch 4, context 32",
        "tiny-llama/decode step/batch 3, context 16–64",
        "tiny-llama/prefill/16 tokens",
        "tiny-llama/chunk/4 tokens after 32",
        "tiny-llama/mixed step/8 tokens beside 2 decodes at 16",
        "tiny-llama/short prompt/8 tokens",
        "tiny-llama/short prompt/8 tokens beside 2 decodes at 16",
        "tiny-llama/short prompt/8 tokens, as CUDA graphs",
        "tiny-llama/linears, AWQ/2 tokens",
        "tiny-llama/paged decode/batch 2, context 64",
        "tiny-llama/GPU busy/batch 1, context 32",
        "tiny-llama/offline/8 + 8",
        "tiny-llama/transformers generate/batches of 4",
        "tiny-llama/transformers continuous batching/4 requests",
        "tiny-llama/start to ready/from disk, kernels to compile",
        "tiny-llama/start to ready/from disk",
    ):
        assert (figures[key].value or 0.0) > 0, key
    for key in (
        "tiny-llama-fp8/offline/8 + 8",
        "tiny-llama-int4/decode step/batch 4, context 32",
        "tiny-llama-adapters/decode step/batch 4, context 32, without adapters",
        "tiny-llama-adapters/decode step/batch 4, context 32, 8 adapters of rank 16",
        "tiny-llama-adapters/tokens/batch 4, context 32",
        "tiny-qwen3/decode step/batch 4, context 32",
        "tiny-gpt-oss/decode step/batch 4, context 32",
        "tiny-gpt-oss/offline/8 + 8",
    ):
        assert (figures[key].value or 0.0) > 0, key
    heavy = [figure for key, figure in figures.items() if "/offline, prefix-heavy/" in key]
    assert [figure.model for figure in heavy] == ["tiny-llama", "tiny-llama-fp8", "tiny-qwen3", "tiny-gpt-oss"]
    assert all(figure.fraction for figure in heavy)
    written_for = {path.name for path in (tmp_path / "scratch").iterdir()}
    assert written_for == {"tiny-llama", "tiny-llama-adapters", "tiny-qwen3", "tiny-gpt-oss"}
    assert "## peers" in file.with_suffix(".md").read_text()
    assert len(list((tmp_path / "out").glob("*.png"))) == 2


def test_quick_measures_the_most_telling_steps_of_a_model(tmp_path: Path) -> None:
    quick = FULL.quick()
    assert (quick.batches, quick.contexts, quick.prompts) == ((1, 256, 32), (1024,), (8192, 2048))
    context = Context(torch.device("cpu"), RATES, replace(TINY.quick(), batches=(1,)), tmp_path)
    whats = {figure.what for figure in bench_gpu.PARTS["qwen3-0.6b"](context)}
    assert whats == {"decode step", "GPU busy", "prefill"}


VLLM = """
from types import SimpleNamespace

__version__ = "1.2.3"

class SamplingParams:
    def __init__(self, max_tokens, temperature, ignore_eos):
        assert temperature == 0 and ignore_eos
        self.max_tokens = max_tokens

class LLM:
    def __init__(self, model, dtype, max_num_seqs, max_model_len, enable_prefix_caching, gpu_memory_utilization):
        assert dtype == "bfloat16" and not enable_prefix_caching

    def generate(self, prompts, params, use_tqdm):
        assert all(prompt["prompt_token_ids"] for prompt in prompts)
        made = SimpleNamespace(token_ids=[5] * (params.max_tokens - {missing}))
        return [SimpleNamespace(outputs=[made]) for _ in prompts]
"""


@pytest.mark.parametrize("missing", [0, 1])
def test_vllm_runs_beside_where_there_is_one(missing: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Here a pretended one, in a process of its own; one that does not give what was asked for is not counted."""
    (tmp_path / "vllm.py").write_text(VLLM.replace("{missing}", str(missing)))
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    [figure] = peers.vllm(Context(torch.device("cpu"), RATES, TINY, tmp_path / "scratch"))
    assert figure.key == "tiny-llama/vLLM offline/8 + 8"
    if missing:
        assert figure.value is None and "not as many tokens" in figure.note
    else:
        assert figure.rounds == 2 and (figure.value or 0) > 0 and "vLLM 1.2.3" in figure.note


def test_kernels_are_compiled_in_the_first_start_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every process finds in its TRITON_CACHE_DIR what those before it left there, the first finds nothing."""
    report = f"""
import json, os
from pathlib import Path
kernels = Path(os.environ["TRITON_CACHE_DIR"])
with Path({str(tmp_path / "found")!r}).open("a") as file:
    file.write(str(len(list(kernels.iterdir()))))
(kernels / str(os.getpid())).touch()
print(json.dumps({{"load_seconds": 1.5}}))
"""
    (tmp_path / "python").write_text(f"#!{sys.executable}\n{report}")
    (tmp_path / "python").chmod(0o755)
    monkeypatch.setattr(startup.sys, "executable", str(tmp_path / "python"))
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    context = Context(torch.device("cpu"), RATES, replace(TINY, warm_starts=2), tmp_path / "scratch")
    figures = list(startup.startup(context))
    assert (tmp_path / "found").read_text() == "0123"
    assert [figure.case for figure in figures] == [
        "from disk, kernels to compile",
        "from disk",
        "from the page cache",
    ]
    assert "TRITON_CACHE_DIR was empty; 1.5 s of loading" in figures[0].note
    assert "compiled by an earlier start" in figures[1].note


def test_only_for_a_large_checkpoint_is_the_machines_page_cache_dropped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "model.safetensors").write_bytes(bytes(5000))
    monkeypatch.setattr(startup, "_DROP", drop := tmp_path / "drop_caches")
    monkeypatch.setattr(startup, "_cached", lambda: 0)  # other programs read as much meanwhile
    assert startup.drop_page_cache(tmp_path / "model") == ""
    assert not drop.exists()
    monkeypatch.setattr(startup, "_LARGE", 5000)
    assert startup.drop_page_cache(tmp_path / "model") == ""
    assert drop.read_text() == "3"


def test_what_breaks_off_a_part_loses_nothing_that_was_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    def breaking(context: Context) -> Iterator[Figure]:
        yield timed("tiny", "something", "", [1.0, 3.0, 2.0], 0.5)
        raise RuntimeError("the device is gone")

    monkeypatch.setitem(bench_gpu.PARTS, "start", breaking)
    arguments = ["--tiny", "--device=cpu", "--part=start", f"--out={tmp_path}", f"--scratch={tmp_path}"]
    monkeypatch.setattr(sys, "argv", ["bench.gpu", *arguments])
    with pytest.raises(RuntimeError, match="the device is gone"):
        bench_gpu.main()
    [file] = tmp_path.glob("*-tiny.json")
    part = read(file).parts["start"]
    assert "the device is gone" in part.ended
    figure = part.figures[-1]
    assert (figure.value, figure.low, figure.high, figure.fraction) == (2000.0, 1000.0, 3000.0, 0.25)


def _measured(model: str, what: str, case: str, value: float, fraction: float | None = None) -> Figure:
    return Figure(model=model, what=what, case=case, value=value, fraction=fraction)


def test_targets_are_found_in_what_was_measured() -> None:
    figures = [
        _measured("llama-8b", "decode step", "batch 1, context 1024", 4.0, 0.9),
        _measured("llama-8b", "decode step", "batch 256, context 1024", 14.0, 0.7),
        _measured("llama-8b", "prefill", "8192 tokens", 250.0, 0.66),
        _measured("llama-8b", "paged decode", "batch 1, context 8192", 1.0, 0.1),
        _measured("llama-8b", "paged decode", "batch 16, context 4096", 1.0, 0.81),
        _measured("llama-8b", "paged decode", "batch 64, context 8192", 1.0, 0.9),
        _measured("llama-8b", "GPU busy", "batch 1, context 1024", 0.98),
        _measured("llama-8b", "offline", "1000 + 1000", 9000.0),
        _measured("llama-8b", "vLLM offline", "1000 + 1000", 10000.0),
        _measured("llama-8b", "transformers generate", "batches of 32", 800.0),
        _measured("llama-8b", "transformers generate", "batches of 128", 1000.0),
        _measured("llama-8b", "start to ready", "from disk", 31.0),
    ]
    found = targets(Result({"all": Part({}, figures)}))
    assert [target.measured for target in found] == [0.9, 0.7, 0.66, 0.81, 0.98, 11.25, 0.9, 31.0]
    assert [target.met for target in found] == [True, False, True, True, True, True, False, False]


def test_the_page_of_floors_is_what_the_code_computes() -> None:
    page = roofline.PAGE.read_text()
    assert roofline.updated(page, roofline.sections(roofline.results())) == page, "run python -m bench.gpu.roofline"
    assert set(re.findall(r"<!-- (\S+) -->", page)) == {*(aim.key for aim in AIMS), "targets", "builds", "end"}
