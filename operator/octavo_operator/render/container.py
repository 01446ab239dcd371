"""The engine's container: its arguments, environment, probes and resources."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from octavo_operator.api.llmservice import LLMServiceSpec
from octavo_operator.api.resource import LLMService
from octavo_operator.api.source import ModelSource
from octavo_operator.render.volumes import ADAPTER_FILE, API_KEYS, CACHE, HOME, LINK, Mount, weights_path

CONTAINER = "engine"
PORT = 8000
PORT_NAME = "http"
PRE_STOP_SECONDS = 10  # until every node has taken the pod out of its Services
STARTUP_PERIOD_SECONDS = 5
MAX_LORAS = 8
MAX_LORA_RANK = 32
"""Room on the device where spec.adapters lists any and engine.extraArgs say nothing else."""
GPU = "nvidia.com/gpu"


SECURITY = {
    "allowPrivilegeEscalation": False,
    "capabilities": {"drop": ["ALL"]},
    "readOnlyRootFilesystem": True,
}
"""The requirements of the Pod Security Standard `restricted`, and a root file system that cannot be written."""


@dataclass(frozen=True)
class Program:
    """One run of `octavo-engine` in a container of its own: its name, flags and mounts."""

    name: str
    args: list[str]
    env: list[dict[str, Any]]
    mounts: list[Mount]
    resources: dict[str, Any] | None = None
    """None: those of the spec."""
    ports: dict[str, Any] = field(default_factory=dict)
    lifetime: dict[str, Any] = field(default_factory=dict)

    def container(self, llmservice: LLMService, image: str) -> dict[str, Any]:
        """Return the container, with the settings of the spec that all of them share."""
        engine = llmservice.spec.engine
        return {
            "name": self.name,
            "image": image,
            "imagePullPolicy": engine.image_pull_policy,
            "command": ["octavo-engine"],
            "args": self.args,
            "env": self.env,
            **self.ports,
            "resources": resources(llmservice) if self.resources is None else self.resources,
            **self.lifetime,
            "terminationMessagePolicy": "FallbackToLogsOnError",
            "securityContext": SECURITY,
            "volumeMounts": [mount.volume_mount() for mount in self.mounts],
            **({"envFrom": [source.as_object() for source in engine.env_from]} if engine.env_from else {}),
        }


def engine_container(llmservice: LLMService, image: str, mounts: list[Mount]) -> dict[str, Any]:
    """Return the container that serves, with `image` and `mounts`."""
    spec = llmservice.spec
    serve = Program(
        name=CONTAINER,
        args=arguments(llmservice),
        env=variables(spec, {"HF_HUB_OFFLINE": {"value": "1"}}),  # the model is complete: no request to the hub
        mounts=mounts,
        ports={"ports": [{"name": PORT_NAME, "containerPort": PORT, "protocol": "TCP"}]},
        lifetime={
            **probes(spec.rollout.startup_timeout_seconds),
            "lifecycle": {"preStop": {"sleep": {"seconds": PRE_STOP_SECONDS}}},
        },
    )
    return serve.container(llmservice, image)


def arguments(llmservice: LLMService) -> list[str]:
    """Return the arguments of `octavo-engine` that serve the model."""
    spec = llmservice.spec
    flags: list[tuple[str, Any]] = [
        ("host", "::"),  # IPv4 too: a pod's address may be of either kind
        ("port", PORT),
        *(("served-model-name", name) for name in (llmservice.served_name, *spec.model.aliases)),
        ("max-queued-requests", spec.engine.max_queued_requests),
        ("drain-timeout", spec.rollout.drain_timeout_seconds),
        ("api-key-file", API_KEYS if spec.auth else None),
        ("lora-modules-file", ADAPTER_FILE if spec.adapters else None),
    ]
    return [
        "serve",
        model_argument(spec.model.source),
        *_formatted(flags),
        *engine_flags(spec),
        *spec.engine.extra_args,
    ]


def engine_flags(spec: LLMServiceSpec) -> list[str]:
    """Return the flags that say how the model is loaded and computed."""
    engine = spec.engine
    return [
        *_adapter_flags(spec),
        *_formatted(
            [
                ("device", None if _extra_argument(spec, "--device") else "cuda" if on_gpu(spec) else "cpu"),
                ("dtype", engine.dtype),
                ("quantization", engine.quantization),
                ("max-model-len", engine.max_model_length),
                ("max-num-seqs", engine.max_concurrent_requests),
                ("gpu-memory-utilization", engine.gpu_memory_utilization if on_gpu(spec) else None),
                ("tensor-parallel-size", shards(spec)),
            ]
        ),
    ]


def _adapter_flags(spec: LLMServiceSpec) -> list[str]:
    """Return the flags for adapters, if there are any; they are equal for any number, so a new one needs no new pod."""
    if not spec.adapters:
        return []
    room = {"--max-loras": MAX_LORAS, "--max-lora-rank": MAX_LORA_RANK}
    return [
        "--enable-lora",
        *(f"{flag}={default}" for flag, default in room.items() if _extra_argument(spec, flag) is None),
    ]


def _formatted(flags: list[tuple[str, Any]]) -> list[str]:
    """Return the flags that have a value, as arguments."""
    return [f"--{name}={value}" for name, value in flags if value is not None]


def shards(spec: LLMServiceSpec) -> int:
    """Return how many GPUs, or processes on CPU, share each layer."""
    return spec.engine.tensor_parallel_size or max(1, spec.accelerator.count)


def model_argument(source: ModelSource) -> str:
    """Return the MODEL of `octavo-engine serve`: a path in the container, or the model that the image carries."""
    if source.persistent_volume_claim:
        return weights_path(source.persistent_volume_claim.path)
    if source.image:
        return weights_path(source.image.path)
    return source.demo or LINK


def variables(spec: LLMServiceSpec, more: dict[str, dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the environment: Octavo's own, `more`, then the user's, who wins."""
    found: dict[str, dict[str, Any]] = {
        "HOME": {"value": HOME},
        "HF_HOME": {"value": f"{CACHE}/huggingface"},
        "XDG_CACHE_HOME": {"value": CACHE},
        "TRITON_CACHE_DIR": {"value": f"{CACHE}/triton"},
        "TORCHINDUCTOR_CACHE_DIR": {"value": f"{CACHE}/inductor"},
        **more,
        **{variable.name: variable.as_object() for variable in spec.engine.env},
    }
    return [{"name": name, **value} for name, value in found.items()]


