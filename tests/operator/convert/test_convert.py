"""`octavo-operator convert`: manifests of KubeAI and vLLM become LLMServices that the API server accepts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from octavo_operator.api.resource import parse
from octavo_operator.cli import main
from octavo_operator.convert import Conversions, convert
from octavo_operator.convert.vllm_arguments import read_arguments
from octavo_operator.convert.vllm_launch import find_launch

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


def on_volumes(*mounts: dict[str, Any]) -> dict[str, Any]:
    """A workload whose model is /models/hub/qwen, with these mounts of claims and of an empty volume."""
    claims = [{"name": name, "persistentVolumeClaim": {"claimName": f"claim-{name}"}} for name in ("outer", "inner")]
    container = {"image": "vllm", "args": ["/models/hub/qwen"], "volumeMounts": list(mounts)}
    return workload(container, volumes=[*claims, {"name": "empty", "emptyDir": {}}], initContainers=[{"name": "fetch"}])


OUTER = {"name": "outer", "mountPath": "/models"}


def test_of_mounts_within_each_other_the_innermost_holds_the_model() -> None:
    found = convert([on_volumes(OUTER, {"name": "inner", "mountPath": "/models/hub/"})])
    source = found.manifests[0]["spec"]["model"]["source"]
    assert source == {"persistentVolumeClaim": {"claimName": "claim-inner", "path": "qwen"}}
    assert [note for note in found.notes if "other containers were left out" in note]


def test_an_autoscaler_of_another_namespace_is_another_workloads() -> None:
    deployment = workload({"image": "vllm", "args": ["a/b"]})
    deployment["metadata"]["namespace"] = "here"
    target = {"kind": "Deployment", "name": deployment["metadata"]["name"]}
    spec = {"scaleTargetRef": target, "minReplicas": None, "maxReplicas": 6}
    scalers = [
        {"kind": "HorizontalPodAutoscaler", "metadata": {"namespace": where}, "spec": given}
        for where, given in (("elsewhere", {**spec, "maxReplicas": 9}), ("here", None), ("here", spec))
    ]
    assert only(convert([deployment, *scalers]))["autoscaling"] == {"minReplicas": 1, "maxReplicas": 6}


CATALOG_ENTRY = {
    "features": ["TextGeneration"],
    "url": "hf://neuralmagic/Meta-Llama-3.1-70B-Instruct-FP8",
    "engine": "VLLM",
    "env": {"VLLM_ATTENTION_BACKEND": "FLASHINFER"},
    "args": [
        *("--max-num-batched-token=32768", "--pipeline-parallel-size=4", "--tensor-parallel-size=2"),
        *("--enable-chunked-prefill=false", "--disable-log-requests", "--swap-space=8"),
    ],
    "resourceProfile": "nvidia-gpu-l4:8",
    "targetRequests": 500,
    "scaleDownDelaySeconds": 30,
}
"""As KubeAI's own catalog has it: an abbreviated flag, and two GPUs for each of four stages."""


def test_a_model_of_kubeais_catalog_keeps_its_name_for_requests_and_uses_all_gpus() -> None:
    metadata = {"name": "llama-3.1-70b-instruct-fp8-l4"}
    found = convert([{**MODEL, "metadata": metadata, "spec": CATALOG_ENTRY}])
    spec = only(found)
    assert found.manifests[0]["metadata"] == {"name": "llama-3-1-70b-instruct-fp8-l4"}
    assert spec["model"]["name"] == metadata["name"]
    assert spec["engine"] == {"extraArgs": ["--max-num-batched-tokens=32768", "--swap-space=8GiB"]}
    assert spec["accelerator"] == {"count": 8}
    for part in ("hyphens", "--tensor-parallel-size 2", "--enable-chunked-prefill", "VLLM_ATTENTION_BACKEND"):
        assert [note for note in found.notes if part in note], part


