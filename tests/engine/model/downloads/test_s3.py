"""s3://bucket/prefix as a model, against a real S3 server: fetched, resumed and verified files, and error messages."""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from threading import Event, current_thread

import pytest
from s3_server import BUCKET, S3Server, s3_server

from octavo_engine.errors import ModelLoadError
from octavo_engine.model.configuration.pooling import PoolingConfig, read_pooling
from octavo_engine.model.configuration.read_spec import read_spec
from octavo_engine.model.downloads import download, gguf_header, incomplete_files, s3, s3_files
from octavo_engine.model.downloads.download import DownloadProgress
from octavo_engine.model.footprint import checkpoint_bytes
from octavo_engine.model.source import pull_model, resolve_model
from octavo_engine.text.tokenizer import load_tokenizer

URL = f"s3://{BUCKET}/tiny"
CONFIG, WEIGHTS = b'{"a": 1}', bytes(range(256)) * 300_000
"""77 MB: three parts."""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    with s3_server(tmp_path_factory.mktemp("s3")) as running:
        yield running


@pytest.fixture
def bucket(server: S3Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[S3Server]:
    """The server with one model, an empty cache, and the environment that leads to it."""
    for key, content in (
        ("config.json", CONFIG),
        ("model.safetensors", WEIGHTS),
        ("tokenizer.json", b"{}"),
        ("modeling_evil.py", b"raise SystemExit"),
        ("pytorch_model.bin", b"pickle"),
        ("onnx/model.safetensors", b"another format"),
    ):
        server.put(f"tiny/{key}", content)
    for name, value in {**server.environment, "XDG_CACHE_HOME": str(tmp_path)}.items():
        monkeypatch.setenv(name, value)
    yield server
    subprocess.run(["rm", "-rf", *map(str, server.folder.iterdir())], check=True)


def fetch(url: str = URL, weights: bool = True) -> tuple[Path, list[DownloadProgress]]:
    """The place of the model, and what was reported meanwhile."""
    news: list[DownloadProgress] = []
    files = pull_model(url, None, news.append, weights=weights)
    return files.directory or files.gguf or Path(), news


def refused(url: str = URL) -> str:
    with pytest.raises(ModelLoadError) as error:
        fetch(url)
    assert "\n" not in str(error.value)
    return str(error.value)


def content(folder: Path) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in folder.iterdir()}


def fetched_bytes(news: list[DownloadProgress]) -> int:
    return max(each.done for each in news)


def test_what_a_model_needs_is_fetched_once_and_nothing_else(bucket: S3Server) -> None:
    folder, news = fetch()
    assert content(folder) == {"config.json": CONFIG, "model.safetensors": WEIGHTS, "tokenizer.json": b"{}"}
    ratios = [each.ratio for each in news]
    assert ratios[0] == 0 and ratios[-1] == 1 and ratios == sorted(ratios)
    assert fetched_bytes(news) == news[1].total == len(CONFIG) + len(WEIGHTS) + 2
    again, nothing = fetch()
    assert again == folder
    assert fetched_bytes(nothing) == 0 and nothing[-1].complete


def test_the_small_files_come_alone_if_asked_and_the_rest_later(bucket: S3Server) -> None:
    folder, _ = fetch(weights=False)
    assert set(content(folder)) == {"config.json", "tokenizer.json"}
    whole, news = fetch()
    assert whole == folder
    assert fetched_bytes(news) == len(WEIGHTS)


def test_how_embeddings_are_pooled_is_fetched_too(bucket: S3Server) -> None:
    """sentence-transformers keep it in 1_Pooling/, without which a model with a modules.json cannot start."""
    modules = [{"type": f"sentence_transformers.models.{kind}", "path": path} for kind, path in
               (("Transformer", ""), ("Pooling", "1_Pooling"))]  # fmt: skip
    bucket.put("tiny/modules.json", json.dumps(modules).encode())
    bucket.put("tiny/1_Pooling/config.json", b'{"pooling_mode_mean_tokens": true}')
    bucket.put("tiny/1_Pooling/model.safetensors", b"no weights of ours")
    bucket.put("tiny/2_Dense/model.safetensors", b"weights")
    bucket.put("tiny/onnx/config.json", b"{}")
    files = pull_model(URL, None, lambda *_: None, weights=False)
    assert read_pooling(files) == PoolingConfig("mean", normalize=False)
    folder, _ = fetch()
    assert folder == files.directory
    found = {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}
    names = {"config.json", "modules.json", "tokenizer.json", "model.safetensors", "1_Pooling/config.json"}
    assert found == {*names, "2_Dense/model.safetensors"}


