"""Invalid LLMServices, each of which the API server and `octavo-operator check` must refuse with a sentence.

`words` must appear in both refusals; `path` is the field's path that `check` reports.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

GONE = object()
"""Marks a key that a patch removes."""

VALID: dict[str, Any] = {
    "apiVersion": "octavo.dev/v1alpha1",
    "kind": "LLMService",
    "metadata": {"name": "good"},
    "spec": {"model": {"source": {"demo": "smollm2"}}, "accelerator": {"count": 0}},
}

FROM_A_TEMPLATE = {
    **VALID,
    "spec": {
        **VALID["spec"],
        "model": {"source": {"demo": "smollm2"}, "aliases": None},
        "engine": {"env": None, "maxModelLength": 1e6},
        "autoscaling": None,
        "networkPolicy": {"from": [{"podSelector": {}, "namespaceSelector": None}, {"ipBlock": {"cidr": "fd00::/8"}}]},
    },
}
"""A valid LLMService as Helm may write it: empty values are null, and a million is 1e+06."""


@dataclass(frozen=True)
class Bad:
    """One row: the patch over VALID, and the expected messages: `words` of check, `server_words` of the API server."""

    id: str
    patch: dict[str, Any]
    path: str
    words: str
    server_words: str = ""

    @property
    def manifest(self) -> dict[str, Any]:
        """The complete object."""
        return merged(VALID, self.patch)


def merged(base: dict[str, Any], patch: dict[str, Any]) -> dict[str, Any]:
    """`base` with `patch` merged over it; neither is changed."""
    result = {key: value if key in patch else copied(value) for key, value in base.items()}
    for key, value in patch.items():
        if value is GONE:
            result.pop(key, None)
        elif isinstance(value, dict) and isinstance(result.get(key), dict):
            result[key] = merged(result[key], value)
        else:
            result[key] = copied(value)
    return result


def copied(value: Any) -> Any:
    """A deep copy of what JSON can hold, quicker than `copy.deepcopy`: thousands are made of some objects."""
    if isinstance(value, dict):
        return {key: copied(inner) for key, inner in value.items()}
    return [copied(inner) for inner in value] if isinstance(value, list) else value


def spec(**fields: Any) -> dict[str, Any]:
    return {"spec": fields}


def source(**members: Any) -> dict[str, Any]:
    return spec(model={"source": {"demo": GONE, **members}})


def scheduling(**fields: Any) -> dict[str, Any]:
    return spec(scheduling=fields)


def schedule(**fields: Any) -> dict[str, Any]:
    day = {"name": "day", "start": "0 8 * * mon-fri", "duration": "8h", "minReplicas": 1, "maxReplicas": 2}
    return spec(autoscaling={"maxReplicas": 3, "schedules": [{**day, **fields}]})


S3 = {"bucket": "weights"}
ONE_SOURCE = "exactly one source must be set"
QUANTITY = "must be a Kubernetes quantity"

BAD = [
    Bad("two sources", spec(model={"source": {"s3": S3}}), "spec.model.source", ONE_SOURCE),
    Bad("no source", source(), "spec.model.source", ONE_SOURCE),
    Bad("source missing", spec(model={"source": GONE}), "spec.model.source", "is required", "Required value"),
    Bad("model missing", spec(model=GONE), "spec.model", "is required", "Required value"),
    Bad("spec missing", {"spec": GONE}, "spec", "is required", "Required value"),
    Bad("name too long", {"metadata": {"name": "a" * 41}}, "metadata.name", "at most 40 characters"),
    Bad("name begins with a digit", {"metadata": {"name": "8b-llama"}}, "metadata.name", "beginning with a letter"),
    Bad("name has a dot", {"metadata": {"name": "llama-3.1"}}, "metadata.name", "lower case letters, digits and '-'"),
    Bad(
        "replicas and autoscaling",
        spec(replicas=2, autoscaling={"maxReplicas": 3}),
        "spec",
        "set replicas or autoscaling, not both",
    ),
    Bad(
        "min above max",
        spec(autoscaling={"minReplicas": 5, "maxReplicas": 3}),
        "spec.autoscaling",
        "minReplicas must not be larger than maxReplicas (minReplicas: 5, maxReplicas: 3)",
        "minReplicas must not be larger than maxReplicas",
    ),
    Bad(
        "autoscaling without max",
        spec(autoscaling={"minReplicas": 1}),
        "spec.autoscaling.maxReplicas",
        "is required",
        "Required value",
    ),
    Bad(
        "unknown metrics source",
        spec(autoscaling={"maxReplicas": 3, "metricsSource": "Pods"}),
        "spec.autoscaling.metricsSource",
        "'KEDA'",
        "supported values",
    ),
    Bad(
        "CPU with two shards",
        spec(engine={"tensorParallelSize": 2}),
        "spec",
        "engine.tensorParallelSize must equal accelerator.count",
    ),
    Bad(
        "fewer shards than GPUs",
        spec(accelerator={"count": 4}, engine={"tensorParallelSize": 2}),
        "spec",
        "engine.tensorParallelSize must equal accelerator.count",
    ),
    Bad(
        "claims and a resource",
        spec(
            accelerator={
                "resourceName": "nvidia.com/gpu",
                "claims": [{"name": "gpu", "resourceClaimTemplateName": "h100"}],
            }
        ),
        "spec.accelerator",
        "set claims or resourceName, not both",
    ),
    Bad(
        "claim of nothing",
        spec(accelerator={"claims": [{"name": "gpu"}]}),
        "spec.accelerator.claims[0]",
        "exactly one of resourceClaimName or resourceClaimTemplateName",
    ),
    Bad("unknown field of spec", spec(replica=2), "spec.replica", "is not a field", "unknown field"),
    Bad(
        "unknown field deep inside",
        spec(engine={"maxModelLen": 4096}),
        "spec.engine.maxModelLen",
        "is not a field",
        "unknown field",
    ),
    Bad("unknown enum", spec(engine={"dtype": "int3"}), "spec.engine.dtype", "'bfloat16'", "supported values"),
    Bad(
        "unknown quantization",
        spec(engine={"quantization": "q4"}),
        "spec.engine.quantization",
        "'awq'",
        "supported values",
    ),
    Bad("unknown demo", source(demo="gpt-5"), "spec.model.source.demo", "'smollm2'", "supported values"),
    Bad("negative replicas", spec(replicas=-1), "spec.replicas", "greater than or equal to 0"),
    Bad("negative GPUs", spec(accelerator={"count": -1}), "spec.accelerator.count", "greater than or equal to 0"),
    Bad("no context", spec(engine={"maxModelLength": 0}), "spec.engine.maxModelLength", "greater than or equal to 1"),
    Bad("half a replica", spec(replicas=1.5), "spec.replicas", "must be a whole number", "must be of type integer"),
    Bad(
        "replicas in words", spec(replicas="two"), "spec.replicas", "must be a whole number", "must be of type integer"
    ),
    Bad(
        "suspend in words",
        spec(suspend="yes please"),
        "spec.suspend",
        "must be true or false",
        "must be of type boolean",
    ),
    Bad(
        "utilization as a number",
        spec(engine={"gpuMemoryUtilization": 0.9}),
        "spec.engine.gpuMemoryUtilization",
        "must be a string",
        "must be of type string",
    ),
    Bad(
        "utilization above one",
        spec(engine={"gpuMemoryUtilization": "1.5"}),
        "spec.engine.gpuMemoryUtilization",
        'must be a share from "0.05" to "1"',
    ),
    Bad("quantity in words", spec(cache={"sharedMemorySize": "a lot"}), "spec.cache.sharedMemorySize", QUANTITY),
    Bad("negative quantity", spec(cache={"size": "-1Gi"}), "spec.cache.size", QUANTITY),
    Bad(
        "memory in words",
        spec(resources={"requests": {"memory": "plenty"}}),
        "spec.resources.requests.memory",
        QUANTITY,
    ),
    Bad(
        "request above limit",
        spec(resources={"requests": {"memory": "3Gi"}, "limits": {"memory": "2048Mi"}}),
        "spec.resources",
        "a request must not be larger than the limit",
    ),
    Bad(
        "GPU in resources",
        spec(resources={"limits": {"nvidia.com/gpu": 1}}),
        "spec.resources.limits",
        "GPUs are requested with spec.accelerator",
    ),
    *(
        Bad(
            f"MIG slices in resources.{which}",
            spec(
                accelerator={"count": 1, "resourceName": "nvidia.com/mig-1g.5gb"},
                resources={which: {"nvidia.com/mig-1g.5gb": 2}},
            ),
            "spec",
            "resources must not contain accelerator.resourceName",
        )
        for which in ("requests", "limits")
    ),
    Bad("claim without size", spec(cache={"type": "PersistentVolumeClaim"}), "spec.cache", "needs a size"),
    Bad(
        "host path without path",
        spec(cache={"type": "HostPath"}),
        "spec.cache",
        "hostPath must be set with type HostPath",
    ),
    *(
        Bad(
            f"the node's {path} as a cache",
            spec(cache={"type": "HostPath", "hostPath": path}),
            "spec.cache.hostPath",
            words,
        )
        for path, words in {
            "/": "two folders or more",
            "/data": "two folders or more",
            "/data/": "two folders or more",
            "//etc": "two folders or more",
            "data/models": "must be an absolute path",
            "/data/./models": "must not contain a folder",
            "/data/../etc": "must not contain a folder",
            "/etc/kubernetes": "a folder of the node's own system",
            "/usr/local/": "a folder of the node's own system",
            "/var/lib/kubelet": "a folder of the node's own system",
            "/var/run/octavo": "a folder of the node's own system",
        }.items()
    ),
    Bad(
        "a size of a folder of the node",
        spec(cache={"type": "HostPath", "hostPath": "/var/lib/octavo", "size": "50Gi"}),
        "spec.cache",
        "size cannot limit a folder of a node",
    ),
    Bad(
        "duplicate adapters",
        spec(adapters=[{"name": "sql", "source": {"s3": S3}}] * 2),
        "spec.adapters",
        "'sql' appears twice",
        "Duplicate value",
    ),
    Bad(
        "duplicate aliases",
        spec(model={"aliases": ["gpt", "gpt"]}),
        "spec.model.aliases",
        "'gpt' appears twice",
        "Duplicate value",
    ),
    Bad(
        "duplicate variables",
        spec(engine={"env": [{"name": "A", "value": "1"}, {"name": "A", "value": "2"}]}),
        "spec.engine.env",
        "'A' appears twice",
        "Duplicate value",
    ),
    Bad(
        "too many aliases",
        spec(model={"aliases": [f"a{n}" for n in range(9)]}),
        "spec.model.aliases",
        "at most 8",
        "at most 8",
    ),
    Bad(
        "adapter without source", spec(adapters=[{"name": "sql", "source": {}}]), "spec.adapters[0].source", ONE_SOURCE
    ),
    Bad(
        "too many adapters",
        spec(adapters=[{"name": f"a{n}", "source": {"s3": S3}} for n in range(65)]),
        "spec.adapters",
        "at most 64",
        "at most 64",
    ),
    *(
        Bad(
            f"adapter with {what}",
            spec(model=model, adapters=[{"name": "sql", "source": {"s3": S3}}, {"name": name, "source": {"s3": S3}}]),
            "",
            "an adapter must not have the model's name",
        )
        for what, model, name in (
            ("the name of the model", {"name": "llama"}, "llama"),
            ("the name of the LLMService, which the model has", {}, "good"),
            ("an alias of the model", {"aliases": ["gpt", "chat"]}, "chat"),
        )
    ),
    Bad(
        "port in extraArgs",
        spec(engine={"extraArgs": ["--port=9000"]}),
        "spec.engine.extraArgs[0]",
        "is a flag that the operator sets itself",
    ),
    Bad(
        "length in extraArgs",
        spec(engine={"extraArgs": ["--max-model-len=4096"]}),
        "spec.engine.extraArgs[0]",
        "is what spec.engine.maxModelLength sets: write it there",
    ),
    Bad(
        "adapters in extraArgs",
        spec(engine={"extraArgs": ["--enable-lora"]}),
        "spec.engine.extraArgs[0]",
        "is what spec.adapters sets: write it there",
    ),
    Bad(
        "unknown flag in extraArgs",
        spec(engine={"extraArgs": ["--make-it-fast"]}),
        "spec.engine.extraArgs[0]",
        "the engine does not know",
    ),
    Bad(
        "shortened flag in extraArgs",
        spec(engine={"extraArgs": ["--por=9000"]}),
        "spec.engine.extraArgs[0]",
        "the engine does not know",
    ),
    Bad(
        "value apart from its flag",
        spec(engine={"extraArgs": ["--seed", "7"]}),
        "spec.engine.extraArgs[1]",
        "written --flag or --flag=value",
    ),
    Bad(
        "flag as a variable",
        spec(engine={"env": [{"name": "OCTAVO_PORT", "value": "1"}]}),
        "spec.engine.env[0].name",
        "use the field of the spec",
    ),
    Bad(
        "variable with two values",
        spec(engine={"env": [{"name": "A", "value": "1", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}}]}),
        "spec.engine.env[0]",
        "set value or valueFrom, not both",
    ),
    Bad(
        "path out of the volume",
        source(persistentVolumeClaim={"claimName": "w", "path": "a/../../etc"}),
        "spec.model.source.persistentVolumeClaim.path",
        "must stay inside the volume",
    ),
    Bad(
        "path out of the image",
        source(image={"reference": "reg/llama:1", "path": ".."}),
        "spec.model.source.image.path",
        "must stay inside the volume",
    ),
    Bad(
        "repository without owner",
        source(huggingFace={"repository": "llama"}),
        "spec.model.source.huggingFace.repository",
        "written owner/name",
    ),
    Bad(
        "repository that climbs",
        source(huggingFace={"repository": "a/.."}),
        "spec.model.source.huggingFace.repository",
        "written owner/name",
    ),
    Bad(
        "repository with a newline",
        source(huggingFace={"repository": "a/b\n"}),
        "spec.model.source.huggingFace.repository",
        "written owner/name",
    ),
    Bad(
        "repository of an adapter with the tag of a GGUF model",
        spec(adapters=[{"name": "sql", "source": {"huggingFace": {"repository": "a/b:Q4_K_M"}}}]),
        "spec.adapters[0].source.huggingFace.repository",
        "written owner/name, without a tag",
    ),
    Bad(
        "endpoint of another scheme",
        source(huggingFace={"repository": "a/b", "endpoint": "file:///etc"}),
        "spec.model.source.huggingFace.endpoint",
        "must be a URL",
    ),
    Bad(
        "secret by an impossible name",
        source(huggingFace={"repository": "a/b", "tokenSecretRef": {"name": "Not A Name", "key": "t"}}),
        "spec.model.source.huggingFace.tokenSecretRef.name",
        "must be a Kubernetes object name",
    ),
    Bad(
        "image with a blank", spec(engine={"image": "octavo engine"}), "spec.engine.image", "must be an image reference"
    ),
    Bad(
        "rollout that cannot move",
        spec(rollout={"maxSurge": 0, "maxUnavailable": 0}),
        "spec.rollout",
        "must not both be 0",
    ),
    Bad("port out of range", spec(service={"port": 70000}), "spec.service.port", "less than or equal to 65535"),
    Bad(
        "unknown service type",
        spec(service={"type": "ExternalName"}),
        "spec.service.type",
        "'ClusterIP'",
        "supported values",
    ),
    Bad(
        "schedule that is no cron",
        schedule(start="in the morning"),
        "spec.autoscaling.schedules[0].start",
        "must be a cron expression",
    ),
    Bad(
        "a resource that no node has",
        spec(resources={"limits": {"mem": "1Gi"}}),
        "spec.resources.limits",
        "each must be cpu",
    ),
    Bad(
        "a resource by a blank",
        spec(resources={"requests": {"a b/c": 1}}),
        "spec.resources.requests",
        "each must be cpu",
    ),
    Bad(
        "a quantity as a list",
        spec(resources={"requests": {"memory": [1]}}),
        "spec.resources.requests.memory",
        QUANTITY,
        "Invalid value",
    ),
    Bad(
        "a quantity in other digits",
        spec(resources={"requests": {"memory": "\u0661Gi"}}),
        "spec.resources.requests.memory",
        QUANTITY,
    ),
    Bad(
        "a label's key with a blank",
        scheduling(nodeSelector={"my pool": "a"}),
        "spec.scheduling.nodeSelector",
        "must be a label's key",
    ),
    Bad(
        "a label's key without a name",
        scheduling(nodeSelector={"example.com/": "a"}),
        "spec.scheduling.nodeSelector",
        "must be a label's key",
    ),
    Bad(
        "a label's value with a slash",
        scheduling(nodeSelector={"pool": "a/b"}),
        "spec.scheduling.nodeSelector.pool",
        "must be a label's value",
    ),
    Bad(
        "an annotation's key with a colon",
        spec(service={"annotations": {"a:b": "c"}}),
        "spec.service.annotations",
        "must be a label's key",
    ),
    Bad(
        "a monitor's label that is none",
        spec(monitoring={"labels": {"a": "b c"}}),
        "spec.monitoring.labels.a",
        "must be a label's value",
    ),
    Bad(
        "Exists with a value",
        scheduling(tolerations=[{"key": "a", "operator": "Exists", "value": "b"}]),
        "spec.scheduling.tolerations[0]",
        "operator Exists has no value",
    ),
    Bad(
        "Equal without a key", scheduling(tolerations=[{"value": "b"}]), "spec.scheduling.tolerations[0]", "needs a key"
    ),
    Bad(
        "seconds of a taint that evicts no pod",
        scheduling(tolerations=[{"key": "a", "tolerationSeconds": 3}]),
        "spec.scheduling.tolerations[0]",
        "effect NoExecute only",
    ),
    Bad(
        "a taint's key with a blank",
        scheduling(tolerations=[{"key": "a b"}]),
        "spec.scheduling.tolerations[0].key",
        "must be a label's key",
    ),
    Bad(
        "topology by a sentence",
        scheduling(topologySpreadConstraints=[{"topologyKey": "all over"}]),
        "spec.scheduling.topologySpreadConstraints[0].topologyKey",
        "must be a label's key",
    ),
    Bad(
        "a field that pods do not have",
        spec(engine={"env": [{"name": "A", "valueFrom": {"fieldRef": {"fieldPath": "status.ip"}}}]}),
        "spec.engine.env[0].valueFrom.fieldRef.fieldPath",
        "must be a field of the pod",
    ),
    Bad(
        "flags as variables of a Secret",
        spec(engine={"envFrom": [{"prefix": "OCTAVO_", "secretRef": {"name": "a"}}]}),
        "spec.engine.envFrom[0].prefix",
        "use the field of the spec",
    ),
    Bad("a schedule at 25 o'clock", schedule(start="0 25 * * *"), "spec.autoscaling.schedules[0].start", "hour 0-23"),
    Bad("a schedule on the 32nd", schedule(start="0 8 32 * *"), "spec.autoscaling.schedules[0].start", "day 1-31"),
    Bad(
        "a schedule of no length",
        schedule(duration="0h"),
        "spec.autoscaling.schedules[0].duration",
        "must be longer than 0",
    ),
    Bad(
        "a scrape every 0 s",
        spec(monitoring={"interval": "0s"}),
        "spec.monitoring.interval",
        "must be longer than 0",
    ),
    *(
        Bad(
            f"a scrape every {interval}, seldom within an alert's window",
            spec(monitoring={"interval": interval}),
            "spec.monitoring.interval",
            "must be 1m or less",
        )
        for interval in ("61s", "10m", "0h1m1s", "1h")
    ),
    Bad(
        "a field of the pod template that is none",
        spec(podTemplate={"specs": {}}),
        "spec.podTemplate.specs",
        "is not a field",
        "unknown field",
    ),
    Bad(
        "a pod template that renames",
        spec(podTemplate={"metadata": {"name": "x"}}),
        "spec.podTemplate.metadata.name",
        "is not a field",
        "unknown field",
    ),
    Bad(
        "a class for what is lost",
        spec(cache={"storageClassName": "fast"}),
        "spec.cache",
        "go with type PersistentVolumeClaim only",
    ),
    Bad(
        "a mode for what is lost",
        spec(cache={"accessMode": "ReadWriteOnce"}),
        "spec.cache",
        "go with type PersistentVolumeClaim only",
    ),
    Bad(
        "a surge of no pods",
        spec(rollout={"strategy": "Surge", "maxSurge": 0, "maxUnavailable": 1}),
        "spec.rollout",
        "needs a maxSurge",
    ),
    Bad("a list for a mapping", spec(engine=[]), "spec.engine", "must be a mapping", "must be of type object"),
    Bad(
        "a string for a list",
        spec(model={"aliases": "gpt"}),
        "spec.model.aliases",
        "must be a list",
        "must be of type array",
    ),
    Bad(
        "a peer that is none",
        spec(networkPolicy={"from": [{}]}),
        "spec.networkPolicy.from[0]",
        "set podSelector, namespaceSelector or both, or ipBlock alone",
    ),
    Bad(
        "a peer that is pods and a network",
        spec(networkPolicy={"from": [{"podSelector": {}, "ipBlock": {"cidr": "10.0.0.0/8"}}]}),
        "spec.networkPolicy.from[0]",
        "set podSelector, namespaceSelector or both, or ipBlock alone",
    ),
    Bad(
        "a misspelt peer",
        spec(networkPolicy={"from": [{"podSelectors": {}}]}),
        "spec.networkPolicy.from[0].podSelectors",
        "is not a field",
        "unknown field",
    ),
    Bad(
        "an address for a network",
        spec(networkPolicy={"from": [{"ipBlock": {"cidr": "10.0.0.1"}}]}),
        "spec.networkPolicy.from[0].ipBlock.cidr",
        "must be a network such as 10.0.0.0/8",
    ),
    Bad(
        "a comparison with nothing",
        spec(networkPolicy={"from": [{"podSelector": {"matchExpressions": [{"key": "app", "operator": "In"}]}}]}),
        "spec.networkPolicy.from[0].podSelector.matchExpressions[0]",
        "operators In and NotIn need values",
    ),
    Bad(
        "domains that are only wished for",
        scheduling(topologySpreadConstraints=[{"topologyKey": "zone", "minDomains": 2}]),
        "spec.scheduling.topologySpreadConstraints[0]",
        "minDomains goes with whenUnsatisfiable DoNotSchedule only",
    ),
    Bad(
        "scaling rules without a policy",
        spec(autoscaling={"maxReplicas": 3, "behavior": {"scaleUp": {"policies": []}}}),
        "spec.autoscaling.behavior.scaleUp.policies",
        "must have at least 1",
        "should have at least 1",
    ),
    Bad(
        "a protocol longer than Kubernetes allows",
        spec(service={"appProtocol": "a" * 64}),
        "spec.service.appProtocol",
        "must be a protocol such as http",
    ),
    Bad("half a pod", spec(replicas=1.5), "spec.replicas", "must be a whole number", "must be of type integer"),
    Bad(
        "null for what is required", spec(model={"source": None}), "spec.model.source", "is required", "Required value"
    ),
]
