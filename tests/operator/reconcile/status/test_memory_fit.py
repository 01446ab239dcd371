"""The condition MemoryFits: the memory plan with a pod's own numbers, before the next pod is created."""

from __future__ import annotations

import re
from typing import Any

import pytest

from octavo_engine.config import EngineConfig
from octavo_engine.errors import DoesNotFitError
from octavo_engine.runner.memory.device_memory import DeviceMemory
from octavo_engine.runner.memory.memory_plan import MemoryLimits, MemoryNeed
from octavo_engine.runner.memory.plan_memory import plan_memory
from octavo_operator.api.conditions import ConditionType
from octavo_operator.api.llmservice import LLMServiceSpec
from octavo_operator.api.resource import parse
from octavo_operator.api.status import MemoryStatus
from octavo_operator.reconcile.observation.observe import Observation
from octavo_operator.reconcile.pods.load_report import LoadReport, MemoryReport, ModelReport
from octavo_operator.reconcile.status.memory_fit import SHARE_ON_CPU, memory_fit, subject
from octavo_operator.reconcile.status.summarize import Result, summarize
from tests.operator.bad_llmservices import GONE, VALID, merged
from tests.operator.reconcile.status.test_summarize import NOW, SERVING, deployment, pod

GIB = 1 << 30
NUMBERS = {"weight_bytes": 16 * GIB, "step_bytes": GIB, "kv_bytes_per_token": 128 << 10, "total_bytes": 24 * GIB}
HUB = {"demo": GONE, "huggingFace": {"repository": "org/model"}}


def spec(on_gpu: bool = True, **fields: Any) -> LLMServiceSpec:
    accelerator = {"accelerator": {"count": 1}} if on_gpu else {}
    return parse(merged(VALID, {"spec": {"model": {"source": HUB}, **accelerator, **fields}})).spec


def known(of: LLMServiceSpec, **numbers: int) -> MemoryStatus:
    return MemoryStatus(subject=subject(of), **{**NUMBERS, **numbers})


def state_of(of: LLMServiceSpec, **numbers: int) -> tuple[str, str, str]:
    return memory_fit(of, known(of, **numbers))


def test_memory_that_no_pod_has_reported_is_unknown_and_the_message_says_which_pod_will() -> None:
    status, reason, message = memory_fit(spec(), None)
    assert (status, reason) == ("Unknown", "NotYetKnown")
    assert "its first pod reports it before it downloads the weights" in message
    claim = {"demo": GONE, "persistentVolumeClaim": {"claimName": "weights"}}
    assert "before it loads the weights" in memory_fit(spec(model={"source": claim}), None)[2]


def test_a_pod_that_cannot_be_asked_is_named_where_its_answer_is_missing() -> None:
    pods, sentence = (pod(container=SERVING),), "the operator cannot ask pod good-1 (refused)"
    pods[0]["metadata"]["uid"] = "u1"
    adapters = [{"name": "sql", "source": {"s3": {"bucket": "models", "prefix": "sql"}}}]
    of = parse(merged(VALID, {"spec": {"adapters": adapters}}))
    observed = Observation({}, deployment(ready=1), pods, unanswered={"u1": sentence, "another": "no"})
    found = {each.type: each for each in summarize(of, observed, "image", Result(), NOW).conditions}
    assert found[ConditionType.MEMORY_FITS].message == f"the memory that the model needs is not known: {sentence}"
    assert found[ConditionType.ADAPTERS_READY].message.endswith(f"sql is loaded by 0 of 1; {sentence}")


def test_what_fits_says_how_much_context_is_left() -> None:
    status, reason, message = state_of(spec())
    assert (status, reason) == ("True", "Fits")
    assert "weights 16.0 GiB and one step 1.0 GiB leave up to 4.6 GiB for the KV cache, which is 37,683 tok" in message
    assert message.endswith("; there are 21.6 GiB (90% of 24.0 GiB)")