RENDERED_CONTAINER: dict[str, Any] = {
    "name": "vllm",
    "image": "vllm/vllm-openai:latest",
    "command": [
        *("vllm", "serve", "meta-llama/Llama-3.1-8B-Instruct", "--host", "0.0.0.0", "--port", "8000"),
        *("--enable-auto-tool-choice", "--tool-call-parser", "llama3_json", "--no-enable-chunked-prefill"),
        *("--no-enable-prefix-caching", "--gpu_memory_utilization", "0.8", "--kv-transfer-config", "{}"),
    ],
    "env": [
        {"name": "HF_HOME", "value": "/data"},
        {"name": "LMCACHE_LOG_LEVEL", "value": "DEBUG"},
        {"name": "PROMETHEUS_MULTIPROC_DIR", "value": "/tmp"},
        {"name": "VLLM_API_KEY", "valueFrom": {"secretKeyRef": {"name": "stack", "key": "vllmApiKey"}}},
    ],
    "resources": {"limits": {"nvidia.com/gpu": "1"}},
    "volumeMounts": [{"name": "storage", "mountPath": "/data"}],
}


def test_what_the_chart_of_production_stack_renders() -> None:
    volumes = [{"name": "storage", "persistentVolumeClaim": {"claimName": "llama-storage"}}]
    found = convert([workload(RENDERED_CONTAINER, volumes=volumes), workload({"image": "lmcache/lmstack-router"})])
    assert only(found)["engine"] == {"gpuMemoryUtilization": "0.8", "extraArgs": ["--no-enable-prefix-caching"]}
    for part in (
        "HF_HOME",
        "LMCACHE_LOG_LEVEL",
        "asks for no key",
        "llama-storage",
        "--tool-call",
        "--no-enable-chunk",
    ):
        assert [note for note in found.notes if part in note], part


ADDRESS = "/".join(["http://localhost:8000", *["a-long-path"] * 12])
SCRIPT = """
set -e  # don't go on
# the model's files
export VLLM_USE_V1=1 && echo 'a; b' || exit 1
VLLM_LOG=1 exec vllm serve Qwen/Qwen3-8B --max-num-seqs 2 2>&1 --served-model-name q | tee /tmp/log &
wait; curl ADDRESS
""".replace("ADDRESS", ADDRESS)


def test_a_shell_script_gives_the_arguments_of_vllm_and_a_note_about_the_rest() -> None:
    container = {"image": "vllm", "command": ["/bin/bash"], "args": ["-euo", "pipefail", "-c", SCRIPT]}
    found = convert([workload(container)])
    spec = only(found)
    assert spec["model"] == {"name": "q", "source": {"huggingFace": {"repository": "Qwen/Qwen3-8B"}}}
    assert spec["engine"] == {"maxConcurrentRequests": 2}
    notes = [note.partition("shell script was left out: ")[2] for note in found.notes if "shell script" in note]
    left_out = ["set -e", "export VLLM_USE_V1=1", "echo 'a; b'", "exit 1", "VLLM_LOG=1", "tee /tmp/log", "wait"]
    assert notes == [*left_out, f"curl {ADDRESS}"]


@pytest.mark.parametrize(
    ("script", "arguments"),
    [
        ("vllm serve a/b --max-num-seqs 2 > log 2>&1", ["a/b", "--max-num-seqs", "2"]),
        ("vllm serve a/b --port 8 2>log 2>&1 --seed 2 </dev/null; wait", ["a/b", "--port", "8", "--seed", "2"]),
        (
            "vllm serve a/b --x ';' --y \"&&\" --z '2>' \\; ''&& wait",
            ["a/b", "--x", ";", "--y", "&&", "--z", "2>", ";", ""],
        ),
    ],
)
def test_redirections_and_quoted_operators_take_no_argument_away(script: str, arguments: list[str]) -> None:
    launch = find_launch({"command": ["sh", "-c", script]})
    assert launch is not None and launch.arguments == arguments


@pytest.mark.parametrize(
    "script",
    [
        "echo vllm serve now; vllm serve a/b --seed 2",
        "(vllm serve a/b --seed 2)",
        "# vllm serve c/d\nif true; then exec nice -n 10 /opt/bin/vllm serve a/b --seed 2; fi",
    ],
)
def test_words_that_are_only_printed_and_brackets_are_no_part_of_the_command(script: str) -> None:
    launch = find_launch({"command": ["sh", "-c", script]})
    assert launch is not None and launch.arguments == ["a/b", "--seed", "2"]


@pytest.mark.parametrize("script", ["echo vllm serve now", "echo 'vllm serve a/b'"])
def test_a_script_that_only_prints_a_command_starts_nothing(script: str) -> None:
    assert find_launch({"command": ["sh", "-c", script]}) is None


