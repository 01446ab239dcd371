"""LoRA adapters: the answers of merged weights, many adapters in one batch, and never another adapter's weights."""

from __future__ import annotations

import random
import threading
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import safetensors
import torch
from adapters import ALL, RandomAdapter
from c_kernels import needs_kernels
from checkpoints import SIZES, reference_model, save, save_words
from family_pairs import make_pair
from gguf_writer import write_gguf

from octavo_engine import LLM, SamplingParams
from octavo_engine.core.request import Request
from octavo_engine.engine import adapter_slots
from octavo_engine.errors import ModelLoadError
from octavo_engine.kernels.cpu.library import cpu_kernels
from octavo_engine.llm import Completion
from octavo_engine.model.configuration.read_spec import read_spec
from octavo_engine.model.layers.adapters.lora import NO_SLOT, LoraBatch, LoraLayer
from octavo_engine.model.loader import load_model
from octavo_engine.model.lora import adapter as adapter_file
from octavo_engine.model.lora.adapter import AdapterWrite
from octavo_engine.model.lora.adapter_files import AdapterLimits, read_adapter
from octavo_engine.model.lora.module_names import module_names
from octavo_engine.model.lora.slots import LoraSlots, lora_targets
from octavo_engine.model.source import ModelFiles
from tests.engine.helpers.pretended import PretendedProposer

pytestmark = pytest.mark.usefixtures("several_threads")

GREEDY = SamplingParams(max_tokens=10, temperature=0.0, logprobs=0)
SETTINGS: dict[str, Any] = {"device": "cpu", "dtype": "float32", "num_kv_blocks": 60, "max_model_len": 120}
PROMPTS = [[(29 * i + j * j) % 131 for j in range(18 + 5 * i)] for i in range(6)]
ADAPTERS = {
    "all": RandomAdapter(4, seed=1),
    "qv": RandomAdapter(8, ("q_proj", "v_proj"), rslora=True, seed=2),
    "last": RandomAdapter(16, ("k_proj", "down_proj", "o_proj"), layers=[2], seed=3),
    "pattern": RandomAdapter(3, ("gate_proj", "up_proj"), alpha_pattern={"up_proj": 4.0}, seed=4),
    "one": RandomAdapter(1, ("layers.1.mlp.up_proj", "layers.0.self_attn.q_proj"), alpha=-8, seed=5),
}
FUSED = {
    "qkv": RandomAdapter(8, ("qkv_proj",), seed=1),
    "all": RandomAdapter(5, ("qkv_proj", "o_proj", "gate_up_proj", "down_proj"), seed=2),
    "mlp": RandomAdapter(16, ("gate_up_proj",), layers=[0, 2], seed=3),
}
INTERLEAVED = {"qkv": RandomAdapter(4, ("query_key_value", "dense_h_to_4h"), seed=1)}
TRANSPOSED = {"conv": RandomAdapter(4, ("c_attn", "c_fc", "c_proj"), alpha=8, seed=1, std=0.05)}
FAMILIES: dict[str, tuple[dict[str, Any], dict[str, RandomAdapter]]] = {
    "Llama": ({}, ADAPTERS),
    "Phi3": ({"pad_token_id": 0}, FUSED),
    "GPTNeoX": ({}, INTERLEAVED),
    "GPT2": ({"n_layer": 2, "n_embd": 64, "n_head": 4}, TRANSPOSED),
}


def model_of(family: str) -> Any:
    return reference_model(family, **FAMILIES[family][0], bos_token_id=None, eos_token_id=None)


def saved(model: Any, folder: Path) -> Path:
    save(model, folder)
    save_words(folder, SIZES["vocab_size"])
    return folder


def modules(folder: Path, family: str) -> list[str]:
    found = FAMILIES[family][1].items()
    return [f"{name}={adapter.save(model_of(family), folder / name)}" for name, adapter in found]


def reference(family: str, name: str | None, folder: Path, prompts: Sequence[Sequence[int]]) -> list[Completion]:
    """The answers of a model that has the adapter in its weights."""
    model = model_of(family)
    if name is not None:
        FAMILIES[family][1][name].merge(model)
    llm = LLM(str(saved(model, folder / f"merged-{family}-{name}")), **SETTINGS)
    try:
        return llm.generate(prompts, GREEDY)
    finally:
        llm.close()


def assert_same(answer: Completion, expected: Completion) -> None:
    assert answer.error is None
    assert answer.token_ids == expected.token_ids
    pairs = zip(answer.logprobs, expected.logprobs, strict=True)
    assert max(abs(ours.logprob - theirs.logprob) for ours, theirs in pairs) < 1e-3


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("lora")


