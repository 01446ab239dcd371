"""The life of an LLMService with a real engine in its pods: created, used, changed under load, deleted."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from datetime import datetime
from typing import Any

import pytest
import yaml

from tests.operator.bad_llmservices import GONE, VALID, merged

from .client import Client
from .octavo import OPERATOR, PATIENT, SAMPLES, condition, installed_operator, sdk, start_load, wait_for_condition

SAMPLE: dict[str, Any] = yaml.safe_load((SAMPLES / "smollm2.yaml").read_text())
NAME = SAMPLE["metadata"]["name"]
QUESTION: Any = [{"role": "user", "content": "Name the capital of France."}]
LOADED = 300  # seconds that a model may take to load on a machine that does much else

ASK = f"""
import openai, sys
client = openai.OpenAI(base_url=sys.argv[1], api_key="none")
stream = client.chat.completions.create(
    model={NAME!r}, messages={QUESTION!r}, max_tokens=16, temperature=0, stream=True)
print("".join(choice.delta.content or "" for chunk in stream for choice in chunk.choices))
"""


@pytest.fixture(scope="module")
def operator(cluster: Client) -> Iterator[Client]:
    """The operator, cluster-wide."""
    with installed_operator(cluster) as system:
        yield system


def ask(client: Client) -> str:
    stream = sdk(client, NAME).chat.completions.create(
        model=NAME, messages=QUESTION, max_tokens=16, temperature=0, stream=True
    )
    return "".join(choice.delta.content or "" for chunk in stream for choice in chunk.choices)


PRE_STOP = 10  # seconds that a pod still takes requests after its deletion began
NEW_POD = 8  # seconds before that in which the new pod may have taken some already, by minReadySeconds and a little
LONG_ANSWERS = (1700, 36, 4)  # tokens or seconds, and users of such answers, so that some answer spans all of that time
# Two pods share two cores while one replaces the other: threads that wait must not spin. And an answer may take long.
SHARING = {
    "engine": {"env": [{"name": "OMP_NUM_THREADS", "value": "1"}]},
    # Under load they would take all CPU time from the tests that compute meanwhile.
    "resources": {"limits": {"cpu": "600m"}},
    "rollout": {"drainTimeoutSeconds": 600},
    "podTemplate": PATIENT,
}


@pytest.mark.timeout(1800)
def test_from_apply_to_deletion(operator: Client, namespace: Client) -> None:
    namespace.apply(merged(SAMPLE, {"spec": SHARING}))
    service = wait_for_condition(namespace, NAME, "Ready", "Serving", LOADED)
    assert condition(service, "ModelLoaded")["status"] == "True"
    row = namespace.kubectl("get", "llms", NAME).splitlines()[1].split()
    assert row[:-1] == [NAME, NAME, "1", "1", "Serving", "Serving"]

    url = service["status"]["url"]
    answer = namespace.run_pod("octavo-engine:dev", ["python", "-c", ASK, url], timeout=180)
    assert (answer.exit_code, "Paris" in answer.logs) == (0, True), answer.logs
    assert "Paris" in ask(namespace)
    assert [model.id for model in sdk(namespace, NAME).models.list()] == [NAME]
    code, shown = kubectl_octavo(namespace, "why", NAME)
    assert (code, shown.splitlines()[0].partition("; ")[2]) == (0, "nothing keeps it from serving or scaling")
    code, shown = kubectl_octavo(namespace, "top", "--seconds=0.1")
    assert (code, shown.splitlines()[1].split()[:5]) == (0, [namespace.namespace, NAME, "1", "0", "0"])

    start_load(namespace, url, NAME, LONG_ANSWERS)
    spanning: list[dict[str, Any]] = []
    for length in range(1800, 2040, 40):
        wait_for_long_answers(namespace)
        (old,) = [pod["metadata"]["name"] for pod in running(namespace)]
        change = json.dumps({"spec": {"engine": {"maxModelLength": length}}})
        namespace.kubectl("patch", "llms", NAME, "--type=merge", "-p", change)
        service = wait_for_condition(namespace, NAME, "Progressing", "Deployed", LOADED)
        assert condition(service, "Ready")["status"] == "True"
        assert [f"--max-model-len={length}" in arguments(pod) for pod in running(namespace)] == [True]
        asked = wait_until_gone(namespace, old)
        answered_anew(namespace)
        # An old pod was still writing an answer when it was asked to end, so the drain was really tested.
        answers = answers_so_far(namespace)
        if spanning := [a for a in answers if a["began"] < asked - PRE_STOP - NEW_POD and asked < a["ended"]]:
            break  # else a pod came up faster, or more slowly, than answers of this length allow
    answers = stop_load(namespace)
    assert [answer["lost"] for answer in answers if answer["lost"]] == []
    assert spanning, f"no answer was long enough: {answers}"

    operator.kubectl("scale", f"deployment/{OPERATOR}", "--replicas=0")
    try:
        operator.kubectl(
            "wait", "--for=delete", "pod", "-l", "app.kubernetes.io/name=octavo-operator", "--timeout=180s"
        )
        assert "Paris" in ask(namespace)
        namespace.kubectl("delete", "llms", NAME, "--timeout=180s")
        for kind in ("deployment", "service", "poddisruptionbudget"):
            namespace.wait_until(lambda kind=kind: not namespace.exists(kind, NAME), 60, f"the {kind} goes")  # type: ignore[misc]
        namespace.wait_until(
            lambda: not namespace.list("pods", selector=f"octavo.dev/llmservice={NAME}"), 180, "pods go"
        )
    finally:
        operator.kubectl("scale", f"deployment/{OPERATOR}", "--replicas=1")
        operator.kubectl("rollout", "status", f"deployment/{OPERATOR}", "--timeout=180s")


def kubectl_octavo(client: Client, *arguments: str) -> tuple[int, str]:
    """Return the exit code and the output of the plugin, with the kubectl of this cluster."""
    command = [sys.executable, "-m", "octavo_operator.kubectl.cli", *arguments, f"--kubeconfig={client.kubeconfig}"]
    path = {"PATH": f"{client.programs}:{os.environ['PATH']}"}
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120, env=os.environ | path)
    return done.returncode, done.stdout + done.stderr


def answers_so_far(client: Client) -> list[dict[str, Any]]:
    logs = client.http.get(client.path("pod", "load") + "/log").raise_for_status().text
    return [json.loads(line) for line in logs.splitlines()]


def wait_for_long_answers(client: Client) -> None:
    """Wait until each user of long answers knows the pace, and has begun one that lasts."""
    now = time.time()

    def ended() -> int:
        return sum(answer["user"] == "long" and answer["ended"] > now for answer in answers_so_far(client))

    client.wait_until(lambda: ended() >= LONG_ANSWERS[-1], 600, "long answers end", every=1)


def answered_anew(client: Client) -> None:
    """Wait until ten short answers that began from now on have ended well: the service is there for its users."""
    now = time.time()

    def answered() -> bool:
        return sum(a["user"] == "short" and a["began"] > now and not a["lost"] for a in answers_so_far(client)) >= 10

    client.wait_until(answered, 300, lambda: f"users are answered: {answers_so_far(client)[-20:]}", every=2)


def wait_until_gone(client: Client, pod: str) -> float:
    """Wait for the end of a pod that is being replaced; return when its engine was asked to end, after preStop."""
    asked = 0.0

    def gone() -> bool:
        nonlocal asked
        found = client.find("pod", pod)
        metadata = found["metadata"] if found else {}
        if deadline := metadata.get("deletionTimestamp"):
            asked = datetime.fromisoformat(deadline).timestamp() - metadata["deletionGracePeriodSeconds"] + PRE_STOP
        return not found

    client.wait_until(gone, 700, f"{pod} drains and goes", every=1)
    return asked


def stop_load(client: Client) -> list[dict[str, Any]]:
    client.kubectl("exec", "load", "--", "python", "-c", "open('/tmp/stop', 'w')")
    ended = ("Succeeded", "Failed")
    client.wait_until(lambda: client.get("pod", "load")["status"]["phase"] in ended, 600, "the load ends")
    return answers_so_far(client)


def running(client: Client) -> list[dict[str, Any]]:
    pods = client.list("pods", selector=f"octavo.dev/llmservice={NAME}")
    return [pod for pod in pods if "deletionTimestamp" not in pod["metadata"]]


def arguments(pod: dict[str, Any]) -> list[str]:
    return list(pod["spec"]["containers"][0]["args"])


FAILURES = [
    (
        {"model": {"source": {"demo": GONE, "huggingFace": {"repository": "no-such/model"}}}},
        "ModelNotFound",
        "no-such/model",
    ),
    ({"engine": {"extraArgs": ["--block-size=7"]}}, "ConfigurationError", "--block-size"),
    ({"engine": {"extraArgs": ["--kv-cache-memory=1KiB"]}}, "OutOfMemory", "one sequence needs"),
]


@pytest.mark.parametrize(("change", "reason", "words"), FAILURES, ids=[row[1] for row in FAILURES])
def test_an_engine_that_cannot_start_says_why(
    change: dict[str, Any], reason: str, words: str, operator: Client, namespace: Client
) -> None:
    namespace.apply(merged(VALID, {"spec": change}))
    service = wait_for_condition(namespace, "good", "Ready", reason, 120)
    assert words in condition(service, "Degraded")["message"]

    def events() -> str:
        return namespace.kubectl("describe", "llms", "good").partition("Events:")[2]

    namespace.wait_until(lambda: reason in events() and words in events(), 10, lambda: f"an event says why: {events()}")
    code, why = kubectl_octavo(namespace, "why", "good")
    assert code == 1 and why.splitlines()[1].startswith(f"1. condition Ready=False: {reason}: ") and words in why, why


TRY_KEYS = """
import sys, urllib.error, urllib.request
for key in ("", "wrong", sys.argv[2]):
    request = urllib.request.Request(sys.argv[1] + "/models", headers={"Authorization": "Bearer " + key} if key else {})
    try:
        print(urllib.request.urlopen(request).status)
    except urllib.error.HTTPError as error:
        print(error.code)