def test_the_progress_of_the_engine_counts_it_too(bucket: S3Server) -> None:
    phases = []
    resolve_model(URL, None, lambda *news: phases.append(news))
    assert {phase for phase, _, _ in phases} == {"pulling"}
    assert phases[-1] == ("pulling", 1.0, URL)


def test_a_gguf_file_by_its_prefix_or_its_own_name(bucket: S3Server) -> None:
    bucket.put("gguf/a.gguf", b"GGUF a")
    assert fetch(f"s3://{BUCKET}/gguf")[0].read_bytes() == b"GGUF a"
    bucket.put("gguf/b.gguf", b"GGUF b")
    assert f"2 .gguf files; name the one to load, such as s3://{BUCKET}/gguf/a.gguf" in refused(f"s3://{BUCKET}/gguf")
    assert fetch(f"s3://{BUCKET}/gguf/b.gguf")[0].read_bytes() == b"GGUF b"


def test_all_parts_of_a_gguf_model_by_the_prefix_or_by_one_of_them(bucket: S3Server) -> None:
    for number in (1, 2):
        bucket.put(f"parts/m-0000{number}-of-00002.gguf", b"GGUF %d" % number)
    for url in (f"s3://{BUCKET}/parts", f"s3://{BUCKET}/parts/m-00002-of-00002.gguf"):
        first = fetch(url)[0]
        assert first.name == "m-00001-of-00002.gguf"
        assert first.with_name("m-00002-of-00002.gguf").read_bytes() == b"GGUF 2"
    bucket.put("lone/m-00001-of-00002.gguf", b"GGUF 1")
    assert "there is no such bucket or prefix" in refused(f"s3://{BUCKET}/lone/m-00001-of-00002.gguf")


def test_the_header_of_a_gguf_file_is_enough_to_judge_it(bucket: S3Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gguf_header, "_FIRST", 1 << 12)
    monkeypatch.setattr(s3_files, "_PART_BYTES", 1 << 20)
    demo = pull_model("smollm2", None, lambda _: None)
    assert demo.gguf is not None
    bucket.put("gguf/m.gguf", demo.gguf.read_bytes())
    url, found = f"s3://{BUCKET}/gguf", []
    asked = requests_of(lambda: found.append(pull_model(url, None, lambda _: None, weights=False)))
    assert sum(last - first for first, last in asked) < 5_000_000 < demo.gguf.stat().st_size
    small = found[0]
    assert small.gguf is not None and small.gguf.stat().st_blocks * 512 < 5_000_000
    assert read_spec(small) == read_spec(demo)
    assert checkpoint_bytes(small) == checkpoint_bytes(demo)
    assert load_tokenizer(small).encode("The capital") == load_tokenizer(demo).encode("The capital")
    old = small.gguf.parents[1] / "header"
    old.mkdir(exist_ok=True)
    (old / "header.gguf").write_bytes(b"GGUF")  # which an earlier version of the program has left
    assert requests_of(lambda: pull_model(url, None, lambda _: None, weights=False)) == []
    whole = fetch(url)[0]
    assert whole.read_bytes() == demo.gguf.read_bytes()
    assert fetch(url, weights=False)[0] == whole


def test_what_is_no_gguf_file_is_reported_before_it_is_fetched(
    bucket: S3Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gguf_header, "_FIRST", 1 << 12)
    bucket.put("gguf/m.gguf", WEIGHTS)
    with pytest.raises(ModelLoadError, match="does not begin with the letters GGUF"):
        fetch(f"s3://{BUCKET}/gguf", weights=False)


def test_objects_that_change_are_another_model(bucket: S3Server) -> None:
    before, _ = fetch()
    bucket.put("tiny/model.safetensors", WEIGHTS[::-1])
    after, _ = fetch()
    assert before != after
    assert content(before)["model.safetensors"] == WEIGHTS
    assert content(after)["model.safetensors"] == WEIGHTS[::-1]


def test_a_begun_file_is_gone_on_with(bucket: S3Server) -> None:
    folder, _ = fetch(weights=False)
    (folder / "model.safetensors.other-7.incomplete").write_bytes(WEIGHTS[:50_000_000])
    parts = requests_of(fetch)
    assert [part[0] for part in parts] == [50_000_000], "only what lacked was asked for"
    assert content(folder)["model.safetensors"] == WEIGHTS


