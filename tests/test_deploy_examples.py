"""examples/deploy and Krew's manifest: what other programs read is checked here, since those programs cannot be run.

Octavo's own parts are checked in full: values by the chart's schema, LLMServices by the CRD's model. Of other charts
only the names of values are known here, as their values.yaml have them.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import jsonschema
import yaml

import octavo_operator
from octavo_operator.api.resource import parse
from octavo_operator.kubectl.cli import build_parser
from tests.operator.bad_llmservices import merged

ROOT = Path(__file__).parents[1]
DEPLOY = ROOT / "examples" / "deploy"
URL = "http://hermes-8b.default.svc/v1"


def documents(name: str) -> list[dict[str, Any]]:
    return list(yaml.safe_load_all((DEPLOY / name).read_text()))


def of_kind(name: str, kind: str) -> dict[str, Any]:
    [found] = [each for each in documents(name) if each["kind"] == kind]
    return found


def test_values_are_values_of_the_chart() -> None:
    chart = ROOT / "charts" / "octavo"
    schema = json.loads((chart / "values.schema.json").read_text())
    defaults = yaml.safe_load((chart / "values.yaml").read_text())
    [application, _] = documents("argo-cd.yaml")
    given = (
        documents("octavo-values.yaml")[0],
        application["spec"]["source"]["helm"]["valuesObject"],
        of_kind("flux.yaml", "HelmRelease")["spec"]["values"],
    )
    for values in given:
        jsonschema.validate(merged(defaults, values), schema, jsonschema.Draft7Validator)
        for part, fields in values.items():
            assert set(fields) <= set(schema["properties"][part]["properties"]), part


def test_what_the_files_name_is_there() -> None:
    for application in documents("argo-cd.yaml"):
        assert (ROOT / application["spec"]["source"]["path"]).is_dir()
        included = application["spec"]["source"].get("directory", {}).get("include", "Chart.yaml")
        assert (ROOT / application["spec"]["source"]["path"] / included).is_file()
    chart = of_kind("flux.yaml", "HelmRelease")["spec"]["chart"]["spec"]
    assert (ROOT / chart["chart"] / "Chart.yaml").is_file()
    source = of_kind("flux.yaml", "GitRepository")["metadata"]["name"]
    assert chart["sourceRef"]["name"] == of_kind("flux.yaml", "Kustomization")["spec"]["sourceRef"]["name"] == source
    terraform = (DEPLOY / "main.tf").read_text()
    named = re.findall(r'"\$\{path\.module\}/([^"]+)"', terraform)
    assert len(named) == 3 and all((DEPLOY / each).exists() for each in named)
    assert terraform.count("{") == terraform.count("}")


def test_chats_are_led_to_the_service() -> None:
    service = parse(documents("llmservice.yaml")[0])
    assert f"http://{service.name}.{service.namespace}.svc/v1" == URL
    [webui] = documents("open-webui-values.yaml")
    assert webui["openaiBaseApiUrls"] == [URL] and len(webui["openaiApiKeys"]) == 1
    assert set(webui) == {"ollama", "pipelines", "openaiBaseApiUrls", "openaiApiKeys"}
    [librechat] = documents("librechat-values.yaml")
    [endpoint] = yaml.safe_load(librechat["librechat"]["configYamlContent"])["endpoints"]["custom"]
    assert endpoint["baseURL"] == URL and endpoint["models"]["default"] == [service.name]
    assert {"name", "apiKey", "baseURL", "models"} <= set(endpoint)


def test_krew_would_take_the_manifest_once_there_is_an_archive() -> None:
    """The rules of `krew` for its index: names, a version as v1.2.3, and for each platform an archive and a program."""
    manifest = yaml.safe_load((ROOT / "manifests" / "krew" / "octavo.yaml").read_text())
    assert (manifest["apiVersion"], manifest["kind"]) == ("krew.googlecontainertools.github.com/v1alpha2", "Plugin")
    assert f"kubectl {manifest['metadata']['name']}" == build_parser().prog
    spec = manifest["spec"]
    assert spec["version"] == f"v{octavo_operator.__version__}"
    assert 0 < len(spec["shortDescription"]) <= 50 and "\n" not in spec["shortDescription"]
    assert spec["homepage"].startswith("https://") and spec["description"].strip()
    for command in ("status", "why", "top", "logs", "chat", "run"):
        assert command in spec["description"]
    for platform in spec["platforms"]:
        assert {each["key"] for each in platform["selector"]["matchExpressions"]} <= {"os", "arch"}
        assert platform["uri"].startswith("https://") and spec["version"] in platform["uri"]
        assert re.fullmatch("[0-9a-f]{64}", platform["sha256"])
        assert platform["files"] and platform["bin"] == "kubectl-octavo"
