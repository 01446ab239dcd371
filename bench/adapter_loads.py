"""Measures how much loading and unloading LoRA adapters delays other streams: `python -m bench.adapter_loads`.

Streams of SmolLM2 run all the time. In turns of some seconds, short requests use either one adapter that stays loaded,
or each a new one of rank 64, which is loaded before the request and unloaded after it. Both kinds of turns have the
same requests, so they differ in reading files and copying weights to the device. Gaps between a stream's tokens are
compared.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import statistics
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path

import httpx2

from bench.adapters import make_adapter
from bench.report import save
from bench.server import octavo

_RANK, _ADAPTERS, _SLOTS = 64, 6, 2
_PAUSE = 0.5
"""Seconds between two of the short requests."""


@dataclass
class Gaps:
    """Milliseconds between a stream's tokens, by whether adapters were being loaded."""

    loading: bool = False
    found: dict[bool, list[float]] = field(default_factory=lambda: {False: [], True: []})
    loads: int = 0

    def percentile(self, loading: bool, percent: int) -> float:
        """Return a percentile of the gaps in the turns with or without loading."""
        return statistics.quantiles(self.found[loading], n=100, method="inclusive")[percent - 1]


async def stream(client: httpx2.AsyncClient, gaps: Gaps, ended: asyncio.Event) -> None:
    """Stream one answer of the base model after another; a gap in which the kind of turn changed is not counted."""
    body = {"model": "smollm2", "prompt": "Count on:", "max_tokens": 400, "ignore_eos": True, "stream": True}
    while not ended.is_set():
        async with client.stream("POST", "/v1/completions", json=body) as answer:
            before, half = None, gaps.loading
            async for line in answer.aiter_lines():
                if line.startswith("data: {"):
                    now = time.perf_counter()
                    if before is not None and half == gaps.loading:
                        gaps.found[half].append(1000 * (now - before))
                    before, half = now, gaps.loading
                if ended.is_set():
                    return


async def one_turn(client: httpx2.AsyncClient, gaps: Gaps, folder: Path, seconds: float) -> None:
    """Send short requests for some seconds, each with an adapter of its own if `gaps.loading`."""
    end, number = time.perf_counter() + seconds, 0
    while time.perf_counter() < end:
        name = f"a{number % _ADAPTERS}" if gaps.loading else "kept"
        if gaps.loading:
            await post(client, "load_lora_adapter", lora_name=name, lora_path=str(folder / name))
        await post(client, "completions", model=name, prompt="One more:", max_tokens=4, ignore_eos=True)
        if gaps.loading:
            await post(client, "unload_lora_adapter", lora_name=name)
            gaps.loads += 1
        number += 1
        await asyncio.sleep(_PAUSE)


async def post(client: httpx2.AsyncClient, place: str, **body: object) -> None:
    """Send a request that must succeed."""
    answer = await client.post(f"/v1/{place}", json=body)
    if answer.is_error:
        raise RuntimeError(f"{place}: {answer.status_code} {answer.text}")


async def measure(port: int, folder: Path, args: argparse.Namespace) -> Gaps:
    """Run all turns while the streams run, and return the gaps."""
    gaps, ended = Gaps(), asyncio.Event()
    async with httpx2.AsyncClient(base_url=f"http://127.0.0.1:{port}", timeout=120, trust_env=False) as client:
        await post(client, "load_lora_adapter", lora_name="kept", lora_path=str(folder / "kept"))
        streams = [asyncio.create_task(stream(client, gaps, ended)) for _ in range(args.streams)]
        await asyncio.sleep(3)
        gaps.found = {False: [], True: []}
        for turn in range(2 * args.turns):
            gaps.loading = turn % 2 == 1
            await one_turn(client, gaps, folder, args.seconds)
        ended.set()
        await asyncio.gather(*streams)
    return gaps


def main() -> None:
    """Entry point of `python -m bench.adapter_loads`."""
    parser = argparse.ArgumentParser(prog="bench.adapter_loads", description=__doc__)
    parser.add_argument("--turns", type=int, default=8, help="turns with loads, and as many without (default: 8)")
    parser.add_argument("--seconds", type=float, default=6.0, help="of each turn (default: 6)")
    parser.add_argument("--streams", type=int, default=4)
    args, busy = parser.parse_args(), os.getloadavg()[0]
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        for seed, name in enumerate(["kept", *(f"a{n}" for n in range(_ADAPTERS))]):
            make_adapter(folder / name, seed, _RANK)
        flags = ["--enable-lora", f"--max-loras={_SLOTS}", f"--max-lora-rank={_RANK}", "--max-model-len=1024"]
        with octavo("smollm2", *flags) as serving:
            gaps = asyncio.run(measure(serving.port, folder, args))
    lines = ["| gap, ms | no loads | loads | ratio |", "| --- | --- | --- | --- |"]
    for percent in (50, 90, 99):
        quiet, loading = (gaps.percentile(half, percent) for half in (False, True))
        lines.append(f"| p{percent} | {quiet:.1f} | {loading:.1f} | {loading / quiet:.2f} |")
    text = (
        f"`python -m bench.adapter_loads`: {args.streams} streams of SmolLM2-135M; {gaps.loads} adapters of rank "
        f"{_RANK} were loaded, asked and unloaded in {args.turns} turns of {args.seconds:g} s, in turn with as many "
        f"without loads; {len(os.sched_getaffinity(0))} cores (load {busy:.1f} before), client included.\n\n"
        + "\n".join(lines)
    )
    print(text)
    result = {"arguments": vars(args), "load_before": round(busy, 2), "loads": gaps.loads, "gaps_ms": gaps.found}
    save("adapter-loads", result, lambda title: f"# {title}\n\n{text}\n")


if __name__ == "__main__":
    main()
