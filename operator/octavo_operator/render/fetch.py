"""The container that fetches the model before the engine starts, where it comes from a hub or a bucket.

It has the engine's own image and settings, so that what does not fit into memory is said before anything large is
fetched; it has the engine's GPUs too, which are the pod's from the beginning. It alone has the credentials. The engine
finds what was fetched behind a link that belongs to the pod: it needs no network, and serves the same files when it
starts again.
"""

from __future__ import annotations

from typing import Any

from octavo_operator.api.engine_flags import SERVER_EXTRA
from octavo_operator.api.llmservice import LLMServiceSpec
from octavo_operator.api.resource import LLMService
from octavo_operator.render.adapters import sidecar
from octavo_operator.render.container import PORT, Program, engine_flags, model_argument, variables
from octavo_operator.render.remote_source import S3_KEYS, S3_TOKEN, max_size_flag, remote_name, written_mounts
from octavo_operator.render.volumes import CACHE, LINK, USER, Mount

FETCH = "fetch"
OWN_CACHE = "own-cache"


def init_containers(llmservice: LLMService, image: str, mounts: list[Mount]) -> list[dict[str, Any]]:
    """Return the init containers, in order."""
    found = []
    if llmservice.spec.cache.type == "HostPath":
        found.append(_own_cache(llmservice, image, mounts))
    if (adapters := sidecar(llmservice, image, mounts)) is not None:  # fetched beside the model
        found.append(adapters)
    if is_fetched(llmservice.spec):
        found.append(_fetch(llmservice, image, mounts))
    return found


def is_fetched(spec: LLMServiceSpec) -> bool:
    """Return True if the model has to be downloaded."""
    return spec.model.source.hugging_face is not None or spec.model.source.s3 is not None


def _fetch(llmservice: LLMService, image: str, mounts: list[Mount]) -> dict[str, Any]:
    spec = llmservice.spec
    pull = Program(FETCH, fetch_arguments(spec), _environment(spec), written_mounts(mounts))
    return pull.container(llmservice, image)


def fetch_arguments(spec: LLMServiceSpec) -> list[str]:
    """Return the arguments of `octavo-engine` that fetch the model."""
    source = spec.model.source
    revision = source.hugging_face.revision if source.hugging_face else None
    return [
        "pull",
        model_name(spec),
        f"--link={LINK}",
        "--check-memory",
        f"--progress-port={PORT}",
        *max_size_flag(spec),
        *([f"--revision={revision}"] if revision else []),
        *engine_flags(spec),
        *loading_arguments(spec),
    ]


def loading_arguments(spec: LLMServiceSpec) -> list[str]:
    """Return the engine.extraArgs that say how the model is loaded and computed, without those of the server alone."""
    return [arg for arg in spec.engine.extra_args if arg.removeprefix("--").partition("=")[0] not in SERVER_EXTRA]


def model_name(spec: LLMServiceSpec) -> str:
    """Return the model as `octavo-engine` is given it: what is fetched, or where it lies."""
    return remote_name(spec.model.source) or model_argument(spec.model.source)


def _environment(spec: LLMServiceSpec) -> list[dict[str, Any]]:
    hub, s3 = spec.model.source.hugging_face, spec.model.source.s3
    found: dict[str, Any] = {}
    if hub and hub.endpoint:
        found["HF_ENDPOINT"] = {"value": hub.endpoint}
    if hub and hub.token_secret_ref:
        found["HF_TOKEN"] = _secret(hub.token_secret_ref.name, hub.token_secret_ref.key)
    if s3 and s3.region:
        found["AWS_REGION"] = {"value": s3.region}
    if s3 and s3.endpoint_url:
        found["AWS_ENDPOINT_URL"] = {"value": s3.endpoint_url}
    if s3 and s3.credentials_secret_ref:
        secret = s3.credentials_secret_ref.name
        found |= {key: _secret(secret, key) for key in S3_KEYS}
        found[S3_TOKEN] = _secret(secret, S3_TOKEN, optional=True)
    return variables(spec, found)


def _secret(name: str, key: str, *, optional: bool = False) -> dict[str, Any]:
    return {"valueFrom": {"secretKeyRef": {"name": name, "key": key, "optional": optional}}}


def _own_cache(llmservice: LLMService, image: str, mounts: list[Mount]) -> dict[str, Any]:
    """Return the init container that gives our folder on the node, which root owns at first, to the engine's user."""
    return {
        "name": OWN_CACHE,
        "image": image,
        "imagePullPolicy": llmservice.spec.engine.image_pull_policy,
        "command": ["python", "-c", f"import os; os.chown({CACHE!r}, {USER}, {USER})"],
        "resources": {"requests": {"cpu": "10m", "memory": "64Mi"}, "limits": {"memory": "64Mi"}},
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "securityContext": {
            "runAsNonRoot": False,
            "runAsUser": 0,
            "runAsGroup": 0,
            "allowPrivilegeEscalation": False,
            "capabilities": {"drop": ["ALL"], "add": ["CHOWN"]},
            "readOnlyRootFilesystem": True,
        },
        "volumeMounts": [mount.volume_mount() for mount in mounts if mount.path == CACHE],
    }
