"""Children that other clients have changed: what is restored, what stays, and what causes no write."""

from __future__ import annotations

import copy
import functools
from typing import Any

import pytest

from octavo_operator.api.names import MANAGED_BY_LABEL, SERVICE_LABEL
from octavo_operator.api.resource import parse
from octavo_operator.reconcile import reconciler as reconciler_module
from octavo_operator.reconcile.api_requests.api_error import ApiError
from octavo_operator.reconcile.apply.children import Children
from octavo_operator.reconcile.apply.field_conflicts import FieldConflicts
from octavo_operator.reconcile.kinds import LLMSERVICE, OPTIONAL
from octavo_operator.reconcile.observation.observe import key_of, observe
from octavo_operator.reconcile.observation.trimmed import trimmed
from octavo_operator.render.metrics_service import metrics_service
from tests.operator.api_server import CHILD, KEY, Clock, Server, reconciler, settled
from tests.operator.bad_llmservices import GONE, merged


async def test_a_claim_that_others_have_enlarged_stays_as_large(clock: Clock) -> None:
    """As an administrator or an autoresizer does; it cannot shrink, and asking for that would be refused for ever."""
    server = Server(cache={"type": "PersistentVolumeClaim", "size": "10Gi"})
    operator = await settled(server)
    for size, expected in (("20Gi", "20Gi"), ("5Gi", "10Gi")):
        server.change("PersistentVolumeClaim", {"spec": {"resources": {"requests": {"storage": size}}}}, "autoresizer")
        await operator.reconcile(KEY)
        assert server.live["PersistentVolumeClaim"]["spec"]["resources"]["requests"]["storage"] == expected
        clock.now += 1000
    server.change("PersistentVolumeClaim", {"spec": {"resources": {"requests": {"storage": "20Gi"}}}}, "autoresizer")
    server.service["spec"]["cache"]["size"] = "30Gi"
    await operator.reconcile(KEY)
    assert server.live["PersistentVolumeClaim"]["spec"]["resources"]["requests"]["storage"] == "30Gi"
    assert server.reason("Degraded") == "AsExpected"


async def test_what_others_change_beside_us_is_looked_at_and_not_written(clock: Clock) -> None:
    server = Server()
    operator = await settled(server)
    for seconds in range(100):
        clock.now += 1
        server.change("Deployment", {"spec": {"minReadySeconds": 5, "replicas": 1, "notOurs": seconds}})
        assert await operator.reconcile(KEY) is None
    assert server.writes == []


def copied(server: Server, kind: str, owned: bool) -> dict[str, Any]:
    """Add a copy of a child with its labels, as by `kubectl get KIND good --output yaml`, edited and applied."""
    found = copy.deepcopy(server.live.setdefault(kind, server.live["Service"]))
    found["metadata"] |= {"name": "good-too", "uid": "copy"}
    if not owned:
        del found["metadata"]["ownerReferences"]
    server.indexes[CHILD[kind].plural].setdefault(KEY, []).append(trimmed(CHILD[kind], found))
    return found


@pytest.mark.parametrize("kind", ["Service", "Deployment", "PersistentVolumeClaim", "NetworkPolicy"])
@pytest.mark.parametrize("owned", [False, True])
async def test_a_harmless_copy_of_a_child_stays(kind: str, owned: bool) -> None:
    server = Server(replicas=GONE, autoscaling={"minReplicas": 1, "maxReplicas": 3})
    operator = await settled(server)
    found = copied(server, kind, owned)
    assert await operator.reconcile(KEY) is None
    assert server.writes == []
    by_us = {"manager": "octavo-operator", "operation": "Apply", "fieldsV1": {"f:spec": {}}}  # of an older version
    found["metadata"]["managedFields"] = [by_us]
    server.indexes[CHILD[kind].plural][KEY][-1] = trimmed(CHILD[kind], found)
    await operator.reconcile(KEY)
    assert f"delete {kind}" in server.writes


@pytest.mark.parametrize("kind", ["PodDisruptionBudget", "HorizontalPodAutoscaler", *(kind.name for kind in OPTIONAL)])
@pytest.mark.parametrize("owned", [False, True])
async def test_a_copy_that_does_harm_is_deleted(kind: str, owned: bool) -> None:
    """Nothing is evicted that two budgets cover; two autoscalers set the replicas, and two monitors scrape twice."""
    server = Server(replicas=GONE, autoscaling={"minReplicas": 1, "maxReplicas": 3})
    operator = await settled(server)
    copied(server, kind, owned)
    await operator.reconcile(KEY)
    assert server.writes == [f"delete {kind}"]


