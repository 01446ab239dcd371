"""Attacks by adapters that exist: many names, files that change while they are read, odd files and odd numbers."""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import random
import shutil
import tempfile
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import numpy as np

from bench.hostile.kinds import Attack, users
from bench.hostile.wire import Target

LOAD, UNLOAD, TEXT = "/v1/load_lora_adapter", "/v1/unload_lora_adapter", "/v1/completions"
_WIDTH, _LAYERS = 576, 30
"""Of SmolLM2-135M."""
_CONFIG = {"peft_type": "LORA", "r": 8, "lora_alpha": 8}


def _tensors(rank: int, layers: int) -> dict[str, list[int]]:
    modules = [f"base_model.model.model.layers.{layer}.self_attn.q_proj" for layer in range(layers)]
    sizes = (("lora_A", [rank, _WIDTH]), ("lora_B", [_WIDTH, rank]))
    return {f"{module}.{part}.weight": size for module in modules for part, size in sizes}


def safetensors(tensors: dict[str, list[int]], *, kept: float = 1.0) -> bytes:
    """Return a file of these shapes in float32; `kept` is the part of its numbers that it really has."""
    header, end = {}, 0
    for name, (rows, columns) in tensors.items():
        begin, end = end, end + 4 * rows * columns
        header[name] = {"dtype": "F32", "shape": [rows, columns], "data_offsets": [begin, end]}
    text = json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + bytes(int(end * kept))


def adapter(folder: Path, weights: bytes | None = None, config: bytes | None = None) -> Path:
    """Write an adapter and return its folder."""
    folder.mkdir()
    found = weights if weights is not None else safetensors(_tensors(8, _LAYERS))
    (folder / "adapter_model.safetensors").write_bytes(found)
    (folder / "adapter_config.json").write_bytes(config or json.dumps(_CONFIG).encode())
    return folder


def with_adapters(attack: Callable[[Target, Path], Awaitable[None]]) -> Attack:
    """Return an attack that has a folder for its files, which is removed when it has ended."""

    async def attack_in_folder(target: Target) -> None:
        folder = Path(tempfile.mkdtemp())
        try:
            await attack(target, folder)
        finally:
            shutil.rmtree(folder)

    return attack_in_folder


async def one_name(target: Target, folder: Path) -> None:
    """32 clients that load, replace, use and unload adapters under one name."""
    paths = []
    for rank in range(1, 5):
        config = json.dumps({**_CONFIG, "r": rank}).encode()
        paths.append(str(adapter(folder / f"a{rank}", safetensors(_tensors(rank, _LAYERS)), config)))

    async def user(number: int) -> None:
        chance = random.Random(number)
        while target.open:
            asked = {"lora_name": "mine", "lora_path": chance.choice(paths), "load_inplace": chance.random() < 0.5}
            await target.post(LOAD, asked)
            await target.post(TEXT, {"model": "mine", "prompt": "x", "max_tokens": 4})
            await target.post(UNLOAD, {"lora_name": "mine"})

    await users(32, user)


async def many_names(target: Target, folder: Path) -> None:
    """One adapter under more and more long names, all of which requests use; they are unloaded in the end."""
    path, numbers = str(adapter(folder / "a")), itertools.count()

    async def user(_: int) -> None:
        while target.open:
            name = f"{next(numbers)}" + "n" * 250
            await target.post(LOAD, {"lora_name": name, "lora_path": path})
            await target.post(TEXT, {"model": name, "prompt": "x", "max_tokens": 1})
            await target.raw(target.head("/v1/models", 0, "GET"))

    async def remover(first: int) -> None:
        for number in range(first, next(numbers), 16):
            await target.post(UNLOAD, {"lora_name": f"{number}" + "n" * 250})

    target.until -= 2
    await users(16, user)
    await users(16, remover)


