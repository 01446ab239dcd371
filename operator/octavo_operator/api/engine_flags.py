"""The flags of `octavo-engine serve` that `engine.extraArgs` may not contain: rendered or reserved ones.

A test compares both sets with the engine's own parser, so that each flag of the engine is in exactly one of them.
"""

from __future__ import annotations

FIELDS = {
    "model": "model.source",
    "revision": "model.source.huggingFace.revision",
    "served-model-name": "model.name",
    "api-key-file": "auth",
    "dtype": "engine.dtype",
    "quantization": "engine.quantization",
    "max-model-len": "engine.maxModelLength",
    "max-num-seqs": "engine.maxConcurrentRequests",
    "max-queued-requests": "engine.maxQueuedRequests",
    "gpu-memory-utilization": "engine.gpuMemoryUtilization",
    "tensor-parallel-size": "engine.tensorParallelSize",
    "drain-timeout": "rollout.drainTimeoutSeconds",
    "enable-lora": "adapters",
    "no-enable-lora": "adapters",
    "lora-modules": "adapters",
    "lora-modules-file": "adapters",
}
"""Flags that a field of the spec sets, by that field's path. In extraArgs they would override that field unnoticed."""

RESERVED = frozenset({
    "host", "port", "config", "help", "metrics-port", "batch-storage", "batch-storage-size",
    "lora-sources",
})  # fmt: skip
"""Not for extraArgs: what the operator sets itself, a file that would hide flags, a port that nothing would scrape,
a folder that belongs to one server while a service has several behind one name, and a limit of what clients may load,
who load no adapters into a service."""

EXTRA = (
    "allow-credentials", "no-allow-credentials", "allowed-headers", "allowed-methods", "allowed-origins",
    "attention-backend", "block-size", "cudagraph-mode", "device", "disable-custom-all-reduce",
    "no-disable-custom-all-reduce", "enable-prefix-caching", "no-enable-prefix-caching",
    "enforce-eager", "no-enforce-eager", "generation-config", "kv-cache-dtype", "kv-cache-memory", "log-format",
    "lora-target-modules",
    "max-connections", "max-cpu-loras", "max-lora-rank", "max-loras", "max-num-batched-tokens", "max-key-share",
    "max-kv-commitment", "max-queue-seconds", "max-queued-tokens", "max-request-bytes", "num-kv-blocks",
    "otlp-traces-endpoint",
    "playground", "no-playground",
    "prefix-cache-policy", "prefix-cache-ttl", "request-timeout", "scheduling-policy", "seed", "speculative-config",
    "swap-space", "target-itl-p90", "target-ttft-p90", "tool-call-parser", "vllm-metrics", "no-vllm-metrics",
    "watchdog-timeout",
)  # fmt: skip
"""Fine tuning that has no field of its own. `device`, and the room for adapters where there are any, are rendered
too, where extraArgs do not give them."""

SERVER_EXTRA = frozenset({
    "allow-credentials", "no-allow-credentials", "allowed-headers", "allowed-methods", "allowed-origins",
    "log-format", "max-connections", "max-key-share", "max-kv-commitment", "max-queue-seconds", "max-queued-tokens",
    "max-request-bytes", "otlp-traces-endpoint", "playground", "no-playground", "request-timeout", "tool-call-parser",
    "vllm-metrics", "no-vllm-metrics",
})  # fmt: skip
"""Flags of EXTRA that have no meaning where a model is only fetched."""

SPECULATIVE_METHODS = frozenset({"ngram"})
"""The values of `method` that today's engine takes in --speculative-config; vLLM has more."""