def test_what_did_not_fit_is_not_said_to_fit_or_to_be_unknown() -> None:
    """The operator's numbers know nothing of --kv-cache-memory, and a pod of the newest revision does."""
    ended = {"state": {"terminated": {"exitCode": 4, "message": "it needs 2 GiB, and there is 1 GiB"}}}
    there, old = pod(container=ended), pod("good-0", container=ended, revision="r0")
    old["metadata"]["creationTimestamp"] = "2025-12-31T00:00:00Z"
    for earlier in ({}, {"model": {"memory": known(parse(VALID).spec).as_object()}}):
        service = parse(merged(VALID, {"status": earlier}))
        status = summarize(service, Observation({}, deployment(), (there,)), "image", Result(), NOW)
        found = {each.type: each for each in status.conditions}[ConditionType.MEMORY_FITS]
        assert (found.status, found.reason) == ("False", "DoesNotFit")
        assert "condition Degraded says why" in found.message
        status = summarize(service, Observation({}, deployment(), (old, pod(container=SERVING))), "x", Result(), NOW)
        assert {each.type: each.status for each in status.conditions}[ConditionType.MEMORY_FITS] != "False"


def test_what_did_not_fit_is_quoted_where_degraded_names_another_pod() -> None:
    small = pod("good-1", container={"state": {"terminated": {"exitCode": 4, "message": "it needs 2 GiB"}}})
    other = pod("good-2", container={"state": {"waiting": {"reason": "ImagePullBackOff", "message": "no such image"}}})
    other["metadata"] |= {"uid": "u2", "creationTimestamp": "2026-02-01T00:00:00Z"}
    status = summarize(parse(VALID), Observation({}, deployment(), (small, other)), "image", Result(), NOW)
    found = {each.type: each.message for each in status.conditions}
    assert "good-1" not in found[ConditionType.DEGRADED]
    assert found[ConditionType.MEMORY_FITS].startswith("a pod has too little memory: pod good-1 ended with exit code 4")


def test_what_does_not_fit_says_need_have_and_knob() -> None:
    status, reason, message = state_of(spec(engine={"maxModelLength": 40_000}))
    assert (status, reason) == ("False", "DoesNotFit")
    assert "need 21.9 GiB, there are 21.6 GiB" in message
    assert 'lower spec.engine.maxModelLength to 37680 or raise spec.engine.gpuMemoryUtilization to "0.92"' in message


@pytest.mark.parametrize(
    ("engine", "advice"),
    [
        ({}, "take a larger GPU or set spec.engine.quantization or use a smaller spec.engine.dtype"),
        ({"quantization": "int4", "dtype": "bfloat16"}, "take a larger GPU"),
    ],
)
def test_weights_alone_too_large(engine: dict[str, str], advice: str) -> None:
    assert state_of(spec(engine=engine), weight_bytes=80 * GIB)[2].endswith(f"; {advice}")


def test_on_cpu_the_limit_counts() -> None:
    small = spec(False, resources={"limits": {"memory": "8Gi"}})
    status, _, message = state_of(small)
    assert status == "False"
    assert "there are 7.2 GiB (90% of 8.0 GiB); raise spec.resources.limits.memory to 19345Mi" in message
    assert state_of(spec(False, resources={"limits": {"memory": "19345Mi"}}))[0] == "True"


def test_processes_on_cpu_share_the_limit() -> None:
    def two(limit: str) -> LLMServiceSpec:
        fields = {"accelerator": {"count": 2}, "resources": {"limits": {"memory": limit}}}
        return spec(False, **fields, engine={"extraArgs": ["--device=cpu"]})

    _, _, message = state_of(two("16Gi"))
    assert "there are 7.2 GiB (90% of 8.0 GiB); raise spec.resources.limits.memory to 38689Mi" in message
    assert state_of(two("38689Mi"))[0] == "True"
    assert state_of(spec(False))[0] == "True", "without a limit the node's memory counts"


CHANGES: list[dict[str, Any]] = [
    {"model": {"source": {"huggingFace": {"repository": "org/other"}}}},
    {"model": {"source": {"huggingFace": {"repository": "org/model", "revision": "v2"}}}},
    {"engine": {"dtype": "float32"}},
    {"engine": {"quantization": "int8"}},
    {"engine": {"extraArgs": ["--kv-cache-dtype=fp8"]}},
    {"adapters": [{"name": "sql", "source": {"huggingFace": {"repository": "org/sql"}}}]},
    {"accelerator": {"resourceName": "amd.com/gpu"}},
    {"accelerator": {"count": 0}},
    {"scheduling": {"nodeSelector": {"gpu": "small"}}},
]


@pytest.mark.parametrize("change", CHANGES)
def test_numbers_of_another_model_or_device_say_nothing(change: dict[str, Any]) -> None:
    base = {"spec": {"model": {"source": HUB}, "accelerator": {"count": 1}}}
    other = parse(merged(merged(VALID, base), {"spec": change})).spec
    assert memory_fit(other, known(spec()))[0] == "Unknown"


