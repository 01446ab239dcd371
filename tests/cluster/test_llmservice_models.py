"""Sources and storage of models, with real pods: an S3 server, a shared cache, and the messages about them."""

from __future__ import annotations

import fcntl
import hashlib
import io
import json
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml

from octavo_engine.model.source import resolve_model
from octavo_operator.api.names import selector
from octavo_operator.cli import main
from octavo_operator.render.volumes import NODE_FOLDER
from tests.engine.helpers import fake_hub
from tests.engine.helpers.adapters import write_adapter
from tests.engine.helpers.checkpoints import save_smollm2
from tests.operator.bad_llmservices import GONE, VALID, merged

from .build import VERSITYGW, ensure_built
from .client import RESTRICTED_CONTAINER, RESTRICTED_POD, Client
from .images import USER
from .octavo import ONLY_ON_OURS, SAMPLES, condition, installed_operator, sdk, wait_for_condition
from .reapplied import reapplied

pytestmark = ONLY_ON_OURS  # the S3 server's program and files are this machine's

LOADED = 300
BUCKET, PREFIX = "models", "smollm2"
REPOSITORY = "octavo/smollm2"
URL = f"s3://{BUCKET}/{PREFIX}"
KEYS = {"AWS_ACCESS_KEY_ID": "octavo-test", "AWS_SECRET_ACCESS_KEY": "octavo-secret"}
S3 = {
    "bucket": BUCKET,
    "prefix": f"{PREFIX}/",
    "endpointURL": "http://s3:7070",
    "credentialsSecretRef": {"name": "bucket"},
}
LLAMA_70B = {
    "architectures": ["LlamaForCausalLM"], "hidden_size": 8192, "intermediate_size": 28672, "num_hidden_layers": 80,
    "num_attention_heads": 64, "num_key_value_heads": 8, "vocab_size": 128256, "max_position_embeddings": 131072,
    "rms_norm_eps": 1e-05, "rope_theta": 500000.0, "torch_dtype": "bfloat16",
}  # fmt: skip


@pytest.fixture(scope="module")
def node_cache() -> Iterator[Path]:
    """A folder of the node that the operator allows for caches."""
    with node_folder() as made:
        yield made


@pytest.fixture(scope="module")
def operator(cluster: Client, node_cache: Path) -> Iterator[Client]:
    """The operator, cluster-wide."""
    folders = f"{node_cache},/var/lib/octavo"  # the second is a sample's
    with installed_operator(cluster, "--set", f"engine.hostPaths={{{folders}}}") as system:
        yield system


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder of the node for this test alone."""
    with node_folder() as made:
        yield made


@contextmanager
def node_folder() -> Iterator[Path]:
    """A folder of the node, which is this machine's too."""
    with tempfile.TemporaryDirectory(prefix="octavo-models-") as made:
        Path(made).chmod(0o755)
        yield Path(made)


@pytest.fixture
def s3(namespace: Client, folder: Path) -> Path:
    """A real S3 server as a pod; what lies in the returned folder is in its bucket, among it the model."""
    ensure_built(print, (VERSITYGW,))
    bucket = folder / "s3" / BUCKET
    (bucket / PREFIX).mkdir(parents=True)
    for made in (folder / "s3", bucket, bucket / PREFIX):
        made.chmod(0o777)
    model = resolve_model("smollm2", None, lambda *_: None).gguf
    assert model is not None
    shutil.copyfile(model, bucket / PREFIX / "model.gguf")
    namespace.kubectl("create", "secret", "generic", "bucket", *(f"--from-literal={k}={v}" for k, v in KEYS.items()))
    container = {
        "name": "s3",
        "image": "octavo-engine:dev",
        "command": ["/program/versitygw", "0.0.0.0:7070", "/s3"],
        "env": [{"name": "ROOT_ACCESS_KEY", "value": KEYS["AWS_ACCESS_KEY_ID"]},
                {"name": "ROOT_SECRET_KEY", "value": KEYS["AWS_SECRET_ACCESS_KEY"]}],
        "ports": [{"containerPort": 7070}],
        "readinessProbe": {"tcpSocket": {"port": 7070}, "periodSeconds": 1},
        "securityContext": RESTRICTED_CONTAINER,
        "volumeMounts": [{"name": "program", "mountPath": "/program"}, {"name": "s3", "mountPath": "/s3"}],
    }  # fmt: skip
    volumes = [
        {"name": "program", "hostPath": {"path": str(VERSITYGW.folder)}},
        {"name": "s3", "hostPath": {"path": str(folder / "s3")}},
    ]
    spec = {"securityContext": RESTRICTED_POD, "containers": [container], "volumes": volumes}
    namespace.apply(
        {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "s3", "labels": {"app": "s3"}}, "spec": spec},
        {"apiVersion": "v1", "kind": "Service", "metadata": {"name": "s3"},
         "spec": {"selector": {"app": "s3"}, "ports": [{"port": 7070}]}},
    )  # fmt: skip
    namespace.kubectl("wait", "--for=condition=Ready", "pod/s3", "--timeout=180s")
    return bucket