async def changing(target: Target, folder: Path) -> None:
    """Adapters whose files are cut off, filled, replaced and removed while they are read."""
    whole = safetensors(_tensors(8, _LAYERS))
    path = adapter(folder / "a", whole)
    file = path / "adapter_model.safetensors"

    async def writer(_: int) -> None:
        chance = random.Random(5)
        while target.open:
            with file.open("r+b" if file.exists() else "wb") as opened:
                opened.truncate(chance.choice((0, 9, 1000, len(whole) // 2)))
                opened.write(whole[: chance.choice((8, 4000, len(whole)))])
            if chance.random() < 0.1:
                file.unlink()
            await asyncio.sleep(0.002)

    async def loader(number: int) -> None:
        while target.open:
            await target.post(LOAD, {"lora_name": f"c{number}", "lora_path": str(path), "load_inplace": True})
            await target.post(TEXT, {"model": f"c{number}", "prompt": "x", "max_tokens": 2})

    await asyncio.gather(writer(0), users(8, loader))
    for number in range(8):
        await target.post(UNLOAD, {"lora_name": f"c{number}"})


def _odd(folder: Path) -> list[Path]:
    """Return adapters with files that are sparse, endless, pipes, or not what their headers say."""
    small, wide = _tensors(8, 1), safetensors({"x": [1, 1]})
    ranks = {f"(a*)*{number}": 8 for number in range(9000)}
    header = (40 << 20).to_bytes(8, "little") + b'{"x":' + b"[" * (40 << 20)
    made = [
        adapter(folder / "cut", safetensors(small, kept=0.5)),
        adapter(folder / "ranks", wide, json.dumps({**_CONFIG, "r": 10**12}).encode()),
        adapter(folder / "config", wide, b'{"r": 8, "x": "' + b"x" * (60 << 20) + b'"}'),
        adapter(folder / "deep", wide, b'{"r": ' + b"[" * 200_000 + b"]" * 200_000 + b"}"),
        adapter(folder / "patterns", wide, json.dumps({**_CONFIG, "target_modules": "(x+x+)+y" * 4000}).encode()),
        adapter(folder / "ranked", wide, json.dumps({**_CONFIG, "rank_pattern": ranks}).encode()),
        adapter(folder / "header", header),
        adapter(folder / "names", safetensors({f"x{each}" * 50: [1, 1] for each in range(60_000)})),
    ]  # fmt: skip
    for name in ("sparse", "pipe", "endless", "linked"):
        weights = adapter(folder / name) / "adapter_model.safetensors"
        if name == "sparse":
            os.truncate(weights, 64 << 30)
            continue
        weights.unlink()
        if name == "pipe":
            os.mkfifo(weights)
        else:
            weights.symlink_to("/dev/zero" if name == "endless" else "/proc/self/mem")
    return [*made, *(folder / name for name in ("sparse", "pipe", "endless", "linked"))]


async def odd_files(target: Target, folder: Path) -> None:
    """Adapters of odd files, loaded in turn by 12 clients."""
    paths = _odd(folder)

    async def user(number: int) -> None:
        while target.open:
            await target.post(LOAD, {"lora_name": f"o{number}", "lora_path": str(paths[number % len(paths)])})
            number += 5

    await users(12, user)


def _equal_numbers(number: float, dtype: str = "F32") -> bytes:
    """Return a safetensors file of an adapter of rank 8 whose numbers are all the same bytes."""
    module = "base_model.model.model.layers.{}.self_attn.q_proj.lora_{}.weight"
    header, data = {}, b""
    for layer in range(30):
        for part, shape in (("A", [8, 576]), ("B", [576, 8])):
            content = np.full(shape, number, np.float32).tobytes()
            header[module.format(layer, part)] = {
                "dtype": dtype,
                "shape": shape,
                "data_offsets": [len(data), len(data) + len(content)],
            }
            data += content
    text = json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + data


_SETTINGS = {"peft_type": "LORA", "r": 8, "lora_alpha": 8, "target_modules": ["q_proj"]}
_ODD_SETTINGS: tuple[dict[str, Any], ...] = (
    {},
    {"lora_alpha": 1e38},
    {"lora_alpha": -8},
    {"use_rslora": "yes"},
    {"r": 8.5},
    {"r": True},
    {"r": -8},
    {"use_dora": True},
    {"bias": "all"},
    {"modules_to_save": ["lm_head"]},
    {"peft_type": "PREFIX_TUNING"},
    {"alpha_pattern": {"(a+)+$": 1e308}},
    {"rank_pattern": {".*": 0}},
    {"target_modules": ".*(a|a)*b"},
    {"base_model_name_or_path": "/etc/" + "x" * 10**6},
    {"lora_alpha": float("nan")},
    {"layers_to_transform": [10**9]},
)
"""Settings that stand in place of those, or beside them."""


async def wrong_numbers(target: Target, folder: Path) -> None:
    """Adapters of infinite and undefined numbers and of odd settings, used at once."""
    paths = [
        adapter(folder / f"s{at}", _equal_numbers(0.01), json.dumps({**_SETTINGS, **each}).encode())
        for at, each in enumerate(_ODD_SETTINGS)
    ]
    numbers = (float("nan"), float("inf"), 1e38, -1e38, 1e-45)
    paths += [
        adapter(folder / f"n{at}", _equal_numbers(each), json.dumps(_SETTINGS).encode())
        for at, each in enumerate(numbers)
    ]
    paths += [
        adapter(folder / f"d{at}", _equal_numbers(1, kind), json.dumps(_SETTINGS).encode())
        for at, kind in enumerate(("I32", "U32", "F64", "X", "F8_E4M3"))
    ]
    loop = folder / "loop"
    loop.symlink_to(loop)
    paths.append(loop)

    async def user(number: int) -> None:
        while target.open:
            number += 1
            name = f"w{number % 8}"
            await target.post(
                LOAD, {"lora_name": name, "lora_path": str(paths[number % len(paths)]), "load_inplace": True}
            )
            asked = {"model": name, "prompt": "x", "max_tokens": 4, "logprobs": 3, "temperature": number % 2}
            await target.post(TEXT, asked)

    await users(4, user)
    for number in range(8):
        await target.post(UNLOAD, {"lora_name": f"w{number}"})


ADAPTERS: dict[str, Attack] = {
    "one adapter's name, loaded and unloaded by 32 clients": with_adapters(one_name),
    "an adapter under hundreds of names": with_adapters(many_names),
    "adapters whose files change while they are read": with_adapters(changing),
    "adapters of sparse, endless and broken files": with_adapters(odd_files),
    "adapters of infinite numbers": with_adapters(wrong_numbers),
}
"""Attacks by name, as in `attacks.py`."""
