"""Model files that are made to harm the server: it ends soon with exit code 3 and one short message, in bounded memory.

Each file is a real one, read as `serve` reads it, by a child process with limits of its own, so that a file that blocks
or takes all memory fails only its own test.
"""

from __future__ import annotations

import json
import os
import resource
import shutil
import signal
import socket
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from octavo_engine.config import EngineConfig
from octavo_engine.engine.startup.start_engine import start_engine
from octavo_engine.errors import ModelLoadError
from octavo_engine.model.source import resolve_model
from octavo_engine.text.tokenizer import load_tokenizer

_CPU_SECONDS = 30
"""Each of these takes below one on a quiet machine; without the limits that are tested, more than a minute, or ever."""
_MEMORY = 2 << 30
"""More than there was when the child began."""

Make = Callable[[Path], Any]


def outcome(model: Path) -> tuple[int, str]:
    """Exit code and message of loading the tokenizer and the engine in a child; -1 if it took too much or hung."""
    ours, theirs = os.pipe()
    if (child := os.fork()) == 0:
        pages = int(Path("/proc/self/statm").read_text().split()[0])
        limit = pages * resource.getpagesize() + _MEMORY
        resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
        resource.setrlimit(resource.RLIMIT_CPU, (_CPU_SECONDS, _CPU_SECONDS))
        signal.alarm(4 * _CPU_SECONDS)
        code, message = 0, "loaded"
        try:
            load_tokenizer(resolve_model(str(model), None, lambda *_: None, weights=False))
            start_engine(EngineConfig(model=str(model), device="cpu"), lambda *_: None)
        except ModelLoadError as error:
            code, message = error.exit_code, str(error)
        except BaseException as error:  # noqa: BLE001  (what else there is is what the test looks for)
            code, message = 1, repr(error)
        os.write(theirs, struct.pack("<i", code) + message.encode("utf-8", "replace")[:20_000])
        os._exit(0)
    os.close(theirs)
    with os.fdopen(ours, "rb") as pipe:
        said = pipe.read()
    os.waitpid(child, 0)
    return (struct.unpack("<i", said[:4])[0], said[4:].decode()) if said else (-1, "killed by its limits")


def assert_refused(model: Path, *words: str) -> None:
    code, message = outcome(model)
    assert code == 3, message[:500]
    assert len(message) < 10_000 and message.isprintable()
    assert all(word in message for word in words), f"expected {words} in: {message[:500]}"


def edited(name: str, **changes: Any) -> Make:
    """The JSON file with some fields changed, in `model` where the tokenizer's vocabulary is."""

    def make(folder: Path) -> None:
        path = folder / name
        values = json.loads(path.read_text()) if path.exists() else {}
        values.update(changes)
        path.write_text(json.dumps(values))

    return make


def tokenizer(**changes: Any) -> Make:
    def make(folder: Path) -> None:
        path = folder / "tokenizer.json"
        values = json.loads(path.read_text())
        values["model"].update({name: change(values["model"]) for name, change in changes.items()})
        path.write_text(json.dumps(values))

    return make


def written(name: str, content: str | bytes) -> Make:
    return lambda folder: (folder / name).write_bytes(content if isinstance(content, bytes) else content.encode())


def header(content: bytes, data: bytes = b"") -> Make:
    return written("model.safetensors", struct.pack("<Q", len(content)) + content + data)


def indexed(name: Any) -> Make:
    def make(folder: Path) -> None:
        (folder / "model.safetensors").rename(folder / "other.safetensors")
        (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"a": name}}))

    return make


def added(token_id: int, content: str) -> dict[str, Any]:
    return {
        "id": token_id, "content": content, "single_word": False, "lstrip": False, "rstrip": False,
        "normalized": False, "special": True,
    }  # fmt: skip


def ignoring(expression: str) -> Make:
    weights = {"num_bits": 8, "type": "float", "strategy": "channel"}
    group = {"targets": ["Linear"], "format": "float-quantized", "weights": weights}
    config = {"quant_method": "compressed-tensors", "config_groups": {"g": group}, "ignore": [f"re:{expression}"]}
    return edited("config.json", quantization_config=config)