@pytest.fixture(scope="module")
def base(folder: Path) -> Path:
    return saved(model_of("Llama"), folder / "Llama")


@pytest.fixture(scope="module")
def expected(folder: Path) -> dict[str | None, list[Completion]]:
    """Return Llama's answers by adapter."""
    return {name: reference("Llama", name, folder / "expected", PROMPTS) for name in (*ADAPTERS, None)}


@pytest.fixture(scope="module")
def llm(base: Path, folder: Path) -> Iterator[LLM]:
    """All five adapters beside each other, prompts in chunks, and blocks for a part of the requests alone."""
    settings = {**SETTINGS, "num_kv_blocks": 16, "max_num_batched_tokens": 24, "max_num_seqs": 8}
    loaded = LLM(
        str(base), enable_lora=True, max_loras=5, lora_modules=modules(folder / "adapters", "Llama"), **settings
    )
    yield loaded
    loaded.close()


def test_five_adapters_and_the_base_in_one_batch_answer_as_merged_weights(
    llm: LLM, expected: dict[str | None, list[Completion]]
) -> None:
    names = [*ADAPTERS, None]
    pairs = [(name, index) for index in range(len(PROMPTS)) for name in names]
    answers = llm.generate([PROMPTS[index] for _, index in pairs], GREEDY, adapter=[name for name, _ in pairs])
    for (name, index), answer in zip(pairs, answers, strict=True):
        assert_same(answer, expected[name][index])
    assert llm.report().preemptions > 0
    first = [answers[names.index(name)].token_ids for name in names]
    assert len(set(map(tuple, first))) == len(names), "each adapter matters"


def test_twenty_adapters_and_64_requests_in_one_crowd_answer_as_each_alone(base: Path, tmp_path: Path) -> None:
    """Ranks and layers differ, five adapters are on the device at a time, and four requests ask the base."""
    pick, model = random.Random(3), model_of("Llama")
    ranks = (1, 2, 3, 4, 5, 7, 8, 12, 16, 16) * 2
    each = [RandomAdapter(rank, pick.sample(ALL, pick.randint(1, 7)), seed=n) for n, rank in enumerate(ranks)]
    files = [f"a{n}={adapter.save(model, tmp_path / f'a{n}')}" for n, adapter in enumerate(each)]
    names = [None if n % 16 == 0 else f"a{n % 20}" for n in range(64)]
    prompts = [[pick.randrange(131) for _ in range(pick.randint(3, 8))] for _ in names]
    settings = {**SETTINGS, "enable_prefix_caching": False, "max_num_seqs": 32}
    llm = LLM(str(base), enable_lora=True, max_loras=5, max_cpu_loras=20, lora_modules=files, **settings)
    short = replace(GREEDY, max_tokens=2)
    crowd = llm.generate(prompts, short, adapter=names)
    alone = {n: llm.generate([prompts[n]], short, adapter=names[n])[0] for n in sorted(range(64), key=lambda n: n % 20)}
    plain = llm.generate(prompts, short)
    llm.close()
    for n, answer in enumerate(crowd):
        assert_same(answer, alone[n])
    assert sum(answer.token_ids != other.token_ids for answer, other in zip(crowd, plain, strict=True)) > 30


def test_an_adapter_of_rank_256_answers_as_merged_weights_beside_one_of_rank_1(
    base: Path, tmp_path: Path, expected: dict[str | None, list[Completion]]
) -> None:
    large = RandomAdapter(256, alpha=32, seed=6, std=0.05)
    files = [f"large={large.save(model_of('Llama'), tmp_path / 'large')}"]
    files.append(f"one={ADAPTERS['one'].save(model_of('Llama'), tmp_path / 'one')}")
    with pytest.raises(ModelLoadError, match=r"rank 256, and --max-lora-rank is 255; raise --max-lora-rank to 256"):
        LLM(str(base), enable_lora=True, max_lora_rank=255, lora_modules=files, **SETTINGS)
    loaded = LLM(str(base), enable_lora=True, max_loras=2, max_lora_rank=256, lora_modules=files, **SETTINGS)
    answers = loaded.generate(PROMPTS[:3], GREEDY, adapter=["large", "one", None])
    loaded.close()
    merged = LLM(str(saved(large.merge(model_of("Llama")), tmp_path / "merged")), **SETTINGS)
    (of_merged,) = merged.generate(PROMPTS[:1], GREEDY)
    merged.close()
    assert_same(answers[0], of_merged)
    assert answers[0].token_ids != expected[None][0].token_ids
    assert_same(answers[1], expected["one"][1])
    assert_same(answers[2], expected[None][2])