def requests_of(work) -> list[tuple[int, int]]:
    """The ranges that are asked for while `work` runs."""
    asked: list[tuple[int, int]] = []
    connect = s3._connect

    class Listening:
        def __init__(self, store) -> None:
            self.store = store

        def __getattr__(self, name):
            return getattr(self.store, name)

        def get(self, key, options):
            asked.append(options["range"])
            return self.store.get(key, options=options)

    s3._connect = lambda bucket: Listening(connect(bucket))
    try:
        work()
    finally:
        s3._connect = connect
    return asked


class HeldUp:
    """A store that gives the first part of a file of the thread `one`, and the others when it may."""

    def __init__(self, store, gave_first: Event, may_go_on: Event) -> None:
        self.store, self.gave_first, self.may_go_on = store, gave_first, may_go_on

    def __getattr__(self, name):
        return getattr(self.store, name)

    def get(self, key, options):
        if current_thread().name.startswith("one") and options["range"][0]:
            self.gave_first.set()
            assert self.may_go_on.wait(200)
        return self.store.get(key, options=options)


@pytest.mark.parametrize("first", ["one", "two"])
def test_without_a_lock_that_works_two_at_once_are_two_downloads_and_no_more(
    bucket: S3Server, monkeypatch: pytest.MonkeyPatch, first: str
) -> None:
    """On NFS mounted `nolock` each process believes that it holds the lock. Two threads stand in for two pods."""
    folder, _ = fetch(weights=False)
    gave_first, may_go_on, two_goes_on = Event(), Event(), Event()
    connect, fill = s3._connect, s3_files.ObjectFiles._fill

    def filled(files, entry, making):
        if current_thread().name.startswith("two") and first == "one":
            may_go_on.set()  # `two` has taken over what `one` has begun; now `one` is to be first
            assert two_goes_on.wait(200)
        return fill(files, entry, making)

    class Pool(ThreadPoolExecutor):
        def __init__(self, workers, thread_name_prefix) -> None:
            super().__init__(workers, thread_name_prefix=current_thread().name)

    monkeypatch.setattr(s3, "_connect", lambda name: HeldUp(connect(name), gave_first, may_go_on))
    monkeypatch.setattr(s3, "ThreadPoolExecutor", Pool)
    monkeypatch.setattr(s3_files.ObjectFiles, "_fill", filled)
    monkeypatch.setattr(socket, "gethostname", lambda: current_thread().name.partition("_")[0])
    monkeypatch.setattr(download, "_locked", lambda _: True)
    with ThreadPoolExecutor(1, "one") as one, ThreadPoolExecutor(1, "two") as two:
        for_one = one.submit(fetch)
        assert gave_first.wait(200)
        for_two = two.submit(fetch)
        for done, other in ((for_one, two_goes_on), (for_two, may_go_on))[:: 1 if first == "one" else -1]:
            assert done.result(200)[0] == folder
            other.set()
    assert content(folder) == {"config.json": CONFIG, "model.safetensors": WEIGHTS, "tokenizer.json": b"{}"}


def test_what_another_program_adds_to_a_file_is_not_taken_for_the_model(
    bucket: S3Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, _ = fetch(weights=False)
    rest = s3_files.ObjectFiles.rest

    def and_another_appends(files, entry, start):
        yield from rest(files, entry, start)
        (making,) = folder.glob("*.incomplete")
        with making.open("ab") as file:
            file.write(b"more")

    monkeypatch.setattr(s3_files.ObjectFiles, "rest", and_another_appends)
    assert f"became {len(WEIGHTS) + 4} bytes in the cache instead of {len(WEIGHTS)}" in refused()
    monkeypatch.setattr(s3_files.ObjectFiles, "rest", rest)
    assert content(fetch()[0])["model.safetensors"] == WEIGHTS


def test_what_is_verified_is_what_lies_on_the_disk(bucket: S3Server, monkeypatch: pytest.MonkeyPatch) -> None:
    small = b"x" * 3_000_000  # one part: its ETag is a digest
    bucket.put("tiny/model.safetensors", small)
    rest, spoilt = s3_files.ObjectFiles.rest, []

    def and_another_overwrites(files, entry, start):
        yield from rest(files, entry, start)
        if entry.size == len(small) and not spoilt:
            (making,) = incomplete_files.begun(files.folder / entry.name)
            spoilt.append(making.open("r+b").write(b"y"))

    monkeypatch.setattr(s3_files.ObjectFiles, "rest", and_another_overwrites)
    assert content(fetch()[0])["model.safetensors"] == small
    assert spoilt == [1]


def test_the_beginnings_of_one_file_are_not_those_of_another(tmp_path: Path) -> None:
    for name in ("model.safetensors.a-1", "model.safetensors.b-2", "model.safetensors.index.json.a-1", "model.a-1"):
        (tmp_path / f"{name}.incomplete").write_bytes(b"x" * (3 if "b-2" in name else 2))
    begun = incomplete_files.begun(tmp_path / "model.safetensors")
    assert [path.name for path in begun] == ["model.safetensors.b-2.incomplete", "model.safetensors.a-1.incomplete"]
    assert incomplete_files.take(tmp_path / "model.safetensors", 2).stat().st_size == 2, (
        "more than it can be is none of it"
    )
    incomplete_files.clear(tmp_path / "model.safetensors")
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "model.a-1.incomplete",
        "model.safetensors.index.json.a-1.incomplete",
    ]


