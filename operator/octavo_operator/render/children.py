"""All children of an LLMService, in the order in which they are applied."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any

from octavo_operator.api.engine_defaults import NO_DEFAULTS, EngineDefaults
from octavo_operator.api.resource import LLMService
from octavo_operator.render import podmonitor, prometheusrule, scaledobject, servicemonitor
from octavo_operator.render.deployment import deployment
from octavo_operator.render.metrics_service import metrics_service
from octavo_operator.render.networkpolicy import network_policy
from octavo_operator.render.pdb import pod_disruption_budget
from octavo_operator.render.pvc import persistent_volume_claim
from octavo_operator.render.scaler import scaler
from octavo_operator.render.service import service

OPTIONAL_KINDS = (servicemonitor.KIND, podmonitor.KIND, prometheusrule.KIND, scaledobject.KIND)
"""The kinds that are made only where the cluster has them."""
DEFAULT_METRICS_URL = "http://octavo-operator-metrics.octavo-system.svc:8080"
"""The URL for a release `octavo` of the chart in the namespace `octavo-system`."""
DEFAULT_NAMESPACE = "octavo-system"


@dataclass(frozen=True)
class RenderConfig:
    """The inputs of rendering beside the LLMService itself."""

    engine_image: str
    kinds: frozenset[str] = frozenset()
    """Those of OPTIONAL_KINDS that the cluster has."""
    in_place: bool = False
    """Whether a rollout goes on without a surge."""
    tried: str | None = None
    """When pods that were refused are tried again (RFC 3339)."""
    metrics_url: str = DEFAULT_METRICS_URL
    """Octavo's metrics API, as KEDA reaches it; empty: there is none."""
    others_answer: bool = False
    """Whether the cluster's server for external metrics is not Octavo's."""
    operator_namespace: str = DEFAULT_NAMESPACE
    """The namespace of Octavo's own pods."""
    now: datetime | None = None
    """Decides which schedules are in force; None: none is."""
    host_paths: frozenset[str] | None = None
    """The folders of nodes that spec.cache.hostPath may name; None: any, where that is not known."""
    defaults: EngineDefaults = NO_DEFAULTS
    """The fields that the administrator sets for all engines."""
    scales_directly: bool = False
    """Whether the operator itself scales, instead of a HorizontalPodAutoscaler that reads Octavo's numbers."""

    @property
    def keda_answers(self) -> bool:
        """True if KEDA is taken for the server for external metrics: it is there, and that server is not Octavo's."""
        return self.others_answer and scaledobject.KIND in self.kinds


def render(llmservice: LLMService, config: RenderConfig) -> list[dict[str, Any]]:
    """Return the objects that `llmservice` should have, each complete for server-side apply."""
    llmservice = llmservice.model_copy(update={"spec": config.defaults.applied_to(llmservice.spec)})
    children: list[dict[str, Any] | None] = [
        persistent_volume_claim(llmservice),
        service(llmservice),
        pod_disruption_budget(llmservice),
        network_policy(llmservice, config.operator_namespace),
        deployment(llmservice, config.engine_image, config.in_place, config.defaults.fixed_user, config.tried),
        scaler(llmservice, config.keda_answers, config.metrics_url, config.now, config.scales_directly),
        metrics_service(llmservice, config.kinds),
        servicemonitor.service_monitor(llmservice, config.kinds),
        podmonitor.pod_monitor(llmservice, config.kinds),
        prometheusrule.prometheus_rule(llmservice, config.kinds),
    ]
    return [child for child in children if child is not None]
