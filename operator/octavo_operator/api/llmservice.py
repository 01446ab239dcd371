"""The LLMService with the bounds and rules of all its fields. The CRD is made from it."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field

from octavo_operator.api.autoscaling import Autoscaling
from octavo_operator.api.corev1 import Toleration, TopologySpreadConstraint
from octavo_operator.api.engine import Engine
from octavo_operator.api.fields import (
    QUALIFIED,
    AnnotationMap,
    Dns1123Name,
    Duration,
    FreeForm,
    LabelMap,
    ModelName,
    NodeFolder,
    ShortName,
    seconds,
)
from octavo_operator.api.names import pod_labels
from octavo_operator.api.network_policy import NetworkPolicy
from octavo_operator.api.quantity import Quantity, Size, parse_quantity
from octavo_operator.api.schema import ListType, Rule, SpecModel, all_keys, exactly_one_of, pattern, section
from octavo_operator.api.source import AdapterSource, ModelSource, SecretReference


class Model(SpecModel):
    """The model that is served."""

    name: ModelName | None = Field(None, description="Name in the OpenAI API. Default: the LLMService's own name.")
    aliases: Annotated[list[ModelName], Field(max_length=8), ListType()] = Field(
        default_factory=list, description="More names under which the same model answers."
    )
    source: ModelSource = Field(description="Source of the weights. Set exactly one field.")


class Adapter(SpecModel):
    """A LoRA adapter, served under its own name."""

    name: ModelName = Field(description="Name in the OpenAI API; not the model's name or one of its aliases.")
    source: AdapterSource = Field(description="Source of the adapter's weights. Set exactly one field.")


class ResourceClaim(SpecModel):
    """A device claim of Dynamic Resource Allocation."""

    rules = (exactly_one_of("resourceClaimName", "resourceClaimTemplateName"),)
    name: ShortName = Field(description="Name of the claim within the pod.")
    resource_claim_name: Dns1123Name | None = Field(None, description="A ResourceClaim shared by all pods.")
    resource_claim_template_name: Dns1123Name | None = Field(None, description="A template: one claim for each pod.")


class Accelerator(SpecModel):
    """The GPUs of one replica."""

    rules = (
        Rule(
            "!(has(self.claims) && has(self.resourceName))",
            "set claims or resourceName, not both",
            lambda accelerator: accelerator.claims is None or accelerator.resource_name is None,
        ),
    )
    resource_name: (
        Annotated[
            str,
            Field(max_length=253),
            pattern("[a-z0-9][a-z0-9.-]*/[A-Za-z0-9][A-Za-z0-9._-]*", "must be a resource such as nvidia.com/gpu"),
        ]
        | None
    ) = Field(None, description="Resource that a device plugin offers. Default: nvidia.com/gpu.")
    count: Annotated[int, Field(ge=0, le=64)] = Field(1, description="GPUs of one replica; 0 runs on CPU.")
    claims: Annotated[list[ResourceClaim], Field(min_length=1, max_length=8), ListType("name")] | None = Field(
        None, description="ResourceClaims (dynamic resource allocation), instead of count and resourceName."
    )


ResourceMap = Annotated[
    dict[str, Quantity],
    # With 16, Kubernetes 1.31 refuses the CRD: its estimate of what the rules below cost takes strings of any length.
    Field(max_length=7),
    Rule(
        "self.all(name, !name.endsWith('/gpu'))",
        "GPUs are requested with spec.accelerator, not here",
        lambda resources: not any(name.endswith("/gpu") for name in resources),
    ),
    all_keys(
        r"cpu|memory|ephemeral-storage|hugepages-[1-9][0-9]*[KMGT]i|[a-z0-9][a-z0-9.-]*/[A-Za-z0-9][A-Za-z0-9._-]*",
        "each must be cpu, memory, ephemeral-storage, hugepages-<size> or a resource such as example.com/fpga",
    ),
]


def _requests_within_limits(resources: Resources) -> bool:
    return all(
        parse_quantity(amount) <= parse_quantity(resources.limits[name])
        for name, amount in resources.requests.items()
        if name in resources.limits
    )


class Resources(SpecModel):
    """CPU and memory of one replica."""

    rules = (
        Rule(
            "!has(self.requests) || !has(self.limits) || self.requests.all(r, !(r in self.limits) || "
            "quantity(string(self.requests[r])).compareTo(quantity(string(self.limits[r]))) <= 0)",
            "a request must not be larger than the limit of the same name",
            _requests_within_limits,
        ),
    )
    requests: ResourceMap = Field(default_factory=dict, description="Reserved on the node, such as cpu: 4.")
    limits: ResourceMap = Field(default_factory=dict, description="Limits of the pod, such as memory: 32Gi.")


_BOTH_CLAIMS = "self.type != 'PersistentVolumeClaim' || oldSelf.type != 'PersistentVolumeClaim' || "


class Cache(SpecModel):
    """The storage of downloaded weights and compiled kernels."""

    rules = (
        Rule(
            "self.type != 'PersistentVolumeClaim' || has(self.size)",
            "a cache of type PersistentVolumeClaim needs a size",
            lambda cache: cache.type != "PersistentVolumeClaim" or cache.size is not None,
        ),
        Rule(
            "(self.type == 'HostPath') == has(self.hostPath)",
            "hostPath must be set with type HostPath, and only with it",
            lambda cache: (cache.type == "HostPath") == (cache.host_path is not None),
        ),
        Rule(
            "self.type != 'HostPath' || !has(self.size)",
            "size cannot limit a folder of a node: omit it with type HostPath",
            lambda cache: cache.type != "HostPath" or cache.size is None,
        ),
        Rule(
            "self.type == 'PersistentVolumeClaim' || (!has(self.storageClassName) && !has(self.accessMode))",
            "storageClassName and accessMode go with type PersistentVolumeClaim only",
            lambda cache: (
                cache.type == "PersistentVolumeClaim"
                or (cache.storage_class_name is None and cache.access_mode is None)
            ),
        ),
        Rule(
            f"{_BOTH_CLAIMS}has(self.accessMode) == has(oldSelf.accessMode) && "
            "(!has(self.accessMode) || self.accessMode == oldSelf.accessMode)",
            "accessMode cannot change: a claim keeps its mode; delete the LLMService or use another name",
            None,
        ),
        Rule(
            f"{_BOTH_CLAIMS}(has(self.storageClassName) == has(oldSelf.storageClassName) && "
            "(!has(self.storageClassName) || self.storageClassName == oldSelf.storageClassName))",
            "storageClassName cannot change: a claim keeps its class; delete the LLMService or use another name",
            None,
        ),
        Rule(
            f"{_BOTH_CLAIMS}!has(self.size) || !has(oldSelf.size) || "
            "quantity(self.size).compareTo(quantity(oldSelf.size)) >= 0",
            "size may grow but not shrink",
            None,
        ),
    )
    type: Literal["Ephemeral", "PersistentVolumeClaim", "HostPath"] = Field(
        "Ephemeral",
        description="Ephemeral is lost with the pod, PersistentVolumeClaim is shared by all replicas, HostPath by"
        " those of a node.",
    )
    size: Size | None = Field(
        None, description="Size of the cache; a claim's may grow, not shrink. Not for type HostPath."
    )
    storage_class_name: Dns1123Name | None = Field(None, description="Class of the claim. Default: the cluster's.")
    access_mode: Literal["ReadWriteMany", "ReadWriteOnce"] | None = Field(
        None, description="Mode of the claim. Default: ReadWriteMany; ReadWriteOnce ties all replicas to one node."
    )
    host_path: NodeFolder | None = Field(
        None,
        description="Folder of the node for type HostPath, one that the operator's administrator allows; the cache is"
        " octavo-cache/<namespace> below it, which is created if it is missing. The namespace must allow hostPath.",
    )
    shared_memory_size: Size = Field("8Gi", description="Size of /dev/shm; counts towards the memory limit.")


class Rollout(SpecModel):
    """The way in which a change reaches the pods."""

    rules = (
        Rule(
            "!(self.maxSurge == 0 && self.maxUnavailable == 0)",
            "maxSurge and maxUnavailable must not both be 0: no pod could ever be replaced",
            lambda rollout: rollout.max_surge > 0 or rollout.max_unavailable > 0,
        ),
        Rule(
            "self.strategy != 'Surge' || self.maxSurge > 0",
            "strategy Surge needs a maxSurge of 1 or more",
            lambda rollout: rollout.strategy != "Surge" or rollout.max_surge > 0,
        ),
    )
    strategy: Literal["Auto", "Surge", "InPlace"] = Field(
        "Auto",
        description="Surge starts new pods first, InPlace stops old ones first. Auto surges, and continues in"
        " place if no GPU is free for a surge.",
    )
    max_surge: Annotated[int, Field(ge=0, le=100)] = Field(1, description="Additional pods during a rollout.")
    max_unavailable: Annotated[int, Field(ge=0, le=100)] = Field(0, description="Missing pods during a rollout.")
    surge_timeout_seconds: Annotated[int, Field(ge=10, le=86_400)] = Field(
        300, description="How long a surge pod may wait for a GPU before Auto continues in place."
    )
    drain_timeout_seconds: Annotated[int, Field(ge=0, le=86_400)] = Field(
        120, description="Time that running answers have to finish when a pod is stopped."
    )
    startup_timeout_seconds: Annotated[int, Field(ge=10, le=86_400)] = Field(
        1800, description="Time that a pod has to load the model before it counts as failed."
    )
    paused: bool = Field(False, description="Delays rollouts until it is false again.")


class Scheduling(SpecModel):
    """The nodes on which the pods may run."""

    node_selector: LabelMap = Field(default_factory=dict, description="Labels that a node must have.")
    tolerations: Annotated[list[Toleration], Field(max_length=32)] = Field(
        default_factory=list, description="Taints that the pods tolerate, beside the GPU's own.",
        json_schema_extra={"x-kubernetes-list-type": "atomic"},
    )  # fmt: skip
    affinity: FreeForm | None = Field(None, description="Affinity, as in a pod.")
    topology_spread_constraints: Annotated[list[TopologySpreadConstraint], Field(max_length=8)] | None = Field(
        None, description="How pods are spread. Default: over nodes and zones where possible.",
        json_schema_extra={"x-kubernetes-list-type": "atomic"},
    )  # fmt: skip
    priority_class_name: Dns1123Name | None = Field(None, description="PriorityClass of the pods.")
    runtime_class_name: Dns1123Name | None = Field(None, description="RuntimeClass of the pods, such as nvidia.")
    scheduler_name: Dns1123Name | None = Field(
        None, description="Scheduler that places the pods. Default: the cluster's."
    )


class Disruption(SpecModel):
    """Limits of voluntary disruptions, such as a node's drain."""

    max_unavailable: Annotated[int, Field(ge=0, le=1000)] = Field(1, description="Pods that may be missing.")