@pytest.mark.parametrize(
    "change",
    [
        {"engine": {"maxModelLength": 100}},
        {"engine": {"extraArgs": ["--log-format=json"]}},
        {"replicas": 3},
        {"suspend": True},
    ],
)
def test_other_changes_are_judged_with_what_is_known(change: dict[str, Any]) -> None:
    assert memory_fit(spec(**change), known(spec()))[0] == "True"


@pytest.mark.parametrize("total", range(16, 28))
@pytest.mark.parametrize("length", [512, 8192, 8193, 40_000])
def test_the_engine_judges_alike(total: int, length: int) -> None:
    numbers = {**NUMBERS, "total_bytes": total * GIB}
    need = MemoryNeed(numbers["weight_bytes"], numbers["step_bytes"], numbers["kv_bytes_per_token"])
    limits = MemoryLimits(0.90, 16, 64, 131_072, length)
    try:
        plan_memory(need, DeviceMemory(total * GIB, total * GIB, "a GPU"), limits)
        fits = True
    except DoesNotFitError:
        fits = False
    assert state_of(spec(engine={"maxModelLength": length}), total_bytes=total * GIB)[0] == str(fits)


def test_the_share_on_cpu_is_the_engine_s_default() -> None:
    assert EngineConfig(model="x").gpu_memory_utilization == SHARE_ON_CPU


def test_a_pod_s_numbers_are_kept_in_status_and_judged_from_there() -> None:
    service = parse(merged(VALID, {"metadata": {"uid": "u1", "namespace": "llm"}}))
    report = LoadReport(phase="ready", memory=MemoryReport(**NUMBERS))
    there = pod(container=SERVING)
    there["metadata"]["uid"] = "p1"
    observed = Observation({}, deployment(ready=1), (there,), {"p1": report})
    status = summarize(service, observed, "x", Result(), NOW)
    assert status.model.memory == MemoryStatus(subject="smollm2 auto cpu 0", **NUMBERS)
    later = parse({**merged(VALID, {"metadata": {"uid": "u1", "namespace": "llm"}}), "status": status.as_object()})
    again = summarize(later, Observation({}, deployment(), ()), "x", Result(), NOW)
    assert again.model.memory == status.model.memory
    assert {c.type: c.status for c in again.conditions}[ConditionType.MEMORY_FITS] == "True"


def test_which_model_a_pod_has_loaded_is_kept_in_status_as_long_as_it_is_the_same() -> None:
    def asked(status: dict[str, Any] | None = None, **model: Any) -> Any:
        fields = {"metadata": {"uid": "u1", "namespace": "llm"}, "status": status or {}, "spec": model}
        return parse(merged(VALID, fields))

    model = ModelReport(resolvedRevision="abc", sizeBytes=5)
    there = pod(container=SERVING)
    there["metadata"]["uid"] = "p1"
    reports = {"p1": LoadReport(phase="ready", memory=MemoryReport(**NUMBERS), model=model)}
    status = summarize(asked(), Observation({}, deployment(ready=1), (there,), reports), "x", Result(), NOW)
    assert (status.model.resolved_revision, status.model.size_bytes) == ("abc", 5)
    rolling = Observation({}, deployment(ready=1, updated=0), (there,), reports)
    assert summarize(asked(), rolling, "x", Result(), NOW).model.resolved_revision is None
    before, alone = status.as_object(), Observation({}, deployment(), ())
    assert before["model"] | {"resolvedRevision": "abc", "sizeBytes": 5} == before["model"]
    later = summarize(asked(before), alone, "x", Result(), NOW)
    assert (later.model.resolved_revision, later.model.size_bytes) == ("abc", 5)
    other = summarize(asked(before, engine={"dtype": "float32"}), alone, "x", Result(), NOW)
    assert (other.model.resolved_revision, other.model.size_bytes) == (None, None)


def test_numbers_of_a_pod_of_an_older_revision_are_not_taken_for_the_new_one() -> None:
    service = parse(merged(VALID, {"metadata": {"uid": "u1", "namespace": "llm"}}))
    there = pod(container=SERVING)
    there["metadata"]["uid"] = "p1"
    reports = {"p1": LoadReport(phase="ready", memory=MemoryReport(**NUMBERS))}
    observed = Observation({}, deployment(ready=1, updated=0), (there,), reports)
    status = summarize(service, observed, "x", Result(), NOW)
    assert status.model.memory is None
    assert re.search("not known yet", next(c for c in status.conditions if c.type == "MemoryFits").message)