"""


UNTIL_KEYS_CHANGE = """
import sys, time, urllib.error, urllib.request
def status(key):
    request = urllib.request.Request(sys.argv[1] + "/models", headers={"Authorization": "Bearer " + key})
    try:
        return urllib.request.urlopen(request).status
    except urllib.error.HTTPError as error:
        return error.code
while (old := status(sys.argv[2])) != 401 or (new := status(sys.argv[3])) != 200:
    time.sleep(1)
print(old, new)
"""


@pytest.mark.timeout(600)
def test_keys_of_a_secret_are_asked_for(operator: Client, namespace: Client) -> None:
    namespace.kubectl("create", "secret", "generic", "clients", "--from-literal=team-a=a-long-and-secret-key")
    namespace.apply(merged(SAMPLE, {"spec": {"auth": {"apiKeysSecretRef": {"name": "clients"}}}}))
    service = wait_for_condition(namespace, NAME, "Ready", "Serving", LOADED)
    arguments = ["python", "-c", TRY_KEYS, service["status"]["url"], "a-long-and-secret-key"]
    answers = namespace.run_pod("octavo-engine:dev", arguments)
    assert answers.logs.split() == ["401", "401", "200"]

    # A key that is taken away and one that comes: by the Secret alone, the pod stays.
    (before,) = running(namespace)
    changed = {"data": {"team-a": None}, "stringData": {"team-b": "another-secret-key"}}
    namespace.kubectl("patch", "secret", "clients", "--type=merge", "-p", json.dumps(changed))
    arguments = [
        "python",
        "-c",
        UNTIL_KEYS_CHANGE,
        service["status"]["url"],
        "a-long-and-secret-key",
        "another-secret-key",
    ]
    answers = namespace.run_pod("octavo-engine:dev", arguments, timeout=240)
    assert (answers.exit_code, answers.logs.split()) == (0, ["401", "200"])
    assert [pod["metadata"]["uid"] for pod in running(namespace)] == [before["metadata"]["uid"]]