class ServiceSettings(SpecModel):
    """The Service in front of the pods."""

    type: Literal["ClusterIP", "NodePort", "LoadBalancer"] = Field("ClusterIP", description="Type of the Service.")
    port: Annotated[int, Field(ge=1, le=65_535)] = Field(80, description="Port of the Service.")
    annotations: AnnotationMap = Field(default_factory=dict, description="Annotations of the Service.")
    app_protocol: Annotated[
        str,
        Field(max_length=317),
        pattern(QUALIFIED, "must be a protocol such as http or example.com/protocol"),
    ] = Field("http", description="The Service port's appProtocol, for load balancers and meshes.")


class Auth(SpecModel):
    """Authentication of the API's clients."""

    api_keys_secret_ref: SecretReference = Field(
        description="Secret with the API keys: the name of each entry is a tenant, its value the tenant's key."
    )


_FIVE_SCRAPES_IN_A_WINDOW = Rule(
    "!self.matches('^([0-9]+h)?([0-9]+m)?([0-9]+s)?$') || duration(self) <= duration('1m')",
    "must be 1m or less: the alerts need several scrapes in 5 minutes",
    lambda text: seconds(text) <= 60,
)


class Monitoring(SpecModel):
    """Monitors and alerts for the Prometheus Operator, if the cluster has it."""

    enabled: Literal["Auto", "Always", "Never"] = Field("Auto", description="Auto: only if the cluster has its CRDs.")
    kind: Literal["ServiceMonitor", "PodMonitor"] = Field(
        "ServiceMonitor",
        description="ServiceMonitor comes with a headless Service <name>-metrics of all pods, loading and draining ones"
        " too; PodMonitor needs no Service.",
    )
    interval: Annotated[Duration, _FIVE_SCRAPES_IN_A_WINDOW] = Field(
        "15s", description="Time between two scrapes, such as 15s; 1m at most, as the alerts look at 5 minutes."
    )
    labels: LabelMap = Field(
        default_factory=dict, description="Labels by which your Prometheus selects monitors and rules."
    )
    alerts: bool = Field(True, description="Whether to create a PrometheusRule with alerts.")