def service(**fields: Any) -> dict[str, Any]:
    """Return an LLMService whose model is in the bucket."""
    small = {"engine": {"maxConcurrentRequests": 8, "maxModelLength": 1024}, "cache": {"sharedMemorySize": "128Mi"}}
    from_s3 = {"model": {"source": {"demo": GONE, "s3": S3}}}
    return merged(merged(VALID, {"spec": {**small, **from_s3}}), {"spec": fields})


@contextmanager
def fetched_by_another(cache: Path) -> Iterator[None]:
    """Another program fetches the model into the cache meanwhile."""
    locks = cache / "octavo" / "locks"
    locks.mkdir(parents=True)
    cache.chmod(0o755)
    file = locks / hashlib.sha256(URL.encode()).hexdigest()[:32]
    with file.open("w") as lock:
        for path in (cache / "octavo", locks, file):
            os.chown(path, USER, USER)
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def loading(client: Client) -> dict[str, Any]:
    return dict(client.get("llms", "good").get("status", {}).get("loading", {}))


@pytest.mark.timeout(900)
def test_a_download_tells_its_progress_and_a_later_pod_starts_from_the_nodes_cache(
    operator: Client, namespace: Client, s3: Path, node_cache: Path
) -> None:
    cache = node_cache / NODE_FOLDER / namespace.namespace
    with fetched_by_another(cache):
        namespace.apply(service(cache={"type": "HostPath", "hostPath": str(node_cache)}))
        # What the pod says of itself comes through to status.
        namespace.wait_until(
            lambda: "another program fetches" in loading(namespace).get("message", ""),
            120,
            lambda: f"its message comes: {namespace.kubectl('describe', 'llms', 'good')}",
        )
        assert loading(namespace)["phase"] == "Downloading"
        assert condition(namespace.get("llms", "good"), "Degraded")["status"] == "False"
        # And goes when it is over: nothing stale is left.
    found = wait_for_condition(namespace, "good", "Ready", "Serving", LOADED)
    assert "another program" not in json.dumps(found["status"])
    assert condition(found, "ModelLoaded")["status"] == "True"
    (kept,) = (path for path in cache.rglob("model.gguf") if path.parent.name != "headers")
    assert kept.stat().st_size == (s3 / PREFIX / "model.gguf").stat().st_size
    (pod,) = ready_pods(namespace)

    namespace.kubectl("delete", "service", "s3")  # the store is gone
    before = kept.stat().st_mtime_ns
    namespace.kubectl("delete", "pod", pod["metadata"]["name"])
    namespace.wait_until(
        lambda: [each["metadata"]["name"] for each in ready_pods(namespace)] not in ([], [pod["metadata"]["name"]]),
        LOADED,
        lambda: f"a new pod is ready:\n{namespace.kubectl('describe', 'llms', 'good')}",
    )
    assert kept.stat().st_mtime_ns == before


