"""LoRA adapters of an LLMService: the list that pods get, the effect of a change, and the pods' reports."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
from aiohttp import web

from octavo_engine.cli import build_parser
from octavo_engine.commands.adapters import WantedList
from octavo_engine.server.adapter_file import AdapterEntry, _Adapter
from octavo_operator.api.names import ADAPTERS_ANNOTATION
from octavo_operator.api.resource import LLMService, parse, parse_stored
from octavo_operator.reconcile.api_requests.api_error import ApiError
from octavo_operator.reconcile.apply.adapter_lists import write_adapter_lists
from octavo_operator.reconcile.kinds import POD, Kind
from octavo_operator.reconcile.observation.observe import Key
from octavo_operator.reconcile.observation.trimmed import trimmed
from octavo_operator.reconcile.pods.adapter_report import AdapterReport, ReportedAdapter
from octavo_operator.reconcile.polling.adapter_watch import CALM_AFTER_SECONDS, CALM_INTERVAL_SECONDS, AdapterWatch
from octavo_operator.reconcile.queue import WorkQueue
from octavo_operator.render import RenderConfig, render
from octavo_operator.render.adapters import adapter_list
from tests.operator.bad_llmservices import VALID, merged
from tests.operator.golden import container, inputs, llmservice

HUB = {"huggingFace": {"repository": "owner/sql", "revision": "v2", "endpoint": "https://hub.example",
                       "tokenSecretRef": {"name": "hub", "key": "token"}}}  # fmt: skip
S3 = {"s3": {"bucket": "tunes", "prefix": "legal/", "region": "eu", "credentialsSecretRef": {"name": "bucket"}}}
CLAIM = {"persistentVolumeClaim": {"claimName": "tunes", "path": "fr"}}
KEYS = ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN")
IMAGE = {"image": {"reference": "registry.example/tunes:1"}}


def service(**sources: Any) -> LLMService:
    adapters = [{"name": name, "source": source} for name, source in sources.items()]
    return parse(merged(VALID, {"spec": {"adapters": adapters}}))


def template(of: LLMService) -> dict[str, Any]:
    (found,) = [each for each in render(of, RenderConfig("engine:1")) if each["kind"] == "Deployment"]
    return dict(found["spec"]["template"])


def volumes(of: LLMService) -> list[dict[str, Any]]:
    return list(template(of)["spec"]["volumes"])


def listed(of: LLMService, pod_of: LLMService | None = None) -> dict[str, dict[str, Any]]:
    """Return the list that a pod made from `pod_of` gets."""
    return {each["name"]: each for each in json.loads(adapter_list(of.spec, volumes(pod_of or of)))["adapters"]}


def test_the_list_says_where_each_adapter_is_and_names_credentials_only() -> None:
    found = listed(service(hub=HUB, s3=S3, claim=CLAIM, image=IMAGE))
    versions = {each.pop("version") for each in found.values()}
    assert len(versions) == 4
    paths = {found[name].pop("path") for name in ("claim", "image")}
    mounts = {
        mount["mountPath"]
        for mount in template(service(claim=CLAIM, image=IMAGE))["spec"]["containers"][0]["volumeMounts"]
    }
    assert paths & mounts and {path.removesuffix("/fr") for path in paths} <= mounts
    assert found == {
        "hub": {
            "name": "hub", "source": "owner/sql", "revision": "v2", "variables": {"HF_ENDPOINT": "https://hub.example"},
            "files": {"HF_TOKEN": "hub/token"},
        },
        "s3": {
            "name": "s3", "source": "s3://tunes/legal", "variables": {"AWS_REGION": "eu"},
            "files": {key: f"bucket/{key}" for key in KEYS}, "optional": ["AWS_SESSION_TOKEN"],
        },
        "claim": {"name": "claim"},
        "image": {"name": "image"},
    }  # fmt: skip


def test_the_sidecar_understands_the_list_and_its_arguments() -> None:
    for case in inputs():
        of = llmservice(inputs()[case])
        if of.spec.adapters:
            wanted = WantedList.model_validate_json(adapter_list(of.spec, volumes(of))).adapters
            assert [each.name for each in wanted] == [each.name for each in of.spec.adapters]
            assert all((each.path is None) is not (each.source is None) for each in wanted)
            arguments = build_parser().parse_args(container(case, "adapters", "initContainers")["args"])
            assert arguments.command == "adapters"
            served = build_parser().parse_args(container(case)["args"])
            assert served.enable_lora and Path(served.lora_modules_file) == arguments.output


def test_an_adapter_that_cannot_be_fetched_is_listed_with_the_reason_alone() -> None:
    stored = merged(VALID, {"spec": {"adapters": [{"name": "old", "source": HUB}]}})
    stored["spec"]["adapters"][0]["source"] = {"huggingFace": {**HUB["huggingFace"], "repository": "owner/sql:Q4"}}
    of = parse_stored(stored).service
    entry = listed(of)["old"]
    assert entry.keys() == {"name", "version", "message"} and "without a tag" in entry["message"]
    assert template(of) == template(service(old=HUB))


def test_a_change_of_the_list_needs_new_pods_only_for_new_secrets_and_volumes() -> None:
    before = service(sql=HUB, fr=CLAIM)
    other = {"huggingFace": {**HUB["huggingFace"], "repository": "owner/other", "endpoint": "https://other.example"}}
    public = {"huggingFace": {"repository": "owner/public"}}
    for after in (
        service(fr=CLAIM, sql=HUB),
        service(sql=other, fr=CLAIM),
        service(sql=HUB, fr={"persistentVolumeClaim": {"claimName": "tunes", "path": "other"}}),
        service(sql=HUB, fr=CLAIM, more=public, again=HUB),
    ):
        assert template(after) == template(before)
        assert listed(after) != listed(before) or list(listed(after)) != list(listed(before))
    for after in (service(sql=HUB), service(sql=HUB, fr=CLAIM, s3=S3), service(sql=HUB, fr=CLAIM, image=IMAGE)):
        assert template(after) != template(before)


def test_a_pod_without_an_adapters_volume_or_secret_waits_for_the_next_one() -> None:
    before, after = service(sql=HUB), service(sql=HUB, fr=CLAIM, legal=S3)
    found = listed(after, pod_of=before)
    assert found["sql"] == listed(after)["sql"]
    for name in ("fr", "legal"):
        assert found[name].pop("message").startswith("this pod does not have the adapter's volume or Secret")
        assert found[name].keys() == {"name", "version"}


def test_credentials_are_mounted_into_the_sidecar_alone_and_may_be_missing() -> None:
    pod = template(service(sql=HUB, legal=S3))["spec"]
    (credentials,) = [volume for volume in pod["volumes"] if "projected" in volume]
    assert all(source["secret"]["optional"] for source in credentials["projected"]["sources"])
    holders = [
        each["name"]
        for each in (*pod["initContainers"], *pod["containers"])
        if credentials["name"] in {mount["name"] for mount in each["volumeMounts"]}
    ]
    assert holders == ["adapters"]
    assert "HF_TOKEN" not in json.dumps(pod["containers"])


def test_without_adapters_pods_are_as_they_were() -> None:
    pod = template(parse(VALID))["spec"]
    assert "initContainers" not in pod
    assert not any("lora" in argument for argument in pod["containers"][0]["args"])


class Patches:
    def __init__(self, failure: ApiError | None = None) -> None:
        self.failure = failure
        self.written: dict[str, Mapping[str, Any]] = {}

    async def merge(self, kind: Kind, namespace: str, name: str, patch: Mapping[str, Any]) -> None:
        assert kind is POD
        if self.failure:
            raise self.failure
        self.written[name] = patch["metadata"]


def a_pod(name: str, text: str = "", spec: dict[str, Any] | None = None, **metadata: Any) -> Mapping[str, Any]:
    annotations = {ADAPTERS_ANNOTATION: text} if text else {}
    named = {"name": name, "uid": f"uid of {name}", "annotations": annotations, **metadata}
    return trimmed(POD, {"metadata": named, "spec": spec or {}})


async def test_pods_get_the_list_unless_they_have_it_or_go() -> None:
    of, cluster = service(sql=HUB), Patches()
    own = {"volumes": volumes(of)}
    right = adapter_list(of.spec, own["volumes"])
    pods = [
        a_pod("new", spec=own),
        a_pod("right", right, spec=own),
        a_pod("old", "{}", spec=own),
        a_pod("going", spec=own, deletionTimestamp="now"),
        {**a_pod("refused", spec=own), "status": {"phase": "Failed"}},
    ]
    assert await write_adapter_lists(cluster, of, pods) == {}
    assert cluster.written == {
        name: {"uid": f"uid of {name}", "annotations": {ADAPTERS_ANNOTATION: right}} for name in ("new", "old")
    }
    assert await write_adapter_lists(cluster, parse(VALID), [a_pod("other", "{}")]) == {}
    assert "other" not in cluster.written


async def test_a_pod_that_is_gone_is_no_failure_and_a_refusal_is() -> None:
    of = service(sql=HUB)
    assert await write_adapter_lists(Patches(ApiError(404, "NotFound", "x")), of, [a_pod("p")]) == {}
    refusal = ApiError(403, "Forbidden", "may not patch pods")
    assert await write_adapter_lists(Patches(refusal), of, [a_pod("p")]) == {("Pod", "p"): refusal}


def test_the_operator_reads_the_engines_report_of_its_adapters() -> None:
    entry = AdapterEntry(name="sql", version="1", failed=True, message="no such repository")
    report = AdapterReport.model_validate({"adapters": [_Adapter(entry).report()]})
    assert report.adapters == (ReportedAdapter(name="sql", version="1", state="Failed", message="no such repository"),)
    long = AdapterReport.model_validate({"adapters": [{"name": "a", "state": ["new"], "message": "x" * 9999}]})
    assert (long.adapters[0].state, len(long.adapters[0].message)) == ("Pending", 600)


KEY = ("llm", "good")


class Engine:
    """A pod's port: `adapters` is what it says, `asked` how often."""

    def __init__(self) -> None:
        self.adapters: Any = [{"name": "sql", "version": "1", "state": "Loading", "message": ""}]
        self.asked, self.restarts, self.now = 0, 0, 0.0
        self.queue: WorkQueue[Key] = WorkQueue()

    async def handle(self, request: web.Request) -> web.Response:
        self.asked += 1
        assert request.path == "/health/adapters"
        return web.json_response({"adapters": self.adapters})

    def pods(self) -> list[dict[str, Any]]:
        state = {"name": "engine", "state": {"running": {}}, "restartCount": self.restarts}
        return [
            {"metadata": {"uid": "u1", "name": "p"}, "status": {"podIP": "127.0.0.1", "containerStatuses": [state]}}
        ]

    @asynccontextmanager
    async def watched(self, spec: dict[str, Any]) -> AsyncIterator[Any]:
        app = web.Application()
        app.router.add_get("/{path:.*}", self.handle)
        runner = web.AppRunner(app)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        service = {"metadata": {"generation": 1}, "spec": spec}
        indexes: dict[str, Any] = {"llmservices": {KEY: [service]}, "pods": {KEY: self.pods()}}
        watch = AdapterWatch(indexes, self.queue, runner.addresses[0][1], lambda: self.now)
        async with aiohttp.ClientSession() as session:

            async def polled() -> tuple[AdapterWatch, int]:
                """One poll, and how many LLMServices it has queued."""
                indexes["pods"][KEY] = self.pods()
                await watch.poll_once(session)
                queued = len(self.queue)
                self.queue.clear()
                return watch, queued

            yield polled
        await runner.cleanup()


