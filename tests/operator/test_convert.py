"""`octavo-operator convert`: manifests of KubeAI and vLLM become LLMServices that the API server accepts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from octavo_operator.api.resource import parse
from octavo_operator.cli import main
from octavo_operator.convert import Conversions, convert

MODEL: dict[str, Any] = {
    "apiVersion": "kubeai.org/v1",
    "kind": "Model",
    "metadata": {"name": "llama-8b", "namespace": "models"},
    "spec": {
        "features": ["TextGeneration"],
        "url": "hf://meta-llama/Llama-3.1-8B-Instruct",
        "engine": "VLLM",
        "resourceProfile": "nvidia-gpu-l4:2",
        "minReplicas": 2,
        "maxReplicas": 5,
        "scaleDownDelaySeconds": 60,
        "args": ["--max-model-len=32768", "--max-num-batched-tokens=4096", "--disable-log-requests", "--tool-parser=x"],
        "env": {"HF_HUB_OFFLINE": 1},
        "adapters": [{"name": "sql", "url": "s3://adapters/sql"}],
    },
}
CONTAINER: dict[str, Any] = {
    "name": "vllm",
    "image": "vllm/vllm-openai:v0.11.0",
    "command": ["/bin/sh", "-c"],
    "args": ["exec vllm serve Qwen/Qwen3-8B --revision v1 -tp 2 \\\n --quantization awq_marlin --api-key secret"],
    "env": [
        {"name": "HUGGING_FACE_HUB_TOKEN", "valueFrom": {"secretKeyRef": {"name": "hf", "key": "token"}}},
        {"name": "VLLM_USE_V1", "value": "1"},
        {"name": "NCCL_DEBUG", "value": "INFO"},
    ],
    "resources": {"limits": {"nvidia.com/gpu": "2", "memory": "40Gi"}, "requests": {"cpu": "4"}},
}


def workload(container: dict[str, Any], **pod: Any) -> dict[str, Any]:
    template = {"spec": {"containers": [container], **pod}}
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": "qwen"},
        "spec": {"replicas": 3, "template": template},
    }


def only(found: Conversions) -> dict[str, Any]:
    """The spec of the one LLMService, which is valid."""
    assert not found.problems
    [manifest] = found.manifests
    parse(manifest)
    assert not [note for note in found.notes if "to be corrected" in note]
    return dict(manifest["spec"])


def test_a_model_of_kubeai() -> None:
    found = convert([{"apiVersion": "v1", "kind": "List", "items": [MODEL]}])
    assert only(found) == {
        "model": {"source": {"huggingFace": {"repository": "meta-llama/Llama-3.1-8B-Instruct"}}},
        "adapters": [{"name": "sql", "source": {"s3": {"bucket": "adapters", "prefix": "sql"}}}],
        "engine": {
            "maxModelLength": 32768,
            "extraArgs": ["--max-num-batched-tokens=4096"],
            "env": [{"name": "HF_HUB_OFFLINE", "value": "1"}],
        },
        "accelerator": {"count": 2},
        "autoscaling": {
            "minReplicas": 2,
            "maxReplicas": 5,
            "behavior": {"scaleDown": {"stabilizationWindowSeconds": 60}},
        },
    }
    assert found.manifests[0]["metadata"] == {"name": "llama-8b", "namespace": "models"}
    assert [note for note in found.notes if "--tool-parser was left out" in note]


def test_a_model_of_kubeai_that_scales_to_zero_without_bounds() -> None:
    spec = {"url": "pvc://weights/llama", "resourceProfile": "cpu:2", "minReplicas": 0}
    found = convert([{**MODEL, "spec": spec}])
    converted = only(found)
    assert converted["autoscaling"] == {"minReplicas": 1, "maxReplicas": 4}
    assert converted["accelerator"] == {"count": 0}
    assert converted["model"]["source"] == {"persistentVolumeClaim": {"claimName": "weights", "path": "llama"}}
    assert len([note for note in found.notes if "Replicas: " in note]) == 2


def test_a_deployment_of_vllm() -> None:
    found = convert([workload(CONTAINER, nodeSelector={"gpu": "h100"}), {"kind": "Service", "metadata": {"name": "x"}}])
    assert only(found) == {
        "model": {
            "name": "Qwen/Qwen3-8B",
            "source": {
                "huggingFace": {
                    "repository": "Qwen/Qwen3-8B",
                    "revision": "v1",
                    "tokenSecretRef": {"name": "hf", "key": "token"},
                }
            },
        },
        "engine": {
            "tensorParallelSize": 2,
            "quantization": "awq",
            "env": [{"name": "NCCL_DEBUG", "value": "INFO"}],
        },
        "accelerator": {"count": 2},
        "resources": {"requests": {"cpu": "4"}, "limits": {"memory": "40Gi"}},
        "replicas": 3,
        "scheduling": {"nodeSelector": {"gpu": "h100"}},
    }
    assert [note for note in found.notes if "apiKeysSecretRef" in note]
    assert [note for note in found.notes if "VLLM_USE_V1" in note]


def test_a_model_on_a_volume_and_an_autoscaler() -> None:
    container = {
        "image": "registry.example/vllm-cpu:1",
        "args": ["--model", "/models/qwen", "--served-model-name", "qwen", "q", "--max-model-len", "8k"],
        "volumeMounts": [{"name": "data", "mountPath": "/models", "subPath": "hub"}],
    }
    volumes = [{"name": "data", "persistentVolumeClaim": {"claimName": "weights"}}]
    target = {"kind": "Deployment", "name": "qwen"}
    scaler = {"kind": "HorizontalPodAutoscaler", "spec": {"scaleTargetRef": target, "maxReplicas": 6}}
    spec = only(convert([workload(container, volumes=volumes), scaler]))
    assert spec["model"] == {
        "name": "qwen",
        "aliases": ["q"],
        "source": {"persistentVolumeClaim": {"claimName": "weights", "path": "hub/qwen"}},
    }
    assert spec["engine"] == {"maxModelLength": 8000}
    assert spec["autoscaling"] == {"minReplicas": 1, "maxReplicas": 6}
    assert "replicas" not in spec


@pytest.mark.parametrize(
    ("document", "reason"),
    [
        ({**MODEL, "spec": {"url": "ollama://gemma3"}}, "ollama://gemma3 has no counterpart"),
        ({**MODEL, "spec": {"url": 5}}, "5 has no counterpart"),
        ({**MODEL, "metadata": {}}, "has not the form of its kind"),
        (workload({"image": "vllm", "args": ["/models/x"]}), "is on no PersistentVolumeClaim"),
        (workload({"image": "vllm", "args": ["--port", "1"]}), "name no model"),
        (workload({"image": "nginx"}), "no Deployment or StatefulSet that runs vLLM was found"),
    ],
)
def test_what_cannot_be_converted_is_reported(document: dict[str, Any], reason: str) -> None:
    found = convert([document])
    assert found.manifests == []
    assert reason in found.problems[0]


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "models.yaml"
    file.write_text(yaml.safe_dump_all([MODEL, {**MODEL, "spec": {"url": "gs://bucket/x"}}]))
    assert main(["convert", str(file)]) == 2
    said = capsys.readouterr()
    assert len(list(yaml.safe_load_all(said.out))) == 1
    assert "gs://bucket/x has no counterpart" in said.err
    (tmp_path / "service.yaml").write_text(said.out)
    assert main(["check", str(tmp_path / "service.yaml")]) == 0
    assert main(["convert", str(tmp_path / "absent.yaml")]) == 2