@pytest.mark.timeout(600)
def test_a_model_from_s3_with_a_template_of_its_own(operator: Client, namespace: Client, s3: Path) -> None:
    sidecar = {"name": "beside", "image": "octavo-engine:dev", "command": ["sleep", "3600"]}
    engine = {"name": "engine", "env": [{"name": "OMP_WAIT_POLICY", "value": "PASSIVE"}]}
    template = {
        "metadata": {"annotations": {"example.com/note": "mine"}},
        "spec": {"containers": [sidecar, engine], "terminationGracePeriodSeconds": 30},
    }
    namespace.apply(service(podTemplate=template, networkPolicy={"from": [{"podSelector": {}}]}))
    wait_for_condition(namespace, "good", "Ready", "Serving", LOADED)
    assert "Paris" in answer(namespace)
    (pod,) = namespace.list("pods", selector="octavo.dev/llmservice=good")
    assert pod["metadata"]["annotations"]["example.com/note"] == "mine"
    assert [container["name"] for container in pod["spec"]["containers"]] == ["engine", "beside"]
    assert pod["spec"]["terminationGracePeriodSeconds"] == 30
    names = {variable["name"] for variable in pod["spec"]["containers"][0]["env"]}
    assert "OMP_WAIT_POLICY" in names and not names & set(KEYS), "only the fetching container has the credentials"
    assert namespace.get("networkpolicy", "good")["spec"]["podSelector"] == {"matchLabels": selector("good")}


@contextmanager
def volumes(namespace: Client, **folders: Path) -> Iterator[None]:
    """PersistentVolumes in folders of the node, each of a storage class that is called like it and the namespace."""
    made = {name: f"{namespace.namespace}-{name}" for name in folders}
    for name, folder in folders.items():
        spec = {"capacity": {"storage": "1Gi"}, "accessModes": ["ReadWriteMany"], "hostPath": {"path": str(folder)},
                "storageClassName": made[name]}  # fmt: skip
        volume = {"apiVersion": "v1", "kind": "PersistentVolume", "metadata": {"name": made[name]}, "spec": spec}
        namespace.apply(volume)
    try:
        yield
    finally:
        namespace.kubectl("delete", "persistentvolume", *made.values(), "--wait=false")


def claim_of(name: str, storage_class: str) -> dict[str, Any]:
    """Return a claim for a volume of this class."""
    spec = {"accessModes": ["ReadWriteMany"], "resources": {"requests": {"storage": "1Gi"}},
            "storageClassName": storage_class}  # fmt: skip
    return {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": name}, "spec": spec}


TRY_TO_WRITE = """
for path in ("/cache/written", "/models/written"):
    try:
        open(path, "w").close()
        print("written")
    except OSError as error:
        print(error.strerror)
"""


@pytest.mark.timeout(600)
def test_weights_on_a_claim_are_served_and_never_written_to(operator: Client, namespace: Client, folder: Path) -> None:
    model = resolve_model("smollm2", None, lambda *_: None).gguf
    assert model is not None
    for name in ("weights", "cache"):
        (folder / name).mkdir()
        (folder / name).chmod(0o777)
    shutil.copyfile(model, folder / "weights" / "model.gguf")
    claim = claim_of("weights", f"{namespace.namespace}-weights")
    kept = {"type": "PersistentVolumeClaim", "size": "1Gi", "storageClassName": f"{namespace.namespace}-cache"}
    with volumes(namespace, weights=folder / "weights", cache=folder / "cache"):
        namespace.apply(claim)
        source = {"s3": GONE, "persistentVolumeClaim": {"claimName": "weights", "path": "model.gguf"}}
        namespace.apply(service(model={"source": source}, cache=kept))
        wait_for_condition(namespace, "good", "Ready", "Serving", LOADED)
        assert "Paris" in answer(namespace)
        (pod,) = ready_pods(namespace)
        assert "initContainers" not in pod["spec"], "nothing has to be fetched"
        tried = namespace.kubectl("exec", pod["metadata"]["name"], "-c", "engine", "--", "python", "-c", TRY_TO_WRITE)
        assert tried.splitlines() == ["written", "Read-only file system"]
        assert (folder / "cache" / "written").exists()


@pytest.fixture
def mirror(namespace: Client, folder: Path) -> str:
    """The address of a mirror of the hub, a pod; the fake hub stands in for the mirror, SmolLM2 in it is real."""
    model = resolve_model("smollm2", None, lambda *_: None).gguf
    assert model is not None
    return start_mirror(namespace, save_smollm2(model, folder / "repository"))


def start_mirror(namespace: Client, repository: Path) -> str:
    """Start a pod that serves the files of `repository` as the hub does; return its address."""
    for path in (repository, *repository.iterdir()):
        path.chmod(0o755)
    container = {
        "name": "hub",
        "image": "octavo-engine:dev",
        "command": ["python", fake_hub.__file__, REPOSITORY, "/repository", "8080"],
        "readinessProbe": {"tcpSocket": {"port": 8080}, "periodSeconds": 1},
        "securityContext": RESTRICTED_CONTAINER,
        "volumeMounts": [{"name": "repository", "mountPath": "/repository", "readOnly": True}],
    }
    volumes = [{"name": "repository", "hostPath": {"path": str(repository)}}]
    spec = {"securityContext": RESTRICTED_POD, "containers": [container], "volumes": volumes}
    namespace.apply(
        {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "hub", "labels": {"app": "hub"}}, "spec": spec},
        {"apiVersion": "v1", "kind": "Service", "metadata": {"name": "hub"},
         "spec": {"selector": {"app": "hub"}, "ports": [{"port": 8080}]}},
    )  # fmt: skip
    namespace.kubectl("wait", "--for=condition=Ready", "pod/hub", "--timeout=180s")
    return "http://hub:8080"