ADAPTERS = {"adapters": [{"name": "sql"}]}


async def test_a_pod_is_asked_and_its_news_queue_its_service() -> None:
    engine = Engine()
    async with engine.watched(ADAPTERS) as polled:
        watch, queued = await polled()
        assert (watch.reports["u1"].adapters[0].state, queued) == ("Loading", 1)
        assert (await polled())[1] == 0
        engine.adapters[0]["state"] = "Loaded"
        assert (await polled())[1] == 1
        engine.restarts = 1
        engine.adapters = "not to be read"
        watch, queued = await polled()
        assert (watch.reports, queued) == ({}, 1)


async def test_a_report_that_comes_in_many_pieces_is_read_whole() -> None:
    engine = Engine()
    engine.adapters = [{"name": f"a{n}", "state": "Failed", "message": "x" * 500} for n in range(500)]
    async with engine.watched(ADAPTERS) as polled:
        watch, queued = await polled()
    assert (len(watch.reports["u1"].adapters), queued) == (500, 1)


async def test_a_pod_that_has_no_news_is_asked_more_rarely() -> None:
    engine = Engine()
    async with engine.watched(ADAPTERS) as polled:
        await polled()
        engine.now = CALM_AFTER_SECONDS + 1
        await polled()
        assert engine.asked == 2
        await polled()
        engine.now += CALM_INTERVAL_SECONDS - 1
        await polled()
        assert engine.asked == 2
        engine.now += 1
        await polled()
        assert engine.asked == 3


async def test_pods_of_services_without_adapters_are_not_asked() -> None:
    engine = Engine()
    async with engine.watched({}) as polled:
        await polled()
    assert engine.asked == 0