@pytest.mark.parametrize(
    ("script", "why"),
    [
        ("cat <<END\nvllm serve c/d\nEND\nvllm serve a/b", "has a here-document"),
        ("vllm serve a/b --tensor-parallel-size $(nvidia-smi -L | wc -l)", "computes words"),
        ("vllm serve a/b --seed `date +%s`", "computes words"),
        ("log vllm serve now", "'log vllm serve now', which may run vLLM or not"),
    ],
)
def test_a_script_that_only_a_shell_can_read_is_reported(script: str, why: str) -> None:
    found = convert([workload({"image": "vllm", "command": ["sh", "-c", script]})])
    assert found.manifests == []
    assert why in found.problems[0] and "as the container's args" in found.problems[0]


def test_short_flags_are_read_as_the_long_ones_and_are_no_values() -> None:
    found = read_arguments(["a/b", "-O3", "-tp", "2", "--max-model-len", "-1", "-pp=2", "-O", "0", "-q", "awq"])
    assert (found.model, found.engine) == ("a/b", {"tensorParallelSize": 2, "quantization": "awq"})
    assert [note.partition(":")[0] for note in found.notes] == [
        "--compilation-config was left out",
        "--pipeline-parallel-size was left out",
        "--compilation-config was left out",
    ]
    assert "--cudagraph-mode" in found.notes[0] and "one node" in found.notes[1]


def test_the_first_word_by_position_is_the_model() -> None:
    found = convert([workload({"image": "vllm", "args": ["a/b", "--port", "1", "c/d"]})])
    assert only(found)["model"]["name"] == "a/b"
    assert [note for note in found.notes if "the word c/d was left out" in note]


@pytest.mark.parametrize(
    ("limits", "accelerator", "kept", "noted"),
    [
        ({"nvidia.com/mig-1g.10gb": 1}, {"count": 1, "resourceName": "nvidia.com/mig-1g.10gb"}, {}, ""),
        ({"nvidia.com/gpu.shared": "2"}, {"count": 2, "resourceName": "nvidia.com/gpu.shared"}, {}, ""),
        ({"nvidia.com/gpu": 1, "nvidia.com/gpumem": 3000}, {"count": 1}, {"nvidia.com/gpumem": 3000}, ""),
        (
            {"volcano.sh/vgpu-memory": 3000, "volcano.sh/vgpu-number": 1},
            {"count": 1, "resourceName": "volcano.sh/vgpu-number"},
            {"volcano.sh/vgpu-memory": 3000},
            "",
        ),
        ({"nvidia.com/gpu": 1, "nvidia.com/mig-1g.10gb": 2}, {"count": 1}, {}, "mig-1g.10gb: 2 was left out"),
        (
            {"nvidia.com/gpu": 0, "nvidia.com/mig-1g.10gb": 1},
            {"count": 1, "resourceName": "nvidia.com/mig-1g.10gb"},
            {},
            "nvidia.com/gpu: 0 was left out",
        ),
        ({"nvidia.com/gpumem": 3000}, {"count": 0}, {"nvidia.com/gpumem": 3000}, "asks for nvidia.com/gpumem and no"),
    ],
)
def test_resources_of_gpus(
    limits: dict[str, Any], accelerator: dict[str, Any], kept: dict[str, Any], noted: str
) -> None:
    found = convert([workload({"image": "vllm", "args": ["a/b"], "resources": {"limits": limits}})])
    spec = only(found)
    assert spec["accelerator"] == accelerator
    assert spec.get("resources", {}) == ({"limits": kept} if kept else {})
    assert [note for note in found.notes if noted in note] if noted else not found.notes