@pytest.mark.timeout(600)
def test_without_the_internet_a_mirror_of_the_hub_is_enough(operator: Client, namespace: Client, mirror: str) -> None:
    # That this cluster knows no name outside of it is what test_node.py shows.
    hub = {"repository": REPOSITORY, "revision": fake_hub.FIRST_COMMIT, "endpoint": mirror}
    namespace.apply(service(model={"source": {"s3": GONE, "huggingFace": hub}}))
    found = wait_for_condition(namespace, "good", "Ready", "Serving", LOADED)
    assert condition(found, "ModelLoaded")["status"] == "True"
    assert "Paris" in answer(namespace)


def save_adapter(folder: Path, rank: int, seed: int, hidden: int = 576) -> Path:
    """Return a random LoRA adapter of SmolLM2, as PEFT saves it, which every user of the node may read.

    With another `hidden` size than SmolLM2's it is one of another model.
    """
    generator = torch.Generator().manual_seed(seed)
    tensors = {
        f"base_model.model.model.layers.{layer}.self_attn.o_proj.lora_{side}.weight": 0.1
        * torch.randn(shape, generator=generator)
        for layer in range(30)
        for side, shape in (("A", (rank, hidden)), ("B", (hidden, rank)))
    }
    write_adapter(folder, tensors, {"peft_type": "LORA", "r": rank, "lora_alpha": 2 * rank})
    for path in (folder, *folder.iterdir()):
        path.chmod(0o755)
    return folder


def wait_for_adapters(client: Client, pods: set[str], **wanted: str) -> dict[str, Any]:
    """Return the LLMService once each of `pods` has a row in which each of `wanted` has its state."""

    def reached() -> dict[str, Any] | None:
        found = client.get("llms", "good")
        rows = {
            row["name"]: {each["pod"]: each["state"] for each in row["replicas"]} for row in found["status"]["adapters"]
        }
        return found if rows == {name: dict.fromkeys(pods, state) for name, state in wanted.items()} else None

    return client.wait_until(reached, LOADED, lambda: f"{wanted}:\n{client.kubectl('describe', 'llms', 'good')}")


def completions(client: Client, pods: set[str], model: str) -> set[str]:
    """Return the answer of each pod for `model`, or the code of its error."""
    found = set()
    for pod in pods:
        url = client.path("pod", f"{pod}:8000") + "/proxy/v1/completions"
        body = {"model": model, "prompt": "The capital of France is", "max_tokens": 12, "temperature": 0}
        answered = client.http.post(url, json=body, timeout=LOADED).json()
        found.add(answered["error"]["code"] if "error" in answered else answered["choices"][0]["text"])
    return found