_OWN_LABELS = tuple(pod_labels(""))


class PodTemplateMetadata(SpecModel):
    """More labels and annotations of the pods."""

    labels: Annotated[
        LabelMap,
        Rule(
            f"!self.exists(key, key in {list(_OWN_LABELS)})",
            f"Octavo finds its pods by these labels, so they cannot be set: {', '.join(_OWN_LABELS)}",
            lambda given: not set(given) & set(_OWN_LABELS),
        ),
    ] = Field(default_factory=dict, description="Labels of the pods.")
    annotations: AnnotationMap = Field(default_factory=dict, description="Annotations of the pods.")


class PodTemplate(SpecModel):
    """The patch that is merged over the rendered pod template."""

    metadata: PodTemplateMetadata | None = Field(None, description="Labels and annotations of the pods.")
    spec: FreeForm | None = Field(
        None,
        description="Fields of the pod's spec. Lists such as containers and volumes are merged by their items' names.",
    )

    def as_patch(self) -> dict[str, Any]:
        """Return the strategic merge patch, in which null removes a field."""
        metadata = self.metadata.as_object() if self.metadata else {}
        parts = {"metadata": {name: value for name, value in metadata.items() if value}, "spec": self.spec or {}}
        return {name: part for name, part in parts.items() if part}