HOSTILE: dict[str, tuple[Make, tuple[str, ...]]] = {
    "an architecture of a million letters": (
        edited("config.json", architectures=["Llama" * 200_000]), ("is not supported; ", "octavo-engine models lists"),
    ),
    "a message as long as the file": (
        edited("config.json", quantization_config={"quant_method": "x" * 1_000_000}), ("quantized", " ..."),
    ),
    "a message with control characters": (
        edited("config.json", quantization_config={"quant_method": "\x1b[2J\nERROR \ud800"}),
        (r"\x1b[2J\nERROR \ud800",),
    ),
    "a billion layers": (edited("config.json", num_hidden_layers=10**9), ("num_hidden_layers", "1024")),
    "more layers than can be described in seconds": (
        edited("config.json", num_hidden_layers=1025),
        ("num_hidden_layers 1025 is not between 1 and 1024",),
    ),
    "nested objects": (written("config.json", '{"a":' * 100_000 + "1" + "}" * 100_000), ("config.json", "JSON")),
    "a configuration without end": (lambda f: os.truncate(f / "config.json", 1 << 40), ("config.json", "too large")),
    "modules.json without end": (
        lambda f: ((f / "modules.json").touch(), os.truncate(f / "modules.json", 1 << 40)),
        ("modules.json", "too large"),
    ),
    "modules.json that leads out": (
        written("modules.json", '[{"type": "Pooling", "path": ""}, {"type": "Dense", "path": "a/../../x"}]'),
        ("modules.json: names 'a/../../x', which is not a folder of the model",),
    ),
    "modules.json with a path of its own": (
        written("modules.json", '[{"type": "Dense", "path": "/etc"}]'),
        ("modules.json: names '/etc'",),
    ),
    "modules.json with a zero byte": (
        written("modules.json", r'[{"type": "Pooling", "path": "\u0000"}]'),
        (r"modules.json: names '\x00'",),
    ),
    "a tokenizer without end": (lambda f: os.truncate(f / "tokenizer.json", 1 << 40), ("tokenizer.json", "too large")),
    "a vocabulary of 1,100,000 tokens": (
        tokenizer(vocab=lambda model: {**{f"t{each}": each for each in range(1_100_000)}, model["unk_token"]: 0}),
        ("tokens", "1048576"),
    ),
    "a token id of 2^32 - 1": (
        tokenizer(vocab=lambda model: {**model["vocab"], "x": 2**32 - 1}), ("4294967295", "1048576"),
    ),
    "a negative token id": (tokenizer(vocab=lambda model: {**model["vocab"], "x": -1}), ("tokenizer.json", "-1")),
    "a token of ten million letters": (
        edited("tokenizer.json", added_tokens=[added(64, "z" * 10_000_000)]), ("10000000 bytes", "2048"),
    ),
    "a template of 140,000 outputs": (
        edited("tokenizer_config.json", chat_template="{{ a }}" * 140_000), ("chat template", "980000"),
    ),
    "a template nested too deeply": (
        edited("tokenizer_config.json", chat_template="{% if a %}" * 3_000 + "{% endif %}" * 3_000), ("recursion",),
    ),
    "a template that is a link to a secret": (
        lambda f: (f / "chat_template.jinja").symlink_to("/etc/passwd"), ("chat_template.jinja", "link to /etc/passwd"),
    ),
    "a header of 90 MB of lists": (header(b'{"a":[' + b"[]," * 30_000_000 + b"1]}"), ("header", "33554432")),
    "a tensor's offset of 4,000 digits": (
        header(b'{"a":{"dtype":"F32","shape":[1],"data_offsets":[0,%s]}}' % (b"9" * 4000), b"0000"), ("'a'",),
    ),
    "a tensor's name of ten million letters": (
        header(b'{"%s":{"dtype":"Q","shape":[1],"data_offsets":[0,4]}}' % (b"a" * 10_000_000), b"0000"),
        ("tensor", " ..."),
    ),
    "an expression with repeats in repeats": (ignoring("([a-z_.0-9]+)+!"), ("([a-z_.0-9]+)+!", "could take too long")),
    "an expression with repeated alternatives": (ignoring("(?:..|...)*!"), ("could take too long",)),
    "an expression with many repeats": (ignoring(".*" * 12 + "!"), ("could take too long",)),
    "an expression with many optional letters": (ignoring(".?" * 300 + "!"), ("could take too long",)),
    "an expression that repeats nothing": (ignoring("(?:(?:(?=.)){10000}){100000}!"), ("could take too long",)),
    "an index that leads out": (indexed("../other.safetensors"), ("'../other.safetensors'", "beside the index")),
    "an index with a name that no file can have": (indexed("x" * 5_000 + ".safetensors"), ("beside the index",)),
    "an index with a zero byte": (indexed("a\0.safetensors"), (r"'a\x00.safetensors'",)),
}  # fmt: skip