@pytest.mark.timeout(900)
def test_adapters_come_from_everywhere_and_one_that_is_broken_degrades_itself_alone(
    operator: Client, namespace: Client, s3: Path, folder: Path
) -> None:
    save_adapter(s3 / "sql", 4, seed=1).parent.chmod(0o777)
    save_adapter(folder / "claim" / "fr", 8, seed=2).parent.chmod(0o755)
    save_adapter(folder / "claim" / "foreign", 8, seed=4, hidden=512)
    endpoint = start_mirror(namespace, save_adapter(folder / "wide", 64, seed=3))
    claim = claim_of("tunes", f"{namespace.namespace}-tunes")
    in_bucket = {"s3": {**S3, "prefix": "sql"}}
    on_claim, foreign = ({"persistentVolumeClaim": {"claimName": "tunes", "path": path}} for path in ("fr", "foreign"))
    lost = {"persistentVolumeClaim": {"claimName": "lost"}}
    in_hub = {"huggingFace": {"repository": REPOSITORY, "endpoint": endpoint}}

    def listed(**sources: Any) -> dict[str, Any]:
        adapters = [{"name": name, "source": source} for name, source in sources.items()]
        engine = {"dtype": "float32", "env": [{"name": "OMP_NUM_THREADS", "value": "1"}]}
        return service(adapters=adapters, replicas=2, engine=engine, model={"source": {"s3": GONE, "demo": "smollm2"}})

    with volumes(namespace, tunes=folder / "claim"):
        namespace.apply(claim, listed(sql=in_bucket, fr=on_claim, foreign=foreign, wide=in_hub, lost=lost))
        wait_for_condition(namespace, "good", "Ready", "Serving", LOADED)
        namespace.wait_until(lambda: len(ready_pods(namespace)) == 2, LOADED, "both replicas are ready")
        pods = {pod["metadata"]["name"] for pod in ready_pods(namespace)}
        broken = {"foreign": "Failed", "wide": "Failed", "lost": "Failed"}
        found = wait_for_adapters(namespace, pods, sql="Loaded", fr="Loaded", **broken)
        loaded = {row["name"]: row["loadedReplicas"] for row in found["status"]["adapters"]}
        assert loaded == {"sql": 2, "fr": 2, "foreign": 0, "wide": 0, "lost": 0}
        for kind, status in (("AdaptersReady", "False"), ("Degraded", "True"), ("Ready", "True")):
            assert condition(found, kind)["status"] == status
        assert condition(found, "AdaptersReady")["reason"] == condition(found, "Degraded")["reason"] == "AdapterFailed"
        described = namespace.kubectl("describe", "llms", "good")
        reasons = condition(found, "AdaptersReady")["message"]
        assert "rank 64" in reasons and "--max-lora-rank" in described
        assert "there is no PersistentVolumeClaim lost" in reasons
        assert "is [8, 512], expected [8, 576]" in reasons
        first = {name: completions(namespace, pods, name) for name in ("good", "sql", "fr", "wide")}
        assert first["wide"] == {"model_not_found"}
        assert all(len(answers) == 1 for answers in first.values()), first
        assert len(set[str]().union(*first.values())) == 4, first
        for pod in ready_pods(namespace):
            engine, sidecar = pod["spec"]["containers"][0], pod["spec"]["initContainers"][0]
            assert {mount["name"] for mount in sidecar["volumeMounts"]} > {"adapter-credentials"}
            assert not {mount["name"] for mount in engine["volumeMounts"]} & {"adapter-credentials", "adapter-list"}

        restarted = min(pods)
        namespace.kubectl("exec", restarted, "-c", "engine", "--", "python", "-c", "import os; os.kill(1, 15)")
        namespace.wait_until(
            lambda: namespace.get("pod", restarted)["status"]["containerStatuses"][0]["restartCount"] == 1,
            LOADED, "the engine starts again",
        )  # fmt: skip
        namespace.wait_until(lambda: len(ready_pods(namespace)) == 2, LOADED, "both replicas are ready again")
        wait_for_adapters(namespace, pods, sql="Loaded", fr="Loaded", **broken)
        namespace.wait_until(
            lambda: {name: completions(namespace, pods, name) for name in first} == first, 60, "answers are as before"
        )

        namespace.apply(listed(sql=on_claim, fr=on_claim, wide=in_bucket))
        found = wait_for_adapters(namespace, pods, sql="Loaded", fr="Loaded", wide="Loaded")
        changed = {name: completions(namespace, pods, name) for name in first}
        assert changed == {"good": first["good"], "sql": first["fr"], "fr": first["fr"], "wide": first["sql"]}
        wait_for_condition(namespace, "good", "AdaptersReady", "AdaptersLoaded")
        wait_for_condition(namespace, "good", "Degraded", "AsExpected")

        namespace.apply(listed(sql=on_claim, wide=in_bucket))
        wait_for_adapters(namespace, pods, sql="Loaded", wide="Loaded")
        gone = [{"model_not_found"}, first["fr"], first["good"]]
        namespace.wait_until(
            lambda: [completions(namespace, pods, name) for name in ("fr", "sql", "good")] == gone, 60, "fr is unloaded"
        )
        assert {pod["metadata"]["name"] for pod in ready_pods(namespace)} == pods, "no change needed a new pod"