def test_a_prefix_of_any_length_has_a_folder(bucket: S3Server) -> None:
    prefix = "/".join(["a-folder-with-a-long-name"] * 15)
    bucket.put(f"{prefix}/m.gguf", b"GGUF")
    assert fetch(f"s3://{BUCKET}/{prefix}")[0].read_bytes() == b"GGUF"
    bucket.put(f"{prefix}/b/{prefix[-200:]}/m.gguf", b"GGUF other")
    assert fetch(f"s3://{BUCKET}/{prefix}/b/{prefix[-200:]}")[0].read_bytes() == b"GGUF other"


def test_signed_addresses_are_shown_nowhere(monkeypatch: pytest.MonkeyPatch) -> None:
    error = RuntimeError("error sending request for url (https://b.s3/k?X-Amz-Signature=secret&a=b): timed out")
    assert s3_files.first_line(error) == "error sending request for url (https://b.s3/k?...): timed out"


def test_a_damaged_beginning_is_noticed_and_fetched_anew(bucket: S3Server) -> None:
    folder, _ = fetch(weights=False)
    bucket.put("tiny/model.safetensors", b"x" * 3_000_000)  # one part: its ETag is a digest
    folder, _ = fetch(weights=False)
    (folder / "model.safetensors.other-7.incomplete").write_bytes(b"y" * 1_000_000)
    assert content(fetch()[0])["model.safetensors"] == b"x" * 3_000_000


def test_a_file_that_comes_damaged_twice_is_refused(bucket: S3Server) -> None:
    bucket.put("tiny/model.safetensors", b"x" * 3_000_000)
    (bucket.folder / "tiny" / "model.safetensors").write_bytes(b"z" * 3_000_000)  # on the disk, behind the ETag's back
    assert "arrived damaged twice" in refused()
    assert not list(Path(os.environ["XDG_CACHE_HOME"]).rglob("model.safetensors"))


def test_a_bucket_whose_etags_are_no_digests_is_fetched_all_the_same(bucket: S3Server) -> None:
    """Buckets with encryption keys of their own have such ETags; here they are changed beside the server's files."""
    for name in ("config.json", "tokenizer.json"):
        os.setxattr(bucket.folder / "tiny" / name, "user.etag", b'"0123456789abcdef0123456789abcdef"')
    folder, _ = fetch()
    assert content(folder)["config.json"] == CONFIG


def test_a_store_that_gives_no_etags_is_good_enough(bucket: S3Server) -> None:
    """The server has no ETag for a file that was put into its folder directly."""
    (bucket.folder / "gguf").mkdir()
    (bucket.folder / "gguf" / "m.gguf").write_bytes(b"GGUF")
    assert fetch(f"s3://{BUCKET}/gguf")[0].read_bytes() == b"GGUF"


def test_an_object_that_changes_or_goes_while_it_is_fetched_is_reported(
    bucket: S3Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    listing = s3._listing

    def then(change):
        def changed(*arguments):
            found = listing(*arguments)
            change()
            return found

        return changed

    monkeypatch.setattr(s3, "_listing", then(lambda: bucket.put("tiny/model.safetensors", b"another")))
    assert "model.safetensors: was changed or removed while it was being fetched" in refused()
    monkeypatch.setattr(s3, "_listing", then((bucket.folder / "tiny" / "model.safetensors").unlink))
    assert "model.safetensors: was changed or removed while it was being fetched" in refused()


def test_refusals_say_what_to_do(bucket: S3Server, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "there is no such bucket or prefix" in refused(f"s3://{BUCKET}/nothing")
    assert "there is no such bucket or prefix" in refused("s3://no-such-bucket/tiny")
    assert "write s3://bucket/prefix" in refused("s3://B/tiny")
    assert "write s3://bucket/prefix" in refused(f"s3://{BUCKET}/../other")
    bucket.put("text/readme.md", b"hello")
    assert "there are readme.md" in refused(f"s3://{BUCKET}/text")
    with pytest.raises(ModelLoadError, match="--revision v1 is for Hugging Face ids"):
        pull_model(URL, "v1", lambda _: None)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "wrong")
    said = refused()
    assert "refuses (SignatureDoesNotMatch)" in said and "AWS_SECRET_ACCESS_KEY" in said
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "wrong")
    assert "refuses (XAdminUserNotFound)" in refused()