@pytest.mark.parametrize("file", HOSTILE)
def test_a_hostile_file_is_refused(file: str, tiny_model: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(tiny_model, tmp_path / "model")
    make, words = HOSTILE[file]
    make(folder)
    assert_refused(folder, *words)


FILES = (
    "config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json", "special_tokens_map.json",
    "chat_template.jinja", "model.safetensors", "modules.json", "other.gguf",
)  # fmt: skip


def bound(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as one:
        before = Path.cwd()
        os.chdir(path.parent)  # a socket's path may have 107 characters
        one.bind(path.name)
        os.chdir(before)


STAND_INS: dict[str, tuple[Make, str]] = {
    "pipe": (os.mkfifo, "a named pipe"),
    "directory": (Path.mkdir, "a directory"),
    "socket": (bound, "a socket"),
    "device": (lambda path: path.symlink_to("/dev/zero"), "a device"),
    "circle": (lambda path: path.symlink_to(path.name), "a link that leads to nothing"),
}


@pytest.mark.parametrize("kind", STAND_INS)
@pytest.mark.parametrize("name", FILES)
def test_what_is_no_file_is_refused_and_not_waited_for(name: str, kind: str, tiny_model: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(tiny_model, tmp_path / "model")
    (folder / name).unlink(missing_ok=True)
    if name.endswith(".gguf"):
        (folder / "config.json").unlink()
    make, words = STAND_INS[kind]
    make(folder / name)
    assert_refused(folder, name, f"is not a file but {words}")


def gguf(keys: list[bytes], tensors: list[bytes] = [], rest: bytes = b"") -> bytes:  # noqa: B006  (only read)
    return b"GGUF" + struct.pack("<IQQ", 3, len(tensors), len(keys)) + b"".join(keys) + b"".join(tensors) + rest


def text(value: bytes) -> bytes:
    return struct.pack("<Q", len(value)) + value


def array(item: int, count: int, content: bytes) -> bytes:
    return text(b"key") + struct.pack("<IIQ", 9, item, count) + content


_TENSOR = text(b"a") + struct.pack("<IQIQ", 1, 8, 0, 0)
HOSTILE_GGUF: dict[str, tuple[bytes, tuple[str, ...]]] = {
    "counts of 2^63": (b"GGUF" + struct.pack("<IQQ", 3, 1 << 63, 1 << 63), ("9223372036854775808 tensors",)),
    "a text longer than the file": (gguf([text(b"key") + struct.pack("<IQ", 8, 1 << 62)]), ("bytes of text",)),
    "an array longer than the file": (gguf([array(4, 1 << 61, b"")]), ("array items",)),
    "arrays in arrays": (gguf([array(9, 1, struct.pack("<IQ", 9, 1) * 100_000)]), ("broken GGUF header",)),
    "ten million texts": (gguf([array(8, 10_000_000, bytes(80_000_000))]), ("10000000 array items",)),
    "eight million arrays": (gguf([array(9, 8_000_000, bytes(96_000_000))]), ("8000000 array items",)),
    "a million tensors": (gguf([], [_TENSOR] * 1_000_000), ("1000000 tensors",)),
    "tensors over one another": (
        gguf([], [_TENSOR, _TENSOR.replace(b"a", b"b")], bytes(64)), ("'a' and 'b' overlap",),
    ),
    "a tensor before the file": (gguf([], [_TENSOR[:-8] + struct.pack("<q", -32)], bytes(64)), ("cut short",)),
    "a tensor of 2^252 elements": (
        gguf([], [text(b"a") + struct.pack("<IQQQQIQ", 4, *[1 << 63] * 4, 0, 0)], bytes(64)), ("cut short",),
    ),
}  # fmt: skip


@pytest.mark.parametrize("file", HOSTILE_GGUF)
def test_a_hostile_gguf_file_is_refused(file: str, tmp_path: Path) -> None:
    content, words = HOSTILE_GGUF[file]
    path = tmp_path / "model.gguf"
    path.write_bytes(content)
    assert_refused(path, "model.gguf", *words)


def test_a_snapshot_of_the_hub_may_link_its_template_to_the_cache(tiny_model: Path, tmp_path: Path) -> None:
    blobs = tmp_path / "models--a--b" / "blobs"
    blobs.mkdir(parents=True)
    (blobs / "f00").write_text("{{ messages[0].content }}")
    folder = shutil.copytree(tiny_model, tmp_path / "models--a--b" / "snapshots" / "c0ffee")
    (folder / "chat_template.jinja").symlink_to("../../blobs/f00")
    assert load_tokenizer(resolve_model(str(folder), None, lambda *_: None)).chat_template is not None


def test_constants_of_a_template_are_not_computed_while_it_is_compiled(tiny_model: Path, tmp_path: Path) -> None:
    """Each `tojson` doubles the backslashes of the one before. When this is rendered, a text worker ends, no more."""
    folder = shutil.copytree(tiny_model, tmp_path / "model")
    edited("tokenizer_config.json", chat_template="{{ '\\\\'" + "|tojson" * 40 + " }}")(folder)
    assert outcome(folder) == (0, "loaded")
