"""The administrator's defaults for all engines apply where an LLMService sets nothing else."""

from __future__ import annotations

from typing import Any

import pytest

from octavo_operator.api.engine_defaults import NO_DEFAULTS, EngineDefaults, parse_engine_defaults
from octavo_operator.api.resource import parse
from octavo_operator.cli import build_parser
from octavo_operator.render import RenderConfig, render
from tests.operator.bad_llmservices import VALID, merged

DEFAULTS = parse_engine_defaults(
    '{"tolerations": [{"key": "gpu", "operator": "Exists"}], "runtimeClassName": "nvidia", "imagePullSecrets": '
    '[{"name": "all"}], "fixedUser": false}'
)
GPU = {"key": "gpu", "operator": "Exists"}


def pod(defaults: EngineDefaults = DEFAULTS, **spec: Any) -> dict[str, Any]:
    return dict(rendered(defaults, **spec)["Deployment"]["spec"]["template"]["spec"])


def rendered(defaults: EngineDefaults, **spec: Any) -> dict[str, Any]:
    service = parse(merged(VALID, {"spec": spec}))
    return {each["kind"]: each for each in render(service, RenderConfig("image", defaults=defaults))}


def test_they_hold_where_the_spec_says_nothing() -> None:
    made = pod()
    assert made["tolerations"] == [GPU]
    assert (made["runtimeClassName"], made["imagePullSecrets"]) == ("nvidia", [{"name": "all"}])
    assert not {"runAsUser", "runAsGroup", "fsGroup"} & set(made["securityContext"])


def test_the_spec_wins_and_a_toleration_stands_once() -> None:
    own = {"tolerations": [GPU, {"key": "mine", "operator": "Exists"}], "runtimeClassName": "own"}
    made = pod(scheduling=own, engine={"imagePullSecrets": [{"name": "own"}]})
    assert made["tolerations"] == own["tolerations"]
    assert (made["runtimeClassName"], made["imagePullSecrets"]) == ("own", [{"name": "own"}])


def test_api_keys_and_a_network_policy_for_all_models_that_have_none() -> None:
    peers = [{"namespaceSelector": {}}]
    defaults = parse_engine_defaults(
        '{"auth": {"apiKeysSecretRef": {"name": "all"}}, "networkPolicy": {"from": [{"namespaceSelector": {}}]}}'
    )
    own = {"auth": {"apiKeysSecretRef": {"name": "own"}}, "networkPolicy": {"from": []}}
    for spec, secret, rest in (({}, "all", peers), (own, "own", [])):
        children = rendered(defaults, **spec)
        made = children["Deployment"]["spec"]["template"]["spec"]
        assert secret in [each["secret"]["secretName"] for each in made["volumes"] if "secret" in each]
        assert any("--api-key-file" in each for each in made["containers"][0]["args"])
        assert children["NetworkPolicy"]["spec"]["ingress"][0]["from"][:-1] == rest
    assert "NetworkPolicy" not in rendered(NO_DEFAULTS)


def test_without_them_nothing_changes() -> None:
    made = pod(NO_DEFAULTS)
    assert not {"tolerations", "runtimeClassName", "imagePullSecrets"} & set(made)
    assert made["securityContext"]["runAsUser"] == 10001


@pytest.mark.parametrize("text", ["{", '{"toleration": []}', '{"tolerations": [{"operator": "Equal"}]}', "[]"])
def test_a_wrong_one_is_refused_when_the_operator_starts(text: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        build_parser().parse_args(["run", f"--engine-defaults={text}"])
    assert "--engine-defaults" in capsys.readouterr().err
