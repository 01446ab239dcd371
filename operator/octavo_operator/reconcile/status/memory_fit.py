"""Checks whether the model fits into memory, before a pod is created if the model's numbers are known. Pure.

The numbers are the engine's own, reported by pods and kept in status; the arithmetic is its planner's: weights, one
step and the KV cache of one context into what the engine may take. It is a warning: nothing is held back by it, since
the engine checks for itself, before it downloads or loads anything.
"""

from __future__ import annotations

from octavo_operator.api.conditions import ConditionState, Reason
from octavo_operator.api.llmservice import LLMServiceSpec
from octavo_operator.api.quantity import parse_quantity
from octavo_operator.api.status import MemoryStatus
from octavo_operator.render.container import gpu_resource, on_gpu, shards
from octavo_operator.render.fetch import is_fetched, loading_arguments, model_name

SHARE_ON_CPU = 0.90
"""The engine's own default: engine.gpuMemoryUtilization is for GPUs."""
_BLOCK = 16
"""Tokens: the least that a KV cache holds."""


def subject(spec: LLMServiceSpec) -> str:
    """Return a text of what the numbers depend on: if it differs, earlier numbers do not apply.

    engine.maxConcurrentRequests is not part of it, since it changes one step only a little.
    """
    source, wanted = spec.model.source, spec.scheduling.node_selector
    revision = source.hugging_face.revision if source.hugging_face else None
    device = gpu_resource(spec) if on_gpu(spec) else "cpu"
    count = shards(spec) if spec.accelerator.claims else spec.accelerator.count
    types = [spec.engine.dtype, spec.engine.quantization or ""]
    slots = ["adapters"] if spec.adapters else []
    parts = [model_name(spec), revision or "", *types, device, f"{count}", *slots, *loading_arguments(spec)]
    return " ".join([*filter(None, parts), *(f"{name}={value}" for name, value in sorted(wanted.items()))])


def memory_fit(spec: LLMServiceSpec, memory: MemoryStatus | None, unanswered: str = "") -> ConditionState:
    """Return status, reason and message of the condition MemoryFits.

    `unanswered`: why the operator cannot reach a pod that serves, in a sentence; empty: it can.
    """
    if memory is None or memory.subject != subject(spec):
        if unanswered:
            return "Unknown", Reason.NOT_YET_KNOWN, f"the memory that the model needs is not known: {unanswered}"
        who = "before it downloads the weights" if is_fetched(spec) else "before it loads the weights"
        return (
            "Unknown",
            Reason.NOT_YET_KNOWN,
            f"the memory that the model needs is not known yet; its first pod reports it {who}",
        )
    length = -(-(spec.engine.max_model_length or _BLOCK) // _BLOCK) * _BLOCK
    fixed, have = memory.weight_bytes + memory.step_bytes, _have(spec, memory)
    need = fixed + length * memory.kv_bytes_per_token
    tokens = max(0, have - fixed) // max(1, memory.kv_bytes_per_token)
    takes = f"weights {_size(memory.weight_bytes)} and one step {_size(memory.step_bytes)}"
    if need <= have:
        cache = f"up to {_size(have - fixed)} for the KV cache, which is {tokens:,} tokens"
        return "True", Reason.FITS, f"{takes} leave {cache}; there are {_size(have)} ({_share(spec, memory)})"
    message = (
        f"{takes} and {length:,} tokens of context at {_size(memory.kv_bytes_per_token)} each need {_size(need)}, "
        f"there are {_size(have)} ({_share(spec, memory)}); {_advice(spec, memory, need, tokens)}"
    )
    return "False", Reason.DOES_NOT_FIT, message


def _total(spec: LLMServiceSpec, memory: MemoryStatus) -> int:
    limit = spec.resources.limits.get("memory")
    if on_gpu(spec) or limit is None:
        return memory.total_bytes
    return int(parse_quantity(limit)) // shards(spec)  # each process has a share


def _utilization(spec: LLMServiceSpec) -> float:
    return float(spec.engine.gpu_memory_utilization) if on_gpu(spec) else SHARE_ON_CPU


def _have(spec: LLMServiceSpec, memory: MemoryStatus) -> int:
    return int(_total(spec, memory) * _utilization(spec))


def _share(spec: LLMServiceSpec, memory: MemoryStatus) -> str:
    return f"{_utilization(spec):.0%} of {_size(_total(spec, memory))}"


def _advice(spec: LLMServiceSpec, memory: MemoryStatus, need: int, tokens: int) -> str:
    advice = []
    if tokens >= _BLOCK and spec.engine.max_model_length:
        advice.append(f"lower spec.engine.maxModelLength to {tokens // _BLOCK * _BLOCK}")
    share = need / memory.total_bytes + 0.005
    if on_gpu(spec) and _utilization(spec) < share <= 0.98:
        advice.append(f'raise spec.engine.gpuMemoryUtilization to "{share:.2f}"')
    if not on_gpu(spec):
        wanted = -(-int(shards(spec) * need / SHARE_ON_CPU) // (1 << 20))
        advice.append(f"raise spec.resources.limits.memory to {wanted}Mi")
    return " or ".join(advice or _other_advice(spec))


def _other_advice(spec: LLMServiceSpec) -> list[str]:
    """Return what else helps where no number that can be set does."""
    advice = ["take a larger GPU"]
    if spec.engine.quantization is None:
        advice.append("set spec.engine.quantization")
    if spec.engine.dtype in ("auto", "float32"):
        advice.append("use a smaller spec.engine.dtype")
    return advice


def _size(count: float) -> str:
    for unit in ("B", "KiB", "MiB"):
        if count < 1024:
            return f"{count:.1f} {unit}"
        count /= 1024
    return f"{count:.1f} GiB"