def test_drafts_are_verified_with_the_adapter_of_their_row(
    llm: LLM, expected: dict[str | None, list[Completion]]
) -> None:
    texts = [[*PROMPTS[0], *expected["all"][0].token_ids], [*PROMPTS[1], *expected[None][1].token_ids]]
    proposer = llm._loop._scheduler.proposer = PretendedProposer(texts)
    answers = llm.generate(PROMPTS[:2], GREEDY, adapter=["all", None])
    llm._loop._scheduler.proposer = None
    assert proposer.proposed > 5
    assert_same(answers[0], expected["all"][0])
    assert_same(answers[1], expected[None][1])


@pytest.mark.parametrize("family", ["Phi3", "GPTNeoX", "GPT2"])
def test_fused_projections_are_changed_as_their_checkpoint_has_them(family: str, folder: Path) -> None:
    model = saved(model_of(family), folder / family)
    names = list(FAMILIES[family][1])
    loaded = LLM(
        str(model), enable_lora=True, max_loras=3, lora_modules=modules(folder / f"of-{family}", family), **SETTINGS
    )
    answers = loaded.generate([PROMPTS[0]] * (len(names) + 1), GREEDY, adapter=[*names, None])
    loaded.close()
    for name, answer in zip([*names, None], answers, strict=True):
        assert_same(answer, reference(family, name, folder, PROMPTS[:1])[0])


def test_a_gguf_file_takes_the_adapters_of_its_hugging_face_model(base: Path, folder: Path) -> None:
    """Its rows of query and key are in another order than adapters', and are put into the same one as they are."""
    path = write_gguf(model_of("Llama"), folder / "llama.gguf")
    adapter = RandomAdapter(4, seed=1).save(model_of("Llama"), folder / "for-gguf")
    filled = []
    for files in (ModelFiles("base", directory=base), ModelFiles("base", gguf=path)):
        decoder = load_model(files, read_spec(files), torch.device("cpu"), torch.float32, lambda *_: None)
        slots = LoraSlots(decoder, lora_targets(decoder, torch.device("cpu"), gguf=files.gguf is not None), 1, 4)
        limits = AdapterLimits(module_names(decoder, slots.choice), 4, half=False)
        for write in read_adapter(adapter, limits).writes(0):
            slots.write(write)
        filled.append([layer.b for linear in decoder.linears() if (layer := linear.lora) is not None])
    assert len(filled[0]) == 4 * SIZES["num_hidden_layers"]
    assert all(bool(ours.any()) and torch.equal(ours, theirs) for ours, theirs in zip(*filled, strict=True))


def test_a_file_is_opened_once_however_many_parts_it_is_put_onto_a_device_in(
    base: Path, folder: Path, expected: dict[str | None, list[Completion]], monkeypatch: pytest.MonkeyPatch
) -> None:
    opened, parts, safe_open = list[str](), list[str](), safetensors.safe_open
    write = LoraSlots.write

    def counted(path: str, *arguments: Any, **named: Any) -> Any:
        opened.append(path)
        return safe_open(path, *arguments, **named)

    def noted(slots: LoraSlots, part: AdapterWrite) -> None:
        parts.append(part.path)
        write(slots, part)

    settings = {**SETTINGS, "max_loras": 2}
    loaded = LLM(str(base), enable_lora=True, lora_modules=modules(folder / "parts", "Llama"), **settings)
    monkeypatch.setattr(safetensors, "safe_open", counted)
    monkeypatch.setattr(LoraSlots, "write", noted)
    monkeypatch.setattr(adapter_file, "_WRITE_BYTES", 1)
    (answer,) = loaded.generate([PROMPTS[0]], GREEDY, adapter="all")
    loaded.close()
    assert len(opened) == 1 < len(parts)
    assert_same(answer, expected["all"][0])


