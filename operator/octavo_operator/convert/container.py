"""The parts of a container and its pod that every converter reads: environment, resources and scheduling."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from octavo_operator.convert.draft import Draft, NotConvertibleError

_TOKENS = ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN")
_FOLDERS = ("HF_HOME", "HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE", "TRANSFORMERS_CACHE")
"""Variables with a folder that the engine's pod does not have."""
_GPU = "nvidia.com/gpu"
_COUNTED = re.compile(r"[^/]+/(v?gpu([.-](shared|number|count))?|mig-.+)")
"""Resources whose amount is a number of GPUs or of their MIG slices; that of nvidia.com/gpumem, say, is one of MiB."""
_SCHEDULING = ("nodeSelector", "tolerations", "affinity", "topologySpreadConstraints", "priorityClassName",
               "runtimeClassName", "schedulerName")  # fmt: skip


def environment(draft: Draft, variables: Sequence[Mapping[str, Any]]) -> None:
    """Write `engine.env`. A token for the hub becomes the source's; variables for other engines are left out."""
    source = draft.spec["model"]["source"]
    kept = []
    for variable in variables:
        name, secret = variable["name"], (variable.get("valueFrom") or {}).get("secretKeyRef")
        if name in _TOKENS:
            if secret and "huggingFace" in source:
                source["huggingFace"]["tokenSecretRef"] = {"name": secret["name"], "key": secret["key"]}
            elif not secret:
                draft.note(f"{name} was left out: put the token into a Secret that tokenSecretRef names")
        elif name == "VLLM_API_KEY":
            draft.note(f"{name} was left out, so this asks for no key: keys are in a Secret that spec.auth names")
        elif name.startswith(("VLLM_", "LMCACHE_", "PROMETHEUS_MULTIPROC_")):
            draft.note(f"the variable {name} was left out: it has no counterpart")
        elif name in _FOLDERS:
            draft.note(f"the variable {name} was left out: spec.cache says where downloaded files are kept")
        else:
            kept.append({part: given for part, given in variable.items() if given is not None})
    if kept:
        draft.spec["engine"]["env"] = kept


def resources(draft: Draft, given: Mapping[str, Any]) -> None:
    """Write `accelerator` and `resources`; NotConvertibleError for accelerators that Octavo has no kernels for."""
    limits, requests = dict(given.get("limits") or {}), dict(given.get("requests") or {})
    for name in {*limits, *requests}:
        if name.startswith(("amd.com/", "gpu.intel.com/", "habana.ai/", "google.com/", "aws.amazon.com/")):
            raise NotConvertibleError(f"it asks for {name}: Octavo runs on NVIDIA's GPUs and on CPUs")
    asked = {**requests, **limits}
    counted = sorted(
        (name for name in asked if _COUNTED.fullmatch(name)),
        key=lambda name: (int(asked[name]) == 0, name != _GPU, name),
    )
    name = counted[0] if counted else _GPU
    draft.spec["accelerator"] = {
        "count": int(asked.get(name, 0)),
        **({} if name == _GPU else {"resourceName": name}),
    }
    for other in counted:
        limits.pop(other, None)
        requests.pop(other, None)
        if other != name:
            draft.note(f"{other}: {asked[other]} was left out: a replica's GPUs are of one resource, here {name}")
    if not counted and (parts := sorted(other for other in asked if "gpu" in other)):
        draft.note(f"accelerator.count: 0 is written, as it asks for {', '.join(parts)} and no number of GPUs; set it")
    draft.spec["resources"] = {
        **({"requests": requests} if requests else {}),
        **({"limits": limits} if limits else {}),
    }
    match_tensor_parallel_size(draft)


def match_tensor_parallel_size(draft: Draft) -> None:
    """Leave out a `tensorParallelSize` that is not the number of a replica's GPUs, which is its only value."""
    given, count = draft.spec["engine"].get("tensorParallelSize"), draft.spec["accelerator"]["count"]
    if given is not None and given != max(1, count):
        del draft.spec["engine"]["tensorParallelSize"]
        draft.note(f"--tensor-parallel-size {given} was left out: each of the {max(1, count)} GPUs holds one shard")


def scheduling(draft: Draft, pod: Mapping[str, Any]) -> None:
    """Write `scheduling`."""
    draft.spec["scheduling"] = {name: pod[name] for name in _SCHEDULING if pod.get(name)}
