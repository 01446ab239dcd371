"""LoRA adapters: the list of them that pods have as an annotation, and the sidecar that fetches what it lists.

The annotation is no part of the pod template: the operator writes it to each pod, so that a change of the list needs no
new pod, and the sidecar reads it through a volume within seconds. Secrets and volumes are part of the template. Only
the sidecar has credentials, and one that is missing keeps no pod from starting.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Container, Iterator, Mapping, Sequence
from typing import Any

from octavo_operator.api.llmservice import Adapter, LLMServiceSpec
from octavo_operator.api.names import ADAPTERS_ANNOTATION
from octavo_operator.api.resource import LLMService
from octavo_operator.api.source import ModelSource
from octavo_operator.render.container import Program, variables
from octavo_operator.render.remote_source import S3_KEYS, S3_TOKEN, max_size_flag, remote_name, written_mounts
from octavo_operator.render.volumes import ADAPTER_FILE, Mount, adapter_path, adapter_volume

SIDECAR = "adapters"
LIST_VOLUME, CREDENTIALS_VOLUME = "adapter-list", "adapter-credentials"
_LIST = "/etc/octavo/adapters"
LIST_KEY = "adapters.json"
_CREDENTIALS = "/etc/octavo/credentials"
_RESOURCES = {"requests": {"cpu": "20m", "memory": "256Mi"}, "limits": {"memory": "1Gi"}}


def adapter_list(spec: LLMServiceSpec, volumes: Sequence[Mapping[str, Any]]) -> str:
    """Return the annotation of a pod with these volumes: the adapters that it should have.

    One whose volume or credential the pod does not have waits for the pod that takes its place.
    """
    present = {volume["name"] for volume in volumes} | {file for volume in volumes for file in _files_of(volume)}
    return json.dumps({"adapters": [_entry(adapter, present) for adapter in spec.adapters]})


def _files_of(volume: Mapping[str, Any]) -> Iterator[str]:
    """Yield the files of credentials that a volume has, or would have if there were their Secrets."""
    for source in (volume.get("projected") or {}).get("sources") or ():
        for item in (source.get("secret") or {}).get("items") or ():
            yield item["path"]


def digest_of_list(text: str) -> str:
    """Return a digest of a pod's list of adapters, which changes when the list does; empty where there is none."""
    return hashlib.sha256(text.encode()).hexdigest()[:16] if text else ""


def sidecar(llmservice: LLMService, image: str, mounts: list[Mount]) -> dict[str, Any] | None:
    """Return the sidecar that fetches adapters while the pod lives; None if there are no adapters to fetch."""
    spec = llmservice.spec
    if not spec.adapters:
        return None
    arguments = [
        "adapters",
        f"--list={_LIST}/{LIST_KEY}",
        f"--output={ADAPTER_FILE}",
        f"--credentials={_CREDENTIALS}",
        *max_size_flag(spec),
    ]
    mounted = written_mounts(mounts) + own_mounts(llmservice)
    program = Program(
        SIDECAR, arguments, variables(spec, {}), mounted, resources=_RESOURCES, lifetime={"restartPolicy": "Always"}
    )
    return program.container(llmservice, image)


def own_mounts(llmservice: LLMService) -> list[Mount]:
    """Return the mounts that only the sidecar has."""
    spec = llmservice.spec
    if not spec.adapters:
        return []
    annotation = {"fieldPath": f"metadata.annotations['{ADAPTERS_ANNOTATION}']"}
    listed = {"items": [{"path": LIST_KEY, "fieldRef": annotation}]}
    found = [Mount(LIST_VOLUME, _LIST, {"downwardAPI": listed}, read_only=True)]
    files = sorted({file for adapter in spec.adapters for file in _credentials(adapter.source).values()})
    if files:
        projected = {"sources": [_projected(file) for file in files], "defaultMode": 0o440}
        found.append(Mount(CREDENTIALS_VOLUME, _CREDENTIALS, {"projected": projected}, read_only=True))
    return found


def claim_of(adapter: Adapter) -> str:
    """Return the PersistentVolumeClaim that an adapter lies on; empty: it lies on none."""
    claim = adapter.source.persistent_volume_claim
    return claim.claim_name if claim else ""


def problem_of(adapter: Adapter) -> str:
    """Return why an adapter of a stored LLMService cannot be fetched at all, in a sentence; empty: it can."""
    hub = adapter.source.hugging_face
    return hub.problem if hub else ""


def without_claims(llmservice: LLMService, missing: Container[str]) -> LLMService:
    """Return the LLMService without the adapters on these claims.

    A pod that mounts a claim that is not there never starts.
    """
    adapters = [adapter for adapter in llmservice.spec.adapters if claim_of(adapter) not in missing]
    return llmservice.model_copy(update={"spec": llmservice.spec.model_copy(update={"adapters": adapters})})


def version_of(adapter: Adapter) -> str:
    """Return a version that differs for each source; pods report by it which weights they have loaded."""
    content = json.dumps(adapter.source.as_object(), sort_keys=True)
    return hashlib.sha256(content.encode()).hexdigest()[:12]


def _projected(file: str) -> dict[str, Any]:
    name, _, key = file.partition("/")
    return {"secret": {"name": name, "items": [{"key": key, "path": file}], "optional": True}}


def _entry(adapter: Adapter, present: Container[str]) -> dict[str, Any]:
    source = adapter.source
    files = _credentials(source)
    known = {"name": adapter.name, "version": version_of(adapter)}
    if problem := problem_of(adapter):
        return {**known, "message": problem}
    needed = [*([name] if (name := adapter_volume(source)) else []), *files.values()]
    if not all(each in present for each in needed):
        return {
            **known,
            "message": "this pod does not have the adapter's volume or Secret; the pod that replaces it will",
        }
    found = {
        **known,
        "path": adapter_path(source),
        "source": remote_name(source) or source.demo,
        "revision": source.hugging_face.revision if source.hugging_face else None,
        "variables": _variables(source),
        "files": files,
        "optional": [S3_TOKEN] if S3_TOKEN in files else [],
    }
    return {name: value for name, value in found.items() if value}


def _variables(source: ModelSource) -> dict[str, str]:
    found: dict[str, str | None] = {}
    if source.hugging_face is not None:
        found["HF_ENDPOINT"] = source.hugging_face.endpoint
    if source.s3 is not None:
        found |= {"AWS_REGION": source.s3.region, "AWS_ENDPOINT_URL": source.s3.endpoint_url}
    return {name: value for name, value in found.items() if value}


def _credentials(source: ModelSource) -> dict[str, str]:
    """Return the variables that come from Secrets, with the files in which the sidecar has them."""
    if source.hugging_face and (token := source.hugging_face.token_secret_ref):
        return {"HF_TOKEN": f"{token.name}/{token.key}"}
    if source.s3 and (keys := source.s3.credentials_secret_ref):
        return {key: f"{keys.name}/{key}" for key in (*S3_KEYS, S3_TOKEN)}
    return {}
