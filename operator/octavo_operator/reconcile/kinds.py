"""The kinds of objects that the operator watches and writes, and where the API has them."""

from __future__ import annotations

from dataclasses import dataclass
from urllib.parse import quote

from octavo_operator.api.names import API_VERSION, KIND, PLURAL


@dataclass(frozen=True)
class Kind:
    """One kind: `api_version` and `plural` make its path."""

    name: str
    api_version: str
    plural: str

    @property
    def group(self) -> str:
        """The API group; empty for the oldest kinds."""
        return self.api_version.rpartition("/")[0]

    def path(self, namespace: str = "", name: str = "") -> str:
        """Return the path of one object, of all in a namespace or of all in the cluster; ValueError for "." and "..".

        Names may come from a request: what they hold cannot lead to another path.
        """
        if {namespace, name} & {".", ".."}:  # quoting leaves dots alone, and clients resolve them
            raise ValueError(f"{namespace!r} cannot be the name of a namespace, or {name!r} that of an object")
        root = f"/apis/{self.api_version}" if "/" in self.api_version else f"/api/{self.api_version}"
        scope = f"/namespaces/{quote(namespace, safe='')}" if namespace else ""
        return f"{root}{scope}/{self.plural}" + (f"/{quote(name, safe='')}" if name else "")


LLMSERVICE = Kind(KIND, API_VERSION, PLURAL)
POD = Kind("Pod", "v1", "pods")
ENDPOINT_SLICE = Kind("EndpointSlice", "discovery.k8s.io/v1", "endpointslices")
EVENT = Kind("Event", "events.k8s.io/v1", "events")
API_SERVICE = Kind("APIService", "apiregistration.k8s.io/v1", "apiservices")
NODE = Kind("Node", "v1", "nodes")
LEASE = Kind("Lease", "coordination.k8s.io/v1", "leases")

CHILDREN = (
    Kind("Deployment", "apps/v1", "deployments"),
    Kind("Service", "v1", "services"),
    Kind("PersistentVolumeClaim", "v1", "persistentvolumeclaims"),
    Kind("PodDisruptionBudget", "policy/v1", "poddisruptionbudgets"),
    Kind("NetworkPolicy", "networking.k8s.io/v1", "networkpolicies"),
    Kind("HorizontalPodAutoscaler", "autoscaling/v2", "horizontalpodautoscalers"),
)
"""The kinds that the operator itself creates; objects of OBSERVED are made by others, and only watched."""

OBSERVED = (POD, ENDPOINT_SLICE)

OPTIONAL = (
    Kind("ServiceMonitor", "monitoring.coreos.com/v1", "servicemonitors"),
    Kind("PodMonitor", "monitoring.coreos.com/v1", "podmonitors"),
    Kind("PrometheusRule", "monitoring.coreos.com/v1", "prometheusrules"),
    Kind("ScaledObject", "keda.sh/v1alpha1", "scaledobjects"),
)
"""Children of kinds that a cluster may have or not: watched and made only where their CRDs are (`discovery`)."""

ALL = (LLMSERVICE, *CHILDREN, *OPTIONAL, *OBSERVED)
BY_NAME = {kind.name: kind for kind in ALL}
