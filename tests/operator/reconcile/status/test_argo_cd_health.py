"""The health check for Argo CD in docs/how-to/gitops.md, run by Lua 5.1, which Argo CD has too, on real statuses."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from lupa import lua51

from tests.operator.reconcile.status.test_summarize import RUNNING, SERVING, deployment, exited, pod, service, summary

PAGE = (Path(__file__).parents[4] / "docs" / "how-to" / "gitops.md").read_text()
KEY = "resource.customizations.health.octavo.dev_LLMService"


def health(llmservice: dict[str, Any]) -> tuple[str, str]:
    """Return the status and message by which Argo CD shows an LLMService."""
    [block] = re.findall(r"```yaml\n(data:\n  resource\.customizations.*?)```", PAGE, re.DOTALL)
    check = yaml.safe_load(block)["data"][KEY]
    lua = lua51.LuaRuntime(register_eval=False, register_builtins=False)
    for library in ("string", "math", "io", "debug", "coroutine"):
        lua.globals()[library] = None
    lua.globals().obj = lua.table_from(llmservice, recursive=True)
    found = lua.execute(check)
    return found.status, found.message


def seen(*pods: dict[str, Any], **fields: Any) -> dict[str, Any]:
    """The LLMService as the API server has it once the operator has seen these pods."""
    there = service(**fields)
    ready = sum(each.get("status", {}).get("containerStatuses", [{}])[0].get("ready", False) for each in pods)
    status = summary(*pods, of=there, children=deployment(ready, len(pods), len(pods)))
    return {"metadata": {"generation": there.metadata.generation}, "spec": {}, "status": status.as_object()}


@pytest.mark.parametrize(
    ("llmservice", "status", "words"),
    [
        (seen(pod(container=RUNNING)), "Progressing", "0 of these are ready"),
        (seen(pod(container=SERVING)), "Healthy", "1 of 1 replicas serve good"),
        (seen(pod(container={**exited(4, "too large"), "restartCount": 2})), "Degraded", "too large"),
        (seen(suspend=True), "Suspended", "spec.suspend is true"),
    ],
)
def test_argo_cd_shows_what_the_conditions_say(llmservice: dict[str, Any], status: str, words: str) -> None:
    found, message = health(llmservice)
    assert found == status
    assert words in message


def test_what_the_operator_has_not_seen_yet_is_progressing() -> None:
    expected = ("Progressing", "the operator has not seen this change yet")
    changed = seen(pod(container=SERVING))
    changed["metadata"]["generation"] += 1
    for llmservice in ({"metadata": {"generation": 1}, "spec": {}}, changed):
        assert health(llmservice) == expected