@pytest.mark.parametrize("turn", [256, 2], ids=["whole answers", "in turns"])
def test_more_adapters_than_slots_and_than_cpu_memory_has_room_for(
    base: Path, folder: Path, expected: dict[str | None, list[Completion]], turn: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(adapter_slots, "TURN", turn)
    settings = {**SETTINGS, "max_loras": 1, "max_cpu_loras": 2, "max_num_seqs": 4}
    loaded = LLM(str(base), enable_lora=True, lora_modules=modules(folder / "more", "Llama"), **settings)
    names = [*ADAPTERS, None] * 3
    answers = loaded.generate([PROMPTS[1]] * len(names), GREEDY, adapter=names)
    for name, answer in zip(names, answers, strict=True):
        assert_same(answer, expected[name][1])
    assert (loaded._loop._scheduler.counters.preemptions > 0) == (turn == 2)
    loaded.close()


def test_a_name_that_is_loaded_again_forgets_the_old_weights_and_their_cache(
    llm: LLM, folder: Path, expected: dict[str | None, list[Completion]]
) -> None:
    old = llm.load_adapter("mine", str(folder / "adapters" / "all"))
    again, cached = (llm.generate(PROMPTS[4:5], GREEDY, adapter="mine")[0] for _ in range(2))
    assert cached.cached_tokens > 0
    new = llm.load_adapter("mine", str(folder / "adapters" / "qv"))
    assert old.digest != new.digest
    answer = llm.generate(PROMPTS[4:5], GREEDY, adapter="mine")[0]
    assert_same(again, expected["all"][4])
    assert_same(answer, expected["qv"][4])
    llm.unload_adapter("mine")
    with pytest.raises(KeyError):
        llm.generate(PROMPTS[:1], GREEDY, adapter="mine")
    assert_same(llm.generate(PROMPTS[4:5], GREEDY, adapter="qv")[0], expected["qv"][4])


def test_an_adapter_that_is_unloaded_while_requests_have_it_serves_them_to_their_end(
    llm: LLM, folder: Path, expected: dict[str | None, list[Completion]]
) -> None:
    loop = llm._loop
    assert loop.adapters is not None
    info = llm.load_adapter("gone", str(RandomAdapter(4, seed=9).save(model_of("Llama"), folder / "gone")))
    ours = llm.load_adapter("kept", str(folder / "adapters" / "all"))
    alone = llm.generate(PROMPTS[:1], GREEDY, adapter="gone")[0]
    tokens: dict[str, list[int]] = {}
    for index in range(12):  # more than run at once
        digest = info.digest if index % 2 else ours.digest
        loop.add(Request(request_id=f"r{index}", prompt_token_ids=tuple(PROMPTS[0]), sampling=GREEDY, adapter=digest))
    loop.add(Request(request_id="late", prompt_token_ids=(1, 2), sampling=GREEDY, adapter="0" * 64))
    errors = []
    while loop.has_work:
        for output in loop.step().each():
            tokens.setdefault(output.request_id, []).extend(output.token_ids)
            errors += [output.error] if output.error else []
        if "gone" in loop.adapters.store._names and tokens:
            llm.unload_adapter("gone")
    assert errors == ["the adapter was unloaded before this request began; name another model"]
    for index in range(12):
        assert tokens[f"r{index}"] == (alone if index % 2 else expected["all"][0]).token_ids
    assert info.digest not in loop.adapters.store._known


def test_ranks_hold_their_parts_of_adapters(
    base: Path, folder: Path, expected: dict[str | None, list[Completion]]
) -> None:
    names = ["all", "qv", None, "last"]
    loaded = LLM(
        str(base), tensor_parallel_size=2, enable_lora=True, max_loras=2,
        lora_modules=modules(folder / "ranks", "Llama"), **SETTINGS,
    )  # fmt: skip
    answers = loaded.generate(PROMPTS[:4], GREEDY, adapter=names)
    loaded.close()
    for index, name in enumerate(names):
        assert_same(answers[index], expected[name][index])


def test_adapters_stand_beside_a_quantized_base(
    base: Path, folder: Path, expected: dict[str | None, list[Completion]]
) -> None:
    loaded = LLM(
        str(base), quantization="int8", enable_lora=True, lora_modules=modules(folder / "int8", "Llama"), **SETTINGS
    )
    together = loaded.generate([PROMPTS[0]] * 2, GREEDY, adapter=["all", None])
    loaded.close()
    plain = LLM(str(base), quantization="int8", **SETTINGS)
    assert together[1].token_ids == plain.generate(PROMPTS[:1], GREEDY)[0].token_ids
    plain.close()
    first = [answer.logprobs[0] for answer in (together[0], expected["all"][0], together[1])]
    assert first[0].token_id == first[1].token_id
    assert abs(first[0].logprob - first[1].logprob) < 0.3
    assert (first[2].token_id, first[2].logprob) != (first[0].token_id, first[0].logprob)


def test_bfloat16_answers_of_the_base_do_not_change_beside_adapters(base: Path, folder: Path) -> None:
    """Its tokens are computed by one call for all layers alone, and layer by layer beside adapters'."""
    settings = {**SETTINGS, "dtype": "bfloat16", "enable_prefix_caching": False}
    loaded = LLM(str(base), enable_lora=True, lora_modules=modules(folder / "half", "Llama")[:1], **settings)
    alone = loaded.generate(PROMPTS[2:3], GREEDY)[0]
    _, beside = loaded.generate([PROMPTS[0], PROMPTS[2]], GREEDY, adapter=["all", None])
    loaded.close()
    assert abs(alone.logprobs[0].logprob - beside.logprobs[0].logprob) < 0.05
    assert alone.token_ids[0] == beside.token_ids[0]


def test_a_bad_adapter_at_start_is_named_and_leaves_no_thread(base: Path, tmp_path: Path) -> None:
    before = set(threading.enumerate())
    with pytest.raises(ModelLoadError, match=r"--lora-modules sql: .*no such directory"):
        LLM(str(base), enable_lora=True, lora_modules=[f"sql={tmp_path}/nothing"], **SETTINGS)
    assert not [thread for thread in set(threading.enumerate()) - before if thread.name == "octavo-device"]


@pytest.mark.parametrize(
    ("case", "layer"),
    [
        ("opt-norms-after", "decoder.project_out"),
        ("modernbert-decoder", "lm_head.dense"),
        ("qwen4-exp", "hyper_connection_mixer.input_mix_weight_up"),
        ("gemma3n", "altup_unembed_projections.1"),
    ],
)
def test_a_layer_that_sees_only_sampled_tokens_has_no_adapter(case: str, layer: str, tmp_path: Path) -> None:
    """A step's slots are those of all its tokens: with them the kernels would write past the end of such a result."""
    pair = make_pair(case, tmp_path)
    adapter = RandomAdapter(4, (layer,)).save(pair.model, tmp_path / "adapter")
    with pytest.raises(ModelLoadError, match=rf"{layer}: it is computed after the last layer, for the sampled tokens"):
        LLM(str(pair.directory), enable_lora=True, lora_modules=[f"last={adapter}"], **SETTINGS)


def test_slots_are_in_the_memory_plan(base: Path) -> None:
    from octavo_engine.config import EngineConfig
    from octavo_engine.engine.startup.resolved_config import resolve_for_estimate
    from octavo_engine.engine.startup.sizing import memory_need
    from octavo_engine.model.source import resolve_model

    def need(**settings: Any) -> int:
        config = EngineConfig(model=str(base), **settings)
        files = resolve_model(str(base), None, lambda *_: None)
        return memory_need(resolve_for_estimate(config, files), config).adapters

    hidden, inner, kv = SIZES["hidden_size"], SIZES["intermediate_size"], 16
    a = 3 * hidden + hidden + 2 * hidden + inner
    b = hidden + 2 * kv + hidden + 2 * inner + hidden
    assert need() == 0
    assert need(enable_lora=True, max_loras=3, max_lora_rank=20) == 3 * 32 * 3 * (a + b) * torch.float32.itemsize


@needs_kernels
@pytest.mark.parametrize("slots", [[1] * 70, [0, NO_SLOT, 1, 0] * 18], ids=["many tokens of one", "several"])
def test_pytorch_and_the_c_kernels_add_the_same(slots: list[int]) -> None:
    """PyTorch computes many tokens of one adapter, and everything on a CPU without the kernels.

    The input's rows lie apart, as those of Mamba's time steps.
    """
    x, added = torch.randn(len(slots), 48)[:, 3:43], []
    for kernels in (None, cpu_kernels()):
        batch, generator = LoraBatch(kernels), torch.Generator().manual_seed(0)
        layer = LoraLayer(batch, (24, 8), 40, slots=2, rank=9, dtype=torch.float32, device=torch.device("cpu"))
        for slot in range(2):
            layer.put_a(slot, 0, torch.randn(9, 40, generator=generator))
            layer.put_a(slot, 1, torch.randn(3 + slot, 40, generator=generator))
            layer.put_b(slot, slice(24), torch.randn(24, 9, generator=generator))
            layer.put_b(slot, slice(24, 32), torch.randn(8, 3 + slot, generator=generator))
        batch.use(slots)
        assert bool(batch.by_slot) == (kernels is None or len(set(slots)) == 1)
        added.append(layer.add_to(torch.zeros(len(slots), 32), x))
    torch.testing.assert_close(*added, rtol=1e-4, atol=1e-4)
    assert added[0].abs().max() > 1