def probes(startup_timeout_seconds: int) -> dict[str, Any]:
    """Return the probes on three paths: startup (loaded), readiness (takes requests), liveness (its loop runs)."""

    def probe(path: str, period: int, failures: int, timeout: int) -> dict[str, Any]:
        return {
            "httpGet": {"path": f"/health/{path}", "port": PORT_NAME},
            "periodSeconds": period,
            "failureThreshold": failures,
            "timeoutSeconds": timeout,
        }

    return {
        "startupProbe": probe(
            "startup", STARTUP_PERIOD_SECONDS, -(-startup_timeout_seconds // STARTUP_PERIOD_SECONDS), 2
        ),
        "readinessProbe": probe("ready", 2, 2, 2),
        "livenessProbe": probe("live", 10, 6, 5),
    }


def resources(llmservice: LLMService) -> dict[str, Any]:
    """Return the requests and limits; GPUs in both, as device plugins want it."""
    spec = llmservice.spec
    found: dict[str, Any] = {
        "requests": {name: str(amount) for name, amount in spec.resources.requests.items()},
        "limits": {name: str(amount) for name, amount in spec.resources.limits.items()},
    }
    if spec.accelerator.claims:
        found["claims"] = [{"name": claim.name} for claim in spec.accelerator.claims]
    elif spec.accelerator.count > 0:
        for amounts in (found["requests"], found["limits"]):
            amounts[gpu_resource(spec)] = str(spec.accelerator.count)
    return {name: value for name, value in found.items() if value}


def on_gpu(spec: LLMServiceSpec) -> bool:
    """Return True if the model is computed on GPUs: if the pod has some, unless extraArgs name another device."""
    if (device := _extra_argument(spec, "--device")) in {"cpu", "cuda"}:
        return device == "cuda"
    return spec.accelerator.claims is not None or spec.accelerator.count > 0


def _extra_argument(spec: LLMServiceSpec, wanted: str) -> str | None:
    """Return the value that engine.extraArgs give a flag; None if they do not have it."""
    given = [value for flag, _, value in (arg.partition("=") for arg in spec.engine.extra_args) if flag == wanted]
    return given[-1] if given else None


def gpu_resource(spec: LLMServiceSpec) -> str:
    """Return the resource by which GPUs are counted."""
    return spec.accelerator.resource_name or GPU