OUR_PORT = {"name": "http", "port": 80, "targetPort": "http", "appProtocol": "http"}
BY_ADMISSION: list[tuple[str, dict[str, Any]]] = [
    ("Service", {"spec": {"selector": {"mesh": "yes"}}}),
    ("Service", {"spec": {"ports": [{"name": "more", "port": 9999, "targetPort": 9999}, OUR_PORT]}}),
    ("Service", {"metadata": {"labels": {SERVICE_LABEL: GONE}}}),
    ("Deployment", {"metadata": {"labels": {SERVICE_LABEL: GONE}}}),
    ("PodDisruptionBudget", {"metadata": {"labels": {SERVICE_LABEL: GONE}}}),
    ("Deployment", {"spec": {"replicas": 0}}),
    ("Deployment", {"spec": {"template": {"spec": {"containers": [{"name": "engine", "image": "mirror/gone"}]}}}}),
    ("Deployment", {"spec": {"template": {"spec": {"nodeSelector": {"pool": "elsewhere"}}}}}),
    ("Deployment", {"metadata": {"ownerReferences": []}}),
]


STRIPPED: list[tuple[str, dict[str, Any], str]] = [
    ("Deployment", {"ownerReferences": []}, "Deployment good has no owner though it was applied with one"),
    ("PodDisruptionBudget", {"labels": {SERVICE_LABEL: GONE}}, "PodDisruptionBudget good has no label octavo.dev/llms"),
]


@pytest.mark.parametrize(("kind", "change", "said"), STRIPPED)
async def test_what_admission_removes_from_a_child_is_said_while_it_does(
    kind: str, change: dict[str, Any], said: str
) -> None:
    class Removing(Server):
        async def apply(self, manifest: dict[str, Any], *rest: Any, **more: Any) -> dict[str, Any]:
            removed = {"metadata": change} if manifest["kind"] == kind else {}
            return await super().apply(merged(manifest, removed), *rest, **more)

    server = Removing(replicas=1)
    operator = await settled(server)
    for _ in range(2):
        assert (server.reason("Degraded"), server.reason("Stalled")) == ("FieldConflict", "AsExpected")
        assert server.condition("Degraded")["message"].startswith(said)
        await operator.reconcile(KEY)


async def test_what_a_user_has_made_with_our_label_is_not_said_to_lack_an_owner() -> None:
    server = Server(replicas=1)
    operator = await settled(server)
    found = copied(server, "PodDisruptionBudget", owned=False)
    del found["metadata"]["labels"][MANAGED_BY_LABEL], found["metadata"]["annotations"]
    server.indexes[CHILD["PodDisruptionBudget"].plural][KEY][-1] = trimmed(CHILD["PodDisruptionBudget"], found)
    await operator.reconcile(KEY)
    assert (server.writes, server.reason("Degraded")) == ([], "AsExpected")