_TENSOR_PARALLEL = (
    "!has(self.engine.tensorParallelSize) || has(self.accelerator.claims) || self.engine.tensorParallelSize == "
    "(self.accelerator.count == 0 ? 1 : self.accelerator.count)"
)


_GPUS_COUNTED_ONCE = (
    "!has(self.accelerator.resourceName) || self.accelerator.count == 0 || "
    "(!(has(self.resources.requests) && self.accelerator.resourceName in self.resources.requests) && "
    "!(has(self.resources.limits) && self.accelerator.resourceName in self.resources.limits))"
)


class LLMServiceSpec(SpecModel):
    """The desired state (spec)."""

    rules = (
        Rule(
            "self.replicas == 1 || !has(self.autoscaling)",  # 1 is what the API server fills in
            "set replicas or autoscaling, not both",
            lambda spec: spec.replicas == 1 or spec.autoscaling is None,
        ),
        Rule(
            _TENSOR_PARALLEL,
            "engine.tensorParallelSize must equal accelerator.count (1 on CPU): each GPU of a replica holds one shard",
            lambda spec: (
                spec.engine.tensor_parallel_size is None
                or spec.accelerator.claims is not None
                or spec.engine.tensor_parallel_size == max(1, spec.accelerator.count)
            ),
        ),
        Rule(
            _GPUS_COUNTED_ONCE,
            "resources must not contain accelerator.resourceName: set accelerator.count",
            # Without accelerator.resourceName it is None, which is no name of a resource.
            lambda spec: (
                spec.accelerator.count == 0
                or spec.accelerator.resource_name not in {*spec.resources.requests, *spec.resources.limits}
            ),
        ),
    )
    model: Model = Field(description="The model to serve.")
    adapters: Annotated[list[Adapter], Field(max_length=64), ListType("name")] = Field(
        default_factory=list,
        description="LoRA adapters, served beside the model; changes need no new pods.",
    )
    engine: Engine = section(Engine, "Settings of the engine in each pod.")
    accelerator: Accelerator = section(Accelerator, "The GPUs of one replica.")
    resources: Resources = section(Resources, "CPU and memory of one replica.")
    cache: Cache = section(Cache, "Where downloads and compiled kernels are kept.")
    replicas: Annotated[int, Field(ge=0, le=1000)] = Field(
        1, description="Number of pods. Set this or autoscaling; with autoscaling the default is ignored."
    )  # a default, not None: without the field, the API server answers GET …/scale with an InternalError
    autoscaling: Autoscaling | None = Field(None, description="Autoscaling by load. Set this or replicas.")
    rollout: Rollout = section(Rollout, "How a change reaches the pods.")
    scheduling: Scheduling = section(Scheduling, "Where the pods may run.")
    disruption: Disruption | None = Field(
        default_factory=lambda: Disruption.model_validate({}),
        description="PodDisruptionBudget: how many pods may be evicted at a time; null: any number.",
        json_schema_extra={"default": {}, "nullable": True},
    )
    service: ServiceSettings = section(ServiceSettings, "The Service in front of the pods.")
    network_policy: NetworkPolicy | None = Field(
        None, description="Clients that may connect to the pods. Default: all that can reach them."
    )
    auth: Auth | None = Field(None, description="API keys. Default: the API is open to all who can reach it.")
    monitoring: Monitoring = section(Monitoring, "Monitors and alerts for the Prometheus Operator, if installed.")
    pod_template: PodTemplate | None = Field(
        None, description="Merged into the rendered pod template (strategic merge); overrides all other fields."
    )
    suspend: bool = Field(False, description="Stops all pods and keeps the cache; overrides replicas and autoscaling.")
