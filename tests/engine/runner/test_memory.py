"""The memory plan: arithmetic, and messages that name a setting with which the model fits."""

from __future__ import annotations

import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from octavo_engine.errors import ConfigurationError, DoesNotFitError
from octavo_engine.runner.memory.device_memory import LIMIT, DeviceMemory
from octavo_engine.runner.memory.memory_plan import MemoryLimits, MemoryNeed
from octavo_engine.runner.memory.plan_memory import check_swap_space, plan_memory
from octavo_engine.sizes import parse_size

GIB = 1 << 30
LLAMA_8B = MemoryNeed(weights=15 * GIB, step=1 * GIB, kv_per_token=128 << 10)


def limits(**changes: object) -> MemoryLimits:
    values = {"utilization": 0.9, "block_size": 16, "max_num_seqs": 256, "model_max_len": 131072, **changes}
    return MemoryLimits(**values)  # type: ignore[arg-type]


def test_the_kv_cache_takes_what_is_left() -> None:
    plan = plan_memory(LLAMA_8B, DeviceMemory(80 * GIB, 80 * GIB, "a GPU"), limits())
    assert plan.budget == int(72 * GIB)
    assert plan.num_kv_blocks == 56 * GIB // (16 * (128 << 10))
    assert plan.max_model_len == 131072


def test_memory_of_others_is_not_ours() -> None:
    plan = plan_memory(LLAMA_8B, DeviceMemory(80 * GIB, 60 * GIB, "a GPU"), limits(max_model_len=8192))
    assert plan.kv_bytes <= 72 * GIB - 20 * GIB - 16 * GIB