def test_a_model_that_was_fetched_before_is_served_while_the_store_cannot_be_reached(
    bucket: S3Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(s3, "_RETRIES", {"max_retries": 0})
    folder, _ = fetch()
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    assert fetch()[0] == folder
    (folder / "model.safetensors").unlink()
    said = refused()
    assert "http://127.0.0.1:9 cannot be asked" in said and "model.safetensors is missing" in said
    assert "cannot be asked" in refused(f"s3://{BUCKET}/never-seen")


def test_a_machine_without_certificates_of_its_own_does_as_well(bucket: S3Server) -> None:
    nowhere = {"SSL_CERT_FILE": "/nowhere", "SSL_CERT_DIR": "/nowhere"}
    process = puller(URL, **nowhere)
    out, err = process.communicate(timeout=300)
    assert process.returncode == 0, err
    assert content(Path(out.strip()))["config.json"] == CONFIG


def test_without_the_package_the_message_says_how_to_get_it(bucket: S3Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "obstore.store", None)
    assert "pip install obstore certifi" in refused()


def puller(*arguments: str, **environment: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "octavo_engine.cli", "pull", *arguments]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    return subprocess.Popen(command, env={**os.environ, **environment}, **pipes)  # type: ignore[call-overload,no-any-return]


def test_a_killed_download_is_gone_on_with(bucket: S3Server, tmp_path: Path) -> None:
    def making() -> list[Path]:
        return [path for path in tmp_path.rglob("model.safetensors.*.incomplete") if incomplete_files.size_of(path)]

    for _ in range(20):
        process = puller(URL)
        while process.poll() is None and not making():
            time.sleep(0.002)
        process.send_signal(signal.SIGKILL)
        process.communicate()
        killed = making()
        if killed and incomplete_files.size_of(killed[0]) < len(WEIGHTS):
            break
        subprocess.run(["rm", "-rf", *map(str, tmp_path.iterdir())], check=True)
    else:
        pytest.fail("no download was killed halfway")
    begun = incomplete_files.size_of(killed[0])
    parts = requests_of(fetch)
    assert min(part[0] for part in parts if part[1] > 100) == begun
    assert content(killed[0].parent)["model.safetensors"] == WEIGHTS


@contextmanager
def fetched_by_another(cache: Path) -> Iterator[None]:
    """Another program holds the lock of the model meanwhile."""
    locks = cache / "octavo" / "locks"
    locks.mkdir(parents=True)
    with (locks / hashlib.sha256(URL.encode()).hexdigest()[:32]).open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def test_one_program_at_a_time_fetches_into_a_cache(bucket: S3Server, tmp_path: Path) -> None:
    with fetched_by_another(tmp_path):
        process = puller(URL)
        assert process.stderr is not None
        for line in process.stderr:
            if "another program fetches" in line:
                break
        assert process.poll() is None
        assert not list(tmp_path.rglob("*.safetensors*"))
    out, err = process.communicate(timeout=300)
    assert process.returncode == 0, err
    assert content(Path(out.strip()))["model.safetensors"] == WEIGHTS


def test_sigterm_ends_a_pull_at_once_with_its_own_code(bucket: S3Server, tmp_path: Path) -> None:
    with fetched_by_another(tmp_path):
        process = puller(URL)
        assert process.stderr is not None
        assert "another program" in next(line for line in process.stderr if "another program" in line)
        process.terminate()
        assert process.wait(120) == 143


def test_the_listing_that_is_kept_names_each_object(bucket: S3Server, tmp_path: Path) -> None:
    fetch()
    (listing,) = tmp_path.rglob("listing.json")
    kept = json.loads(listing.read_text())
    assert [entry["key"] for entry in kept] == ["tiny/config.json", "tiny/model.safetensors", "tiny/tokenizer.json"]
    assert [entry["size"] for entry in kept] == [len(CONFIG), len(WEIGHTS), 2]
