"""Adapters in a running engine process: loaded while requests run, refused by name, unloaded under load."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from adapters import RandomAdapter

from octavo_engine.config import EngineConfig
from octavo_engine.core.request import Request
from octavo_engine.engine.client import EngineClient
from octavo_engine.engine.output_stream import OutputStream
from octavo_engine.errors import AdapterNotFoundError, ModelLoadError
from octavo_engine.sampling_params import SamplingParams

TOKENS = 60


async def tokens_of(client: EngineClient, name: str, adapter: str) -> list[int]:
    sampling = SamplingParams(max_tokens=TOKENS, temperature=0.0)
    request = Request(request_id=name, prompt_token_ids=tuple(range(30)), sampling=sampling, adapter=adapter)
    outputs = OutputStream([name])
    async with client.generate([request], outputs):
        return [token async for output in outputs for token in output.token_ids]


async def test_adapters_come_and_go_beside_requests(tiny_model: Path, tmp_path: Path) -> None:
    import transformers

    model = transformers.AutoModelForCausalLM.from_pretrained(tiny_model)
    first, second = (RandomAdapter(4, seed=seed, std=0.3).save(model, tmp_path / str(seed)) for seed in (1, 2))
    client = EngineClient(
        EngineConfig(
            model=str(tiny_model), device="cpu", dtype="float32", num_kv_blocks=64, max_model_len=200,
            enable_lora=True, max_loras=1, lora_modules=[f"first={first}"],
        )
    )  # fmt: skip
    await client.start()
    try:
        ready = await client.wait_ready()
        assert ready.max_loras == 1
        digest = client.state.adapters["first"].digest
        base = asyncio.create_task(tokens_of(client, "base", ""))
        ours = [asyncio.create_task(tokens_of(client, f"first{n}", digest)) for n in range(3)]
        await client.load_adapter("second", str(second))
        with pytest.raises(AdapterNotFoundError, match="no such directory"):
            await client.load_adapter("third", str(tmp_path / "nothing"))
        (tmp_path / "empty").mkdir()
        (tmp_path / "empty" / "adapter_config.json").write_text('{"use_dora": true}')
        with pytest.raises(ModelLoadError, match="use_dora"):
            await client.load_adapter("third", str(tmp_path / "empty"))
        others = [asyncio.create_task(tokens_of(client, "second", client.state.adapters["second"].digest))]
        await client.unload_adapter("first")
        assert sorted(client.state.adapters) == ["second"]
        answers = await asyncio.gather(base, *ours, *others)
        assert all(len(answer) == TOKENS for answer in answers)
        assert answers[1] == answers[2] == answers[3]
        assert answers[0] != answers[1] != answers[4] != answers[0]
    finally:
        await client.stop()