def test_an_unsaid_length_is_lowered_to_what_fits() -> None:
    plan = plan_memory(LLAMA_8B, DeviceMemory(24 * GIB, 24 * GIB, "a GPU"), limits())
    assert plan.max_model_len == plan.kv_tokens == int((24 * GIB * 0.9 - 16 * GIB) // (16 * (128 << 10))) * 16


def test_no_more_kv_than_all_requests_could_use() -> None:
    plan = plan_memory(LLAMA_8B, DeviceMemory(80 * GIB, 80 * GIB, "a GPU"), limits(max_num_seqs=2, max_model_len=100))
    assert plan.kv_tokens == 2 * 112


def test_on_cpu_the_kv_cache_stays_modest_unless_one_sequence_needs_more() -> None:
    machine = DeviceMemory(500 * GIB, 480 * GIB, "this machine's memory")
    assert plan_memory(LLAMA_8B, machine, limits(on_cpu=True, max_model_len=8192)).kv_bytes == 4 * GIB
    assert plan_memory(LLAMA_8B, machine, limits(on_cpu=True)).kv_bytes == 16 * GIB


def test_swap_space_of_a_gpu_is_the_cpus_memory() -> None:
    machine = DeviceMemory(80 * GIB, 80 * GIB, "a GPU")
    plan = plan_memory(LLAMA_8B, machine, limits(swap_space=4 * GIB))
    assert plan.kv_bytes == plan_memory(LLAMA_8B, machine, limits()).kv_bytes
    assert plan.swap_blocks == 4 * GIB // (16 * (128 << 10))
    check_swap_space(plan, DeviceMemory(16 * GIB, 5 * GIB, "this machine's memory"))
    with pytest.raises(DoesNotFitError, match=r"3\.0 GiB of 16\.0 GiB are free. Try --swap-space 1536MiB"):
        check_swap_space(plan, DeviceMemory(16 * GIB, 3 * GIB, "this machine's memory"))


def test_swap_space_on_the_cpu_is_taken_from_the_same_memory() -> None:
    machine = DeviceMemory(20 * GIB, 20 * GIB, "this machine's memory")
    fixed = {"on_cpu": True, "max_model_len": 4096, "kv_cache_memory": GIB}
    plan = plan_memory(LLAMA_8B, machine, limits(**fixed, swap_space=GIB // 2))
    assert plan.swap_bytes == GIB // 2
    assert "512.0 MiB of CPU memory to swap to" in plan.describe()
    with pytest.raises(DoesNotFitError, match=r"swap space 2\.0 GiB") as error:
        plan_memory(LLAMA_8B, machine, limits(**fixed, swap_space=2 * GIB))
    tip = re.search(r"--swap-space (\S+) \(fits\)", str(error.value))
    assert tip is not None
    assert plan_memory(LLAMA_8B, machine, limits(**fixed, swap_space=parse_size(tip[1]))).swap_blocks > 0


def test_advice_on_a_cpu_names_no_gpus() -> None:
    machine = DeviceMemory(12 * GIB, 12 * GIB, "this machine's memory")
    with pytest.raises(DoesNotFitError, match=r"more memory, or smaller weights \(--quantization int8\)") as error:
        plan_memory(LLAMA_8B, machine, limits(on_cpu=True))
    assert "GPUs" not in str(error.value)
    with pytest.raises(DoesNotFitError, match=r"more GPUs, or smaller weights \(--quantization fp8\)"):
        plan_memory(LLAMA_8B, machine, limits())


def test_in_a_container_the_advice_is_to_raise_its_limit() -> None:
    with pytest.raises(DoesNotFitError, match=r"minus 1\.0 GiB in use\. Try a limit that is \S+ GiB higher"):
        plan_memory(LLAMA_8B, DeviceMemory(12 * GIB, 11 * GIB, LIMIT), limits(on_cpu=True))


@pytest.mark.parametrize(("total", "free"), [(12, 12), (12, 10), (15, 15)])
def test_a_device_with_so_much_more_memory_is_large_enough(total: int, free: int) -> None:
    """Only a share of what is added may be used."""
    with pytest.raises(DoesNotFitError) as error:
        plan_memory(LLAMA_8B, DeviceMemory(total * GIB, free * GIB, "a GPU"), limits())
    shown = re.search(r"a device with (\S+) GiB more memory", str(error.value))
    assert shown is not None
    more = int((float(shown[1]) + 0.05) * GIB)  # a tenth of a GiB is shown
    plan_memory(LLAMA_8B, DeviceMemory(total * GIB + more, free * GIB + more, "a GPU"), limits())


def test_a_swap_space_that_holds_no_block_is_refused() -> None:
    with pytest.raises(ConfigurationError, match=r"holds no block: one takes 2\.0 MiB"):
        plan_memory(LLAMA_8B, DeviceMemory(80 * GIB, 80 * GIB, "a GPU"), limits(swap_space=1 << 20))


def test_memory_that_others_have_taken_is_not_told_as_a_negative_number() -> None:
    with pytest.raises(DoesNotFitError, match=r"there are 0 B\..* 0\.9 of 24\.0 GiB, minus 23\.0 GiB in use"):
        plan_memory(LLAMA_8B, DeviceMemory(24 * GIB, 1 * GIB, "a GPU"), limits())


@pytest.mark.parametrize(
    ("total", "free", "asked"),
    [
        (24, 24, {"max_model_len": 131072}),
        (24, 12, {}),
        (16, 16, {}),
        (18.5, 18.5, {"max_model_len": 16384}),
        (24, 24, {"kv_cache_memory": 20 * GIB}),
        (24, 24, {"num_kv_blocks": 20_000}),
    ],
)
def test_advice_with_a_number_makes_it_fit(total: float, free: float, asked: dict[str, object]) -> None:
    memory = DeviceMemory(int(total * GIB), int(free * GIB), "a GPU")
    with pytest.raises(DoesNotFitError) as error:
        plan_memory(LLAMA_8B, memory, limits(**asked))
    message = str(error.value)
    assert "needs" in message
    assert "there are" in message
    assert ("KV cache 20.0 GiB (--kv-cache-memory)" in message) == ("kv_cache_memory" in asked)
    tips = re.findall(r"--([a-z-]+) (\d\S*?)(?= \(fits\)|, or|\.$)", message.rsplit("Try ", maxsplit=1)[-1])
    for flag, value in tips:
        changed = {
            "max-model-len": lambda v: {"max_model_len": int(v)},
            "gpu-memory-utilization": lambda v: {"utilization": float(v)},
            "kv-cache-memory": lambda v: {"kv_cache_memory": parse_size(v)},
            "num-kv-blocks": lambda v: {"num_kv_blocks": int(v)},
        }.get(flag)
        if changed is not None:
            plan_memory(LLAMA_8B, memory, limits(**{**asked, **changed(value)}))
    assert tips or "more memory" in message


@settings(max_examples=300)
@given(
    total=st.integers(1, 200 * GIB),
    share=st.floats(0, 1),
    utilization=st.floats(0.05, 1.0),
    length=st.one_of(st.none(), st.integers(1, 1 << 20)),
    seqs=st.integers(1, 1024),
)
def test_a_plan_never_exceeds_its_budget(
    total: int, share: float, utilization: float, length: int | None, seqs: int
) -> None:
    memory = DeviceMemory(total, int(total * share), "a GPU")
    try:
        plan = plan_memory(LLAMA_8B, memory, limits(utilization=utilization, max_model_len=length, max_num_seqs=seqs))
    except DoesNotFitError:
        return
    assert plan.need.weights + plan.need.step + plan.kv_bytes <= plan.budget <= memory.free
    assert plan.kv_tokens >= plan.max_model_len >= 1