INFERENCE_SERVICE: dict[str, Any] = {
    "apiVersion": "serving.kserve.io/v1beta1",
    "kind": "InferenceService",
    "metadata": {"name": "huggingface-llama3"},
    "spec": {
        "predictor": {
            "serviceAccountName": "hfserviceacc",
            "minReplicas": 0,
            "maxReplicas": 3,
            "tolerations": [{"key": "gpu"}],
            "model": {
                "modelFormat": {"name": "huggingface"},
                "args": [
                    "--model_name=llama3",
                    "--model_dir=/mnt/models",
                    "--backend",
                    "vllm",
                    "--max-model-len=10000",
                ],
                "storageUri": "hf://meta-llama/meta-llama-3-8b-instruct:v2",
                "env": [{"name": "HF_TOKEN", "valueFrom": {"secretKeyRef": {"name": "hf-secret", "key": "HF_TOKEN"}}}],
                "resources": {"limits": {"cpu": "6", "nvidia.com/gpu": "1"}},
            },
        },
    },
}
LLM_INFERENCE_SERVICE: dict[str, Any] = {
    "apiVersion": "serving.kserve.io/v1alpha2",
    "kind": "LLMInferenceService",
    "metadata": {"name": "qwen3-coder", "namespace": "team"},
    "spec": {
        "model": {
            "uri": "hf://Qwen/Qwen3-Coder-30B-A3B-Instruct-FP8",
            "name": "Qwen/Qwen3-Coder",
            "lora": {"adapters": [{"name": "sql", "uri": "s3://adapters/sql"}]},
        },
        "replicas": 2,
        "parallelism": {"tensor": 2, "pipeline": 2},
        "router": {"route": {}, "scheduler": {}},
        "template": {
            "containers": [
                {
                    "name": "main",
                    "env": [{"name": "VLLM_ADDITIONAL_ARGS", "value": "--max-model-len 8k --enable-log-outputs"}],
                    "resources": {"limits": {"nvidia.com/gpu": "2"}},
                }
            ]
        },
    },
}


def predictor(**given: Any) -> dict[str, Any]:
    return {**INFERENCE_SERVICE, "spec": {"predictor": given}}


def test_an_inference_service_of_kserve() -> None:
    found = convert([INFERENCE_SERVICE])
    assert only(found) == {
        "model": {
            "name": "llama3",
            "source": {
                "huggingFace": {
                    "repository": "meta-llama/meta-llama-3-8b-instruct",
                    "revision": "v2",
                    "tokenSecretRef": {"name": "hf-secret", "key": "HF_TOKEN"},
                }
            },
        },
        "engine": {"maxModelLength": 10000},
        "accelerator": {"count": 1},
        "resources": {"limits": {"cpu": "6"}},
        "scheduling": {"tolerations": [{"key": "gpu"}]},
        "autoscaling": {"minReplicas": 1, "maxReplicas": 3},
    }
    assert [note for note in found.notes if "minReplicas: 1 is written for 0" in note]
    assert [note for note in found.notes if "serviceAccountName was left out" in note]


def test_an_inference_service_names_its_model_in_an_argument_or_runs_a_container_of_its_own() -> None:
    form = {"modelFormat": {"name": "huggingface"}}
    more = {"args": ["--model_id=Qwen/Qwen3-8B", "--task=embed"], "envFrom": [{"configMapRef": {"name": "proxy"}}]}
    named = only(convert([predictor(model={**form, **more})]))
    assert named["engine"] == {"envFrom": more["envFrom"]}
    assert named["model"]["name"] == "huggingface-llama3" and named["replicas"] == 1
    assert named["model"]["source"] == {"huggingFace": {"repository": "Qwen/Qwen3-8B"}}
    own = only(convert([predictor(minReplicas=2, containers=[RENDERED_CONTAINER])]))
    assert own["model"]["name"] == "meta-llama/Llama-3.1-8B-Instruct" and own["replicas"] == 2


def test_an_llm_inference_service_of_kserve() -> None:
    found = convert([LLM_INFERENCE_SERVICE])
    assert only(found) == {
        "model": {
            "name": "Qwen/Qwen3-Coder",
            "source": {"huggingFace": {"repository": "Qwen/Qwen3-Coder-30B-A3B-Instruct-FP8"}},
        },
        "adapters": [{"name": "sql", "source": {"s3": {"bucket": "adapters", "prefix": "sql"}}}],
        "engine": {"maxModelLength": 8000},
        "accelerator": {"count": 2},
        "replicas": 2,
    }
    for part in ("--enable-log-outputs", "parallelism.pipeline", "router was left out"):
        assert [note for note in found.notes if part in note], part