def answer(client: Client) -> str:
    """Return the SDK's answer, from outside the cluster."""
    question: Any = [{"role": "user", "content": "Name the capital of France."}]
    found = sdk(client, "good").chat.completions.create(model="good", messages=question, max_tokens=16, temperature=0)
    return found.choices[0].message.content or ""


def ready_pods(client: Client) -> list[dict[str, Any]]:
    pods = client.list("pods", selector="octavo.dev/llmservice=good")
    return [
        pod
        for pod in pods
        if any(c["type"] == "Ready" and c["status"] == "True" for c in pod["status"].get("conditions", []))
    ]


@pytest.mark.timeout(600)
def test_what_a_bucket_refuses_or_memory_cannot_hold_is_reported_before_anything_large_is_fetched(
    operator: Client, namespace: Client, s3: Path
) -> None:
    namespace.kubectl("create", "secret", "generic", "wrong", *(f"--from-literal={key}=wrong" for key in KEYS))
    huge = s3 / "huge"
    huge.mkdir()
    (huge / "config.json").write_text(json.dumps(LLAMA_70B))
    (huge / "model.safetensors").write_bytes(b"never fetched")
    large = {"model": {"source": {"demo": GONE, "s3": {**S3, "prefix": "huge"}}}}
    cases = {
        "missing": ({"model": {"source": {"demo": GONE, "s3": {**S3, "credentialsSecretRef": {"name": "none"}}}}},
                    "SecretMissing", 'secret "none" not found'),
        "refused": ({"model": {"source": {"demo": GONE, "s3": {**S3, "credentialsSecretRef": {"name": "wrong"}}}}},
                    "ModelNotFound", "refuses"),
        "large": (large, "OutOfMemory", "does not fit into"),
    }  # fmt: skip
    for name, (fields, _, _) in cases.items():
        namespace.apply(merged(VALID, {"metadata": {"name": name}, "spec": fields}))
    for name, (_, reason, words) in cases.items():
        found = wait_for_condition(namespace, name, "Ready", reason, 180)
        assert words in condition(found, "Degraded")["message"], name


def test_render_says_offline_exactly_what_the_cluster_gets(operator: Client, namespace: Client, folder: Path) -> None:
    samples = [yaml.safe_load(path.read_text()) for path in sorted(SAMPLES.glob("*.yaml"))]
    made = [sample for sample in samples if can_be_made(sample["spec"])]
    assert len(made) > 10
    # Without its claim an adapter of a sample is left out of the pods.
    namespace.apply(claim_of("fine-tunes", "any"), *made)
    # An object with its uid, as Git has it not: the owner references are made from it.
    for sample in made:
        name = sample["metadata"]["name"]
        namespace.wait_until(lambda name=name: namespace.exists("deployment", name), 60, f"{name} has its Deployment")  # type: ignore[misc]
        live = namespace.get("llms", name)
        file = folder / f"{name}.yaml"
        file.write_text(yaml.safe_dump({key: live[key] for key in ("apiVersion", "kind", "metadata", "spec")}))
        for manifest in rendered(file, operator.namespace):
            same_as_live(namespace, manifest)


def can_be_made(spec: dict[str, Any]) -> bool:
    """Return False if the spec scales by KEDA: a ScaledObject needs KEDA's CRD, which this cluster has not."""
    return bool(spec.get("autoscaling", {}).get("metricsSource") != "KEDA")


def rendered(file: Path, operator_namespace: str) -> list[dict[str, Any]]:
    """Return the output of `octavo-operator render`, run here, as each of its processes would import for seconds."""
    images = ("--engine-image=octavo-engine:dev", f"--operator-namespace={operator_namespace}")
    with redirect_stdout(io.StringIO()) as said:
        assert main(["render", str(file), *images]) == 0
    return list(yaml.safe_load_all(said.getvalue()))


def same_as_live(client: Client, manifest: dict[str, Any]) -> None:
    """Applying it as the operator would change nothing at all: no field more, none less, none other."""

    def describe() -> str:
        name = manifest["metadata"]["name"]
        return "\n".join([f"{manifest['kind']} {name} is what `render` says:", *reapplied(client, manifest)])

    client.wait_until(lambda: not reapplied(client, manifest), 30, describe, every=1)