@pytest.mark.parametrize(("kind", "change"), BY_ADMISSION)
async def test_what_admission_changes_is_tried_again_once_a_minute(
    kind: str, change: dict[str, Any], clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No event reports that the policy is gone."""

    class Changing(Server):
        changes = True
        tries = 0

        async def apply(self, manifest: dict[str, Any], *rest: Any, **more: Any) -> dict[str, Any]:
            if manifest["kind"] != kind:
                return await super().apply(manifest, *rest, **more)
            self.tries += 1
            return await super().apply(self.admitted(manifest), *rest, **more)

        async def put_back(self, manifest: dict[str, Any], *rest: Any, **more: Any) -> dict[str, Any]:
            return await super().put_back(self.admitted(manifest), *rest, **more)

        def admitted(self, manifest: dict[str, Any]) -> dict[str, Any]:
            if manifest["kind"] != kind or not self.changes:
                return manifest
            return merged(manifest, change)

    monkeypatch.setattr(reconciler_module, "Children", functools.partial(Children, clock=clock))
    server = Changing(replicas=1, scheduling={"nodeSelector": {"pool": "gpu"}})
    operator = await settled(server)
    server.tries = 0
    for _ in range(130):
        clock.now += 1
        known = server.indexes[CHILD[kind].plural][KEY]  # the watches select by our label
        known[:] = [each for each in known if SERVICE_LABEL in each["metadata"]["labels"]]
        assert (await operator.reconcile(KEY) or 0) <= 60
    assert (server.tries, server.writes) == (2, [])
    server.unread[kind] = ApiError(403, "Forbidden", "not now")
    clock.now += 60
    for _ in range(2):
        with pytest.raises(ApiError, match="not now") as refused:
            server.change(kind, {"spec": {"notOurs": clock.now}})
            clock.now += 1
            await operator.reconcile(KEY)
        assert refused.value.within == 60, "not at once"
    server.unread.clear()
    server.changes = False
    clock.now += 60
    await operator.reconcile(KEY)
    assert kind in server.writes
    assert merged(server.live[kind], change) != server.live[kind], "the change is gone"


async def test_what_another_manager_adds_to_the_selector_of_the_service_is_removed(clock: Clock) -> None:
    server = Server()
    operator = await settled(server)
    before = server.live["Service"]["spec"]["selector"]
    server.change("Service", {"spec": {"selector": {"nobody": "has-this"}}})
    await operator.reconcile(KEY)
    assert server.live["Service"]["spec"]["selector"] == before
    assert server.writes == ["Service"]


ADDED = [
    ("Service", {"publishNotReadyAddresses": True}),
    ("Service", {"internalTrafficPolicy": "Local"}),
    ("PodDisruptionBudget", {"minAvailable": 1, "maxUnavailable": GONE}),  # the API server takes only one of these
    ("PodDisruptionBudget", {"minAvailable": 1}),
    ("Deployment", {"template": {"spec": {"nodeSelector": {"no-such": "node"}}}}),
]


def fields_of(value: Any) -> dict[str, Any]:
    """FieldsV1 of all that is in `value` and stays."""
    return {f"f:{name}": fields_of(inner) for name, inner in value.items()} if isinstance(value, dict) else {}


@pytest.mark.parametrize(("kind", "change"), ADDED)
@pytest.mark.parametrize("remembers", [True, False])
async def test_fields_that_others_add_where_all_is_ours_are_removed(
    kind: str, change: dict[str, Any], remembers: bool, clock: Clock
) -> None:
    server = Server()
    operator = await settled(server)
    before = copy.deepcopy(server.live[kind]["spec"])

    def changed() -> None:
        server.change(kind, {"spec": change}, "argocd")
        kept = {name: value for name, value in change.items() if value is not GONE}
        server.live[kind]["metadata"]["managedFields"][0]["fieldsV1"] = {"f:spec": fields_of(kept)}
        server.indexes[CHILD[kind].plural][KEY] = [trimmed(CHILD[kind], server.live[kind])]

    changed()
    if not remembers:
        operator = reconciler(server)
    assert await operator.reconcile(KEY) is None
    assert server.live[kind]["spec"] == before
    server.writes.clear()
    await operator.reconcile(KEY)
    assert server.writes == []
    changed()
    await operator.reconcile(KEY)
    changed()
    await operator.reconcile(KEY)
    assert server.live[kind]["spec"] != before
    assert "by argocd" in server.condition("Degraded")["message"]


async def test_harmless_fields_that_others_add_to_a_service_stay(clock: Clock) -> None:
    server = Server()
    operator = await settled(server)
    server.change("Service", {"spec": {"sessionAffinity": "ClientIP"}})
    await operator.reconcile(KEY)
    assert server.live["Service"]["spec"]["sessionAffinity"] == "ClientIP"


async def test_a_service_that_another_client_has_made_headless_is_made_anew(clock: Clock) -> None:
    """A headless Service does not lead from its port to that of the pods, and its address cannot change."""
    for remembers in (True, False):
        server = Server()
        operator = await settled(server)
        server.change("Service", {"spec": {"clusterIP": "None"}})
        operator = operator if remembers else reconciler(server)
        await operator.reconcile(KEY)
        assert "clusterIP" not in server.live["Service"]["spec"]
        assert server.writes.count("delete Service") == 1
        await operator.reconcile(KEY)
        assert server.writes.count("delete Service") == 1


async def test_the_headless_service_that_another_client_has_given_an_address_is_made_anew(clock: Clock) -> None:
    """The API server refuses to take an address away, also in a dry run."""

    class Strict(Server):
        async def apply(self, manifest: dict[str, Any], *arguments: Any, **more: Any) -> dict[str, Any]:
            if self.live.get("Service", manifest)["spec"].get("clusterIP") != manifest["spec"]["clusterIP"]:
                raise ApiError(422, "Invalid", "spec.clusterIPs[0]: may not change once set")
            return await super().apply(manifest, *arguments, **more)

        async def put_back(self, manifest: dict[str, Any], *arguments: Any, **more: Any) -> dict[str, Any]:
            return await self.apply(manifest)

    server = Strict()
    service = parse(server.service)
    wanted = metrics_service(service, frozenset({"ServiceMonitor"}))
    assert wanted
    children = Children(server, FieldConflicts(clock))
    for deletions in (0, 1, 1):
        applied = await children.apply(KEY, service, observe(KEY, server.indexes), [wanted])
        assert (applied.failures, server.writes.count("delete Service")) == ({}, deletions)
        assert server.live["Service"]["spec"]["clusterIP"] == "None"
        if not deletions:
            server.change("Service", {"spec": {"clusterIP": "10.0.0.1"}})


@pytest.mark.parametrize(
    "ports",
    [
        [{"name": "http", "port": 81, "targetPort": 1}],  # beside ours it is refused: two have one name
        [{"name": "other", "port": 81, "targetPort": 1}],
        [{"name": "http", "port": 80, "targetPort": 1}],
        [],  # as with type ExternalName
        [{"name": "http", "port": 80, "targetPort": "http"}, {"name": "other", "port": 81, "targetPort": "http"}],
    ],
)
@pytest.mark.parametrize("remembers", [True, False])
async def test_ports_that_others_replace_are_put_back_as_a_whole_at_once(
    ports: list[dict[str, Any]], remembers: bool, clock: Clock
) -> None:
    server = Server()
    operator = await settled(server)
    before = copy.deepcopy(server.live["Service"]["spec"]["ports"])
    server.change("Service", {"spec": {"ports": ports}})
    if not remembers:
        operator = reconciler(server)
    assert await operator.reconcile(KEY) is None
    assert server.live["Service"]["spec"]["ports"] == before
    server.writes.clear()
    await operator.reconcile(KEY)
    assert server.writes == []


async def test_a_change_of_labels_is_reverted_though_it_changes_no_generation() -> None:
    server = Server()
    operator = await settled(server)
    live = copy.deepcopy(server.live["Deployment"])
    live["metadata"]["labels"]["app.kubernetes.io/name"] = "other"
    server._store("Deployment", live)
    await operator.reconcile(KEY)
    assert server.writes == ["Deployment"]
    assert server.live["Deployment"]["metadata"]["labels"]["app.kubernetes.io/name"] == "octavo"


async def test_a_deployment_that_another_manager_pauses_goes_on(clock: Clock) -> None:
    server = Server()
    operator = await settled(server)
    server.change("Deployment", {"spec": {"paused": True}}, "kubectl-rollout")
    await operator.reconcile(KEY)
    assert not server.live["Deployment"]["spec"]["paused"]
    assert server.reason("Degraded") == "AsExpected"
    server.change("Deployment", {"spec": {"paused": True}}, "kubectl-rollout")
    await operator.reconcile(KEY)
    assert "spec.paused by kubectl-rollout" in server.condition("Degraded")["message"]


@pytest.mark.parametrize("restarts", [False, True])
async def test_a_deployment_that_is_paused_is_so_no_longer_when_its_spec_changes(restarts: bool) -> None:
    server = Server()
    operator = await settled(server)
    server.change("Deployment", {"spec": {"paused": True}}, "kubectl-rollout")
    server.indexes[LLMSERVICE.plural][KEY] = [merged(server.service, {"spec": {"rollout": {"drainTimeoutSeconds": 7}}})]
    await (reconciler(server) if restarts else operator).reconcile(KEY)
    assert not server.live["Deployment"]["spec"]["paused"]


async def test_a_pause_that_the_spec_asks_for_stays() -> None:
    server = Server(rollout={"paused": True})
    operator = await settled(server)
    await operator.reconcile(KEY)
    assert server.live["Deployment"]["spec"]["paused"]


def test_a_child_is_its_owners_whatever_its_label_says() -> None:
    owner = {"kind": "LLMService", "name": "good", "uid": "u1", "controller": True}
    metadata = {"namespace": "llm", "name": "good", "labels": {SERVICE_LABEL: "other"}, "ownerReferences": [owner]}
    assert key_of(CHILD["Deployment"], {"metadata": metadata}) == KEY
    assert key_of(CHILD["Deployment"], {"metadata": {**metadata, "ownerReferences": []}}) == ("llm", "other")


async def test_what_the_deployments_controller_notes_is_no_change() -> None:
    server = Server()
    operator = await settled(server)
    live = copy.deepcopy(server.live["Deployment"])
    live["metadata"]["annotations"]["deployment.kubernetes.io/revision"] = "7"
    live["status"] = {"replicas": 1}
    server._store("Deployment", live)
    await operator.reconcile(KEY)
    assert "Deployment" not in server.writes


async def test_a_watch_that_is_behind_causes_no_write() -> None:
    server = Server()
    operator = await settled(server)
    server.lagging = {"deployments"}
    server.service["spec"]["engine"] = {"maxModelLength": 77}
    await operator.reconcile(KEY)
    server.writes.clear()
    await operator.reconcile(KEY)
    await operator.reconcile(KEY)
    assert [what for what in server.writes if what != "LLMService/status"] == []
