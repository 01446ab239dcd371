"""Maps Kubernetes' refusals to advice: the field of the spec, or the object, that has to change. Pure.

It knows the wording of Kubernetes 1.31 to 1.36. To a refusal in other words it adds no advice. Messages may be long: a
pattern that begins with a repeated character is tried only where such characters begin, not at each of them.
"""

from __future__ import annotations

import re

_ADVICE = (
    (
        r"no PriorityClass with name (\S+) was found",
        "create PriorityClass {0}, or change spec.scheduling.priorityClassName",
    ),
    (r'RuntimeClass "([^"]+)" not found', "create RuntimeClass {0}, or change spec.scheduling.runtimeClassName"),
    (r'serviceaccount "([^"]+)" not found', "create ServiceAccount {0}, or name another one in spec.podTemplate"),
    (
        r"exceeded quota: (\S+), requested: (\S+), used:",
        "make room for {1} in ResourceQuota {0}: raise it, end something else, or ask for less in the spec",
    ),
    (
        r"failed quota: (\S+): must specify ",
        "set what ResourceQuota {0} wants in spec.resources, or, for containers adapters and own-cache, in "
        "spec.podTemplate",
    ),
    (
        r"(?:maximum|minimum) (\S+) usage per (?:Container|Pod|PersistentVolumeClaim)",
        "change the LimitRange (kubectl get limitrange), or how much {0} the spec asks for",
    ),
    (
        r"(?<![\w./-])([\w./-]+) max limit to request ratio per (?:Container|Pod) is \S+, but no limit",
        "set spec.resources.limits.{0}, or change the LimitRange (kubectl get limitrange)",
    ),
    (
        r"(?<![\w./-])([\w./-]+) max limit to request ratio per (?:Container|Pod) is (\S+),",
        "set spec.resources.requests.{0} to at least its limit divided by {1}, or change the LimitRange (kubectl get "
        "limitrange)",
    ),
    (
        r"must be less than or equal to (\S+) limit of",
        "set spec.resources.limits.{0}, or change the LimitRange that sets that limit (kubectl get limitrange)",
    ),
    (
        r'Deployment\.apps "([^"]+)" is invalid: spec\.selector: .*field is immutable',
        "another client has created Deployment {0}, with a selector that cannot change: kubectl delete deployment {0}, "
        "and it is created again",
    ),
    (
        r'(?<![\w.])(?!ReplicaSet)([A-Z]\w+)(?:\.[\w.]+)? "([^"]+)" is invalid: metadata\.annotations: Too long',
        "take annotations of other clients off {0} {1}, or make them shorter (kubectl get {0} {1} --output yaml)",
    ),
    (
        r"cannot set blockOwnerDeletion",
        "give the operator update on llmservices/finalizers in API group octavo.dev: helm upgrade restores the chart's "
        "rules",
    ),
    (
        r"violates PodSecurity",
        "change spec.podTemplate or spec.cache, or the namespace's label pod-security.kubernetes.io/enforce",
    ),
    (
        r'failed calling webhook "([^"]+)"',
        "repair the admission webhook {0}, or have its administrator set failurePolicy to Ignore",
    ),
    (
        r"""((?:ValidatingAdmissionPolicy|admission webhook) (?:'[^']+'|"[^"]+"))(?: with \S+ '[^']+')? denied """,
        "change the spec to what {0} allows, or have its administrator exempt the operator's objects",
    ),
    (
        r"(?<![A-Za-z])policy '([^']+)' with binding '[^']+' denied request",
        "repair MutatingAdmissionPolicy {0}, which fails, or have its administrator set failurePolicy to Ignore",
    ),
    (
        r"are controlled by multiple HPAs: \[([^\[\]]+)\]",
        "none of {0} scales while there are several: keep one",
    ),
    (
        r'persistentvolumeclaim "([^"]+)" not found',
        "create PersistentVolumeClaim {0}, or name another one in the spec",
    ),
    (
        r'persistentvolumeclaim "([^"]+)" bound to non-existent persistentvolume "([^"]+)"',
        "restore PersistentVolume {1}, or delete PersistentVolumeClaim {0} and have its contents fetched again",
    ),
    (
        r"unbound immediate PersistentVolumeClaims",
        "kubectl describe pvc says why no volume is bound: perhaps a StorageClass that does not exist "
        "(spec.cache.storageClassName), no default one, or a provisioner that does not answer",
    ),
    (r'Usage of EmptyDir volume "cache" exceeds the limit', "raise spec.cache.size"),
    (
        r"ephemeral local storage usage exceeds the total limit",
        "raise spec.resources.limits.ephemeral-storage, or the LimitRange that sets it (kubectl get limitrange)",
    ),
    (
        r"was low on resource: (?:ephemeral-storage|inodes)",
        "free disk space on that node, or keep the model on a volume (spec.cache.type PersistentVolumeClaim)",
    ),
    (
        r"was low on resource: memory",
        "set spec.resources.requests.memory to what the engine takes, so that the scheduler counts it",
    ),
    (
        r"was low on resource: pids",
        "end what starts so many processes on that node: its pods, or the node itself, have nearly all process ids",
    ),
    (
        r"Node didn't have enough resource",
        "kubectl describe node shows what it has: a device may be broken, or something other than the scheduler puts "
        "pods on it; kubectl cordon keeps pods away from it",
    ),
    (
        r"Allocate failed due to",
        "the device plugin of that node has no healthy device for it: see its log; kubectl cordon keeps pods away",
    ),
    (
        r"had untolerated taint",
        "kubectl describe nodes shows the taints (a node that is not ready has some too); spec.scheduling.tolerations "
        "lets it run on nodes that are tainted on purpose",
    ),
    (
        r"didn't match Pod's node affinity/selector",
        "change spec.scheduling.nodeSelector or affinity, or label a node (kubectl get nodes --show-labels)",
    ),
    (
        r"node affinity conflict|didn't match PersistentVolume's node affinity",
        "its volume can only be used on other nodes, as in another zone: add room there, or delete the claim and have "
        "its contents fetched again (kubectl get pv --output yaml shows the nodes, under nodeAffinity)",
    ),
    (
        r"exceed max volume count",
        "those nodes have as many volumes attached as they can: add a node, or end something else there",
    ),
    (
        r"didn't match pod topology spread constraints",
        "change spec.scheduling.topologySpreadConstraints, or add nodes where the constraint wants pods",
    ),
    (
        r"anti-affinity rules|didn't match pod affinity rules",
        "change spec.scheduling.affinity, or that of the other pods there, or add a node",
    ),
    (
        r"didn't have free ports",
        "another pod of those nodes has the host port that spec.podTemplate asks for: omit it, or add a node",
    ),
    (
        r"Too many pods",
        "those nodes run as many pods as they may: add a node, end something else there, or raise maxPods of their "
        "kubelets",
    ),
    (
        r"Multi-Attach error for volume",
        "that volume can be attached to one node only, and another node has it until the pod there has ended: run all "
        "pods on one node (spec.scheduling.nodeSelector), or take a volume of access mode ReadWriteMany",
    ),
    (
        r'persistentvolumeclaim "([^"]+)" is being deleted',
        "PersistentVolumeClaim {0} is gone once no pod uses it; then create it again, or name another one in the spec",
    ),
    (
        r"unable to validate against any security context constraint",
        "set the chart's value openshift to Always, so that the pods ask for no user of their own, or let their "
        "ServiceAccount use a SecurityContextConstraint that allows them",
    ),
    (
        r"database space exceeded",
        "etcd is full: its administrator must compact and defragment it, and disarm its alarm",
    ),
    (r"no nodes available to schedule pods", "add a node: the cluster has none (kubectl get nodes)"),
    (r"node\(s\) were unschedulable", "kubectl uncordon lets pods on nodes again that are cordoned"),
    (r"Insufficient (?:cpu|memory|ephemeral-storage)", "add a node, or ask for less in spec.resources.requests"),
)


def advice(message: str) -> str:
    """Return the sentence `message`, with advice for each cause in it that there is advice for."""
    help_ = []
    for pattern, words in _ADVICE:
        if found := re.search(pattern, message):
            help_.append(words.format(*(each.rstrip(",") for each in found.groups())))
    return "; ".join([message.rstrip(". "), *help_]) if help_ else message


_CLAIMS = ('persistentvolumeclaim "', "unbound immediate PersistentVolumeClaims")


def is_about_claims(message: str) -> bool:
    """Return True if the scheduler's sentence is about claims without a volume."""
    return any(words in message for words in _CLAIMS)
