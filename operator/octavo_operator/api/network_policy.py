"""The peers that may reach an LLMService's pods, under the names of networking.k8s.io/v1."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from octavo_operator.api.corev1 import LabelSelector
from octavo_operator.api.schema import Rule, SpecModel, pattern

Cidr = Annotated[
    str,
    Field(max_length=49),
    # Not CEL's isCIDR: Kubernetes 1.31 counts it as too costly in a list.
    pattern("[0-9a-fA-F.:]+/[0-9]{1,3}", "must be a network such as 10.0.0.0/8"),
]


class IPBlock(SpecModel):
    """A network, without parts of it."""

    cidr: Cidr = Field(description="The network, such as 10.0.0.0/8.")
    except_: Annotated[list[Cidr], Field(max_length=16)] | None = Field(
        None, alias="except", description="Networks within it that may not connect.",
        json_schema_extra={"x-kubernetes-list-type": "atomic"},
    )  # fmt: skip


class NetworkPolicyPeer(SpecModel):
    """Pods or a network that may connect."""

    rules = (
        Rule(
            "has(self.ipBlock) != (has(self.podSelector) || has(self.namespaceSelector))",
            "set podSelector, namespaceSelector or both, or ipBlock alone",
            lambda peer: (
                (peer.ip_block is not None) != (peer.pod_selector is not None or peer.namespace_selector is not None)
            ),
        ),
    )
    namespace_selector: LabelSelector | None = Field(None, description="Namespaces of the pods; {}: all of them.")
    pod_selector: LabelSelector | None = Field(
        None, description="Pods, of the LLMService's namespace unless namespaceSelector is set; {}: all of them."
    )
    ip_block: IPBlock | None = Field(None, description="A network.")


class NetworkPolicy(SpecModel):
    """The peers that may reach the pods. Nodes (probes) and Octavo's own pods always may."""

    peers: Annotated[list[NetworkPolicyPeer], Field(max_length=32)] = Field(
        default_factory=list, alias="from", description="Peers as in a NetworkPolicy; none: no other pods.",
        json_schema_extra={"x-kubernetes-list-type": "atomic"},
    )  # fmt: skip