@pytest.mark.parametrize(
    ("gpus", "tensor", "noted"),
    [
        ("2", 2, []),
        ("4", 2, ["parallelism.tensor: 2 was left out"]),
        ("0", 2, ["accelerator.count: 0 is written"]),
        ("0", 1, []),
    ],
)
def test_a_tensor_parallelism_that_is_not_the_number_of_gpus_is_noted(gpus: str, tensor: int, noted: list[str]) -> None:
    container = {"name": "main", "resources": {"limits": {"nvidia.com/gpu": gpus}}}
    spec = {"model": {"uri": "hf://a/b"}, "parallelism": {"tensor": tensor}, "template": {"containers": [container]}}
    found = convert([{**LLM_INFERENCE_SERVICE, "spec": spec}])
    assert only(found)["accelerator"]["count"] == int(gpus)
    notes = [note for note in found.notes if "parallelism" in note]
    assert len(notes) == len(noted) and all(each in note for each, note in zip(noted, notes, strict=True))


def test_a_variable_without_a_value_is_empty() -> None:
    of_kubeai = {**MODEL, "spec": {"url": "hf://a/b", "env": {"A": None, "B": True}}}
    assert only(convert([of_kubeai]))["engine"]["env"] == [{"name": "A", "value": ""}, {"name": "B", "value": "true"}]
    container = {**CONTAINER, "env": [{"name": "A", "value": None}]}
    assert only(convert([workload(container)]))["engine"]["env"] == [{"name": "A"}]


def test_arguments_of_kserve_that_are_elsewhere_in_the_cluster_are_noted() -> None:
    more = {"name": "VLLM_ADDITIONAL_ARGS", "valueFrom": {"configMapKeyRef": {"name": "a", "key": "b"}}}
    found = convert([predictor(model={"modelFormat": {"name": "vllm"}, "storageUri": "hf://a/b", "env": [more]})])
    assert "engine" not in only(found)
    assert [note for note in found.notes if "VLLM_ADDITIONAL_ARGS are elsewhere in the cluster" in note]


@pytest.mark.parametrize(
    ("document", "reason"),
    [
        ({**MODEL, "spec": {"url": "ollama://gemma3"}}, "ollama://gemma3 has no counterpart"),
        ({**MODEL, "spec": {"url": 5}}, "5 has no counterpart"),
        ({**MODEL, "metadata": {}}, "does not have the form of its kind"),
        ({**MODEL, "metadata": "x"}, "does not have the form of its kind"),
        ({**MODEL, "metadata": {"name": 7}}, "Model 7: not converted: it does not have the form of its kind"),
        ({**MODEL, "spec": {"url": "hf://a/b", "resourceProfile": "l4:two"}}, "write how often it takes the profile"),
        ({**MODEL, "spec": {"url": "hf://a/b", "resourceProfile": "l4:0"}}, "as l4:1"),
        (workload({"image": "vllm", "args": ["/models/x"]}), "is on no PersistentVolumeClaim"),
        (on_volumes(OUTER, {"name": "empty", "mountPath": "/models/hub"}), "is on no PersistentVolumeClaim"),
        (on_volumes({**OUTER, "subPathExpr": "$(POD)"}), "whose subPathExpr each pod computes"),
        (workload({"image": "vllm", "args": ["--port", "1"]}), "name no model"),
        (workload({"image": "nginx"}), "Deployment or StatefulSet that runs vLLM was found"),
        ({**MODEL, "spec": {"url": "hf://a/b", "features": ["SpeechToText"]}}, "turns speech into text"),
        ({**MODEL, "spec": {"url": "hf://a/b", "resourceProfile": "google-tpu-v5e-1x1:1"}}, "runs on NVIDIA's GPUs"),
        (workload({**RENDERED_CONTAINER, "resources": {"limits": {"amd.com/gpu": 1}}}), "it asks for amd.com/gpu"),
        (predictor(model={"modelFormat": {"name": "sklearn"}}), "its model has the format sklearn"),
        (predictor(model={"modelFormat": {"name": "huggingface"}}), "neither storageUri nor --model_id"),
        (predictor(containers=[{"image": "nginx"}]), "runs no language model"),
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


def test_the_values_of_a_chart_are_told_from_what_the_chart_makes_of_them() -> None:
    found = convert([{"servingEngineSpec": {"modelSpec": [{"name": "llama3"}]}}])
    assert "helm template CHART --values FILE | octavo-operator convert -" in found.problems[-1]
