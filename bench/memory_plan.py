"""Compares the memory plan with the memory that an engine takes, item by item, for a model of each kind on the CPU.

`nice -n 10 .venv/bin/python -m bench.memory_plan [KIND ...] [--models DIR]` writes a table in Markdown. The models have
random weights and are made by transformers, or as quantized checkpoints by the tests' own writers; DIR keeps them for
another run. `gguf` is the demo's SmolLM2.

Each engine runs in a process of its own, whose anonymous memory is read every 2 ms: pages of mapped files are left out,
as the kernel drops them when memory is short. The peak counts from the moment at which the memory was planned. All
blocks of the KV cache are written before the first request, so that it takes all its memory, and as many adapters are
loaded as may be. Then there are a prompt of --max-num-batched-tokens tokens, and --max-num-seqs requests together with
every sampling parameter that takes memory. Prompts are not cut for the time that their steps take, as they otherwise
are on a slow machine: smaller steps take less.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import importlib
import json
import random
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, cast

_MIB = 1 << 20
_TOKENS, _SEQS, _KV_CACHE = 2048, 16, 192 * _MIB
_PROMPT = _TOKENS - 8
"""Tokens of a prompt that one step computes, with room for its answer."""
_LIMITS: Mapping[str, Any] = {
    "max_model_len": _TOKENS,
    "max_num_batched_tokens": _TOKENS,
    "max_num_seqs": _SEQS,
    "watchdog_timeout": 3600,  # the largest step may take long on a slow machine
}
_SIZES = {
    "vocab_size": 32000,
    "hidden_size": 1024,
    "intermediate_size": 2816,
    "num_hidden_layers": 16,
    "num_attention_heads": 16,
    "num_key_value_heads": 4,
    "max_position_embeddings": 4096,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
_SHAPES: Mapping[str, tuple[str, str, dict[str, Any]]] = {
    "dense": ("LlamaForCausalLM", "LlamaConfig", {}),
    "experts": (
        "Qwen3MoeForCausalLM",
        "Qwen3MoeConfig",
        {"num_hidden_layers": 8, "num_experts": 16, "num_experts_per_tok": 4, "moe_intermediate_size": 704}
        | {"head_dim": 64, "mlp_only_layers": []},
    ),
    "windows": (
        "Gemma3ForCausalLM",
        "Gemma3TextConfig",
        {"num_hidden_layers": 12, "num_attention_heads": 8, "head_dim": 128, "sliding_window": 512}
        | {"query_pre_attn_scalar": 128},
    ),
    "hybrid": (
        "Qwen3NextForCausalLM",
        "Qwen3NextConfig",
        {"num_hidden_layers": 12, "num_attention_heads": 8, "num_key_value_heads": 2, "head_dim": 128}
        | {"linear_num_value_heads": 16, "linear_num_key_heads": 8, "linear_key_head_dim": 64}
        | {"linear_value_head_dim": 64, "num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 512}
        | {"shared_expert_intermediate_size": 512, "mlp_only_layers": []},
    ),
    "latent": (
        "DeepseekV3ForCausalLM",
        "DeepseekV3Config",
        {"num_hidden_layers": 8, "num_key_value_heads": 16, "q_lora_rank": 512, "kv_lora_rank": 256}
        | {"qk_nope_head_dim": 64, "qk_rope_head_dim": 32, "v_head_dim": 64, "n_routed_experts": 8, "n_group": 2}
        | {"topk_group": 1, "num_experts_per_tok": 2, "n_shared_experts": 1, "moe_intermediate_size": 704}
        | {"first_k_dense_replace": 1},
    ),
    "encoder": (
        "XLMRobertaModel",
        "XLMRobertaConfig",
        {"vocab_size": 100_000, "intermediate_size": 4096, "max_position_embeddings": 2050, "type_vocab_size": 1}
        | {"bos_token_id": 0, "pad_token_id": 1},
    ),
    "gpt2": (
        "GPT2LMHeadModel",
        "GPT2Config",
        {"vocab_size": 50257, "n_embd": 1024, "n_layer": 20, "n_head": 16, "n_positions": 2048},
    ),
}
_SCHEMES: Mapping[str, tuple[str, str, str]] = {
    "gptq": ("grouped_checkpoints", "save_grouped", "gptq"),
    "awq": ("grouped_checkpoints", "save_grouped", "awq"),
    "fp8 by channels": ("fp8_checkpoints", "save_fp8", "compressed_channel"),
    "w8a8": ("grouped_checkpoints", "save_grouped", "w8a8"),
    "nf4": ("grouped_checkpoints", "save_grouped", "nf4"),
    "mxfp4": ("grouped_checkpoints", "save_grouped", "mxfp4"),
}
"""Quantized checkpoints: a module of `_WRITERS`, its function, and the name that this has for the format."""
_WRITERS = Path(__file__).parents[1] / "tests" / "engine" / "helpers"
_QUANTIZED_SIZES = _SIZES | {"num_hidden_layers": 8, "head_dim": 64}
_SETTINGS: Mapping[str, tuple[str, dict[str, Any]]] = {
    **{kind: (kind, {}) for kind in _SHAPES},
    **{kind: (kind, {"dtype": "bfloat16"}) for kind in _SCHEMES},
    "gguf": ("smollm2", {}),
    "dense fp8": ("dense", {"quantization": "fp8"}),
    "dense int8": ("dense", {"quantization": "int8"}),
    "dense int4": ("dense", {"quantization": "int4"}),
    "dense, KV cache in 8 bits": ("dense", {"kv_cache_dtype": "fp8"}),
    "dense with adapters": ("dense", {"enable_lora": True, "max_loras": 8, "max_cpu_loras": 8, "max_lora_rank": 16}),
}


def main() -> None:
    """Measure the kinds that are named, or all, and print their table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("kinds", nargs="*", default=list(_SETTINGS), help=f"any of {', '.join(_SETTINGS)}")
    parser.add_argument("--models", type=Path, help="a folder that keeps the models")
    parser.add_argument("--measure", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        models = args.models or Path(scratch)
        if args.measure:
            print(json.dumps(measure(args.kinds[0], models)))
            return
        print("| kind | weights | KV cache | adapters | one step | total | measured of planned |")
        print("| --- | --- | --- | --- | --- | --- | --- |", flush=True)
        for kind in args.kinds:
            command = [sys.executable, "-m", "bench.memory_plan", kind, "--models", str(models), "--measure"]
            ended = subprocess.run(command, check=False, capture_output=True, text=True)
            print(_row(kind, ended), flush=True)


def _row(kind: str, ended: subprocess.CompletedProcess[str]) -> str:
    if ended.returncode:
        said = ended.stderr.strip().splitlines() or [f"exit status {ended.returncode}, as of SIGKILL if it is -9"]
        return f"| {kind} | failed: {said[-1]} | | | | | |"
    items: dict[str, list[float]] = json.loads(ended.stdout.splitlines()[-1])
    cells = [f"{planned / _MIB:,.1f} / {measured / _MIB:,.1f}" for planned, measured in items.values()]
    planned, measured = items["total"]
    return f"| {kind} | {' | '.join(cells)} | {100 * measured / planned:.1f} % |"


def make(kind: str, folder: Path) -> Path:
    """Write a checkpoint of random weights, with a tokenizer of words, unless it is there."""
    from tokenizers import Tokenizer, models

    place = folder / kind
    if place.exists():
        return place
    if kind in _SCHEMES:
        _quantized(kind, place)
    else:
        _by_transformers(kind, place)
    config = json.loads((place / "config.json").read_text())
    words = {f"w{token}": token for token in range(config["vocab_size"])}
    Tokenizer(models.WordLevel(words)).save(str(place / "tokenizer.json"))
    return place


def _quantized(kind: str, place: Path) -> None:
    """Write a Llama whose linear layers are quantized."""
    module, function, form = _SCHEMES[kind]
    sys.path.insert(0, str(_WRITERS))
    getattr(importlib.import_module(module), function)(place, form, std=0.02, **_QUANTIZED_SIZES)


def _by_transformers(kind: str, place: Path) -> None:
    """Write a checkpoint in bfloat16 of a class of transformers."""
    import torch
    import transformers

    model_class, config_class, changes = _SHAPES[kind]
    config = getattr(transformers, config_class)(**({} if kind == "gpt2" else _SIZES) | changes)
    torch.set_default_dtype(torch.bfloat16)
    getattr(transformers, model_class)(config).to(torch.bfloat16).save_pretrained(place)
    torch.set_default_dtype(torch.float32)


class _Memory(threading.Thread):
    """Reads this process's anonymous memory, and keeps the peak."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.peak = 0
        self.start()

    def run(self) -> None:
        while True:
            self.peak = max(self.peak, self.now())
            time.sleep(0.002)

    @staticmethod
    def now() -> int:
        """Return the bytes of this process's anonymous and shared memory, and of its files in memory, mapped or not."""
        fields = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
        anonymous, mapped = (int(fields[name].split()[0]) * 1024 for name in ("RssAnon", "RssShmem"))
        return anonymous + max(mapped, _files_in_memory())


def _files_in_memory() -> int:
    """Return the bytes of files without a name, in which adapters are kept."""
    total = 0
    for entry in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(OSError):  # closed since it was listed
            if str(entry.readlink()).startswith("/memfd:"):
                total += 512 * entry.stat().st_blocks
    return total


def measure(kind: str, models: Path) -> dict[str, tuple[int, int]]:
    """Run an engine; return the planned and the measured bytes of each item of the plan."""
    from octavo_engine.engine.startup import start_engine, worker_setup
    from octavo_engine.llm import LLM
    from octavo_engine.process_setup.freed_memory import use_one_heap

    use_one_heap()  # before the first thread, as the engine process does
    model, settings = _SETTINGS[kind]
    if model in _SHAPES or model in _SCHEMES:
        name = str(models / model)
        if not Path(name).exists():
            _in_another_process(f"make({model!r}, Path({str(models)!r}))")
    else:
        name = model
    memory, grown, found = _Memory(), dict[str, int](), dict[str, Any]()

    def counted(module: Any, function: str, then: Callable[[Any], None] = lambda _: None) -> None:
        """Count what a call of a function of the start takes, and keep its result."""
        called = getattr(module, function)

        def call(*args: Any, **options: Any) -> Any:
            gc.collect()
            before = memory.now()
            found[function] = called(*args, **options)
            then(found[function])
            grown[function] = memory.now() - before
            return found[function]

        setattr(module, function, call)

    counted(start_engine, "size_engine", lambda _: found.setdefault("base", memory.now()))
    counted(worker_setup, "load_model")
    counted(worker_setup, "_make_slots")
    counted(worker_setup, "_allocate", _write_all)
    steps = count_tokens_of_steps()
    engine = LLM(name, kv_cache_memory=_KV_CACHE, **_LIMITS, **settings)
    plan, loaded = found["size_engine"].plan, memory.now()
    adapters = _load_adapters(engine, name, settings)
    ready = memory.now()
    _answer(engine, plan.max_model_len, adapters)
    # A model with recurrent states computes the rest apart, since its state is kept at the last border of a block.
    require_largest_step(max(steps), _PROMPT - _PROMPT % engine.info.block_size)
    need = plan.need
    return {
        "weights": (need.weights, grown["load_model"]),
        "KV cache": (plan.kv_bytes, grown["_allocate"]),
        "adapters": (need.adapters, grown["_make_slots"] + ready - loaded),
        "step": (need.step, memory.peak - ready),
        "total": (need.fixed + plan.kv_bytes, memory.peak - found["base"]),
    }


def count_tokens_of_steps() -> list[int]:
    """Return a list to which each step adds its number of tokens, and let no step be cut for the time it takes."""
    from octavo_engine.core.step_cost import StepCost
    from octavo_engine.runner.worker import Worker

    cost, worker_class = cast("Any", StepCost), cast("Any", Worker)
    cost.tokens_within = lambda _cost, _seconds, budget: budget
    steps, forward = list[int](), Worker.forward

    def counted(worker: Any, plan: Any, **options: bool) -> Any:
        steps.append(plan.num_tokens)
        return forward(worker, plan, **options)

    worker_class.forward = counted
    return steps


def require_largest_step(tokens: int, prompt: int) -> None:
    """Raise RuntimeError unless the largest step that ran, of so many `tokens`, had all of a prompt's at once."""
    if tokens < prompt:
        raise RuntimeError(
            f"the largest step had {tokens:,} of the prompt's {prompt:,} tokens, so it took less memory than is "
            f"planned: the engine cut the prompt (see core/planner.py)"
        )


def _write_all(cache: Any) -> None:
    """Write each page of a KV cache; pages that nothing has written take no memory."""
    import torch

    for group in range(len(cache.groups)):
        for tensor in cache.tensors(group):
            tensor.view(torch.uint8).view(-1)[::512] = 0


def make_adapters(model: Path, folder: Path, count: int, rank: int) -> None:
    """Write adapters 0, 1, 2 ... of all linear layers of a checkpoint into `folder`."""
    import torch
    from safetensors import safe_open
    from safetensors.torch import save_file

    with safe_open(model / "model.safetensors", framework="pt") as file:
        names = [name for name in file.keys() if name.endswith("_proj.weight")]  # noqa: SIM118 - not a dictionary
        shapes = {name.removesuffix(".weight"): file.get_slice(name).get_shape() for name in names}
    for number in range(count):
        tensors, place = {}, folder / str(number)
        for name, (rows, columns) in shapes.items():
            tensors[f"base_model.model.{name}.lora_A.weight"] = torch.randn(rank, columns) * 0.01
            tensors[f"base_model.model.{name}.lora_B.weight"] = torch.randn(rows, rank) * 0.01
        place.mkdir()
        save_file(tensors, place / "adapter_model.safetensors")
        config = {"peft_type": "LORA", "r": rank, "lora_alpha": rank}
        (place / "adapter_config.json").write_text(json.dumps(config))


def _load_adapters(engine: Any, model: str, settings: Mapping[str, Any]) -> list[str]:
    """Load as many adapters as the settings allow, and return their names."""
    names = [str(number) for number in range(settings.get("max_cpu_loras", 0))]
    if names:
        with tempfile.TemporaryDirectory() as folder:
            _in_another_process(
                f"make_adapters(Path({model!r}), Path({folder!r}), {len(names)}, {settings['max_lora_rank']})"
            )
            for name in names:
                engine.load_adapter(name, f"{folder}/{name}")
    return names


def _in_another_process(call: str) -> None:
    """Call a function of this module in a process of its own, as it keeps memory."""
    code = f"from bench.memory_plan import *; {call}"
    subprocess.run([sys.executable, "-c", code], check=True, stdout=subprocess.DEVNULL)


def _answer(engine: Any, length: int, adapters: Sequence[str]) -> None:
    """Run the largest steps: a prompt that fills one, and as many requests as may run, with everything sampled."""
    from octavo_engine.sampling_params import SamplingParams

    chosen = random.Random(0)
    tokens = [[chosen.randrange(3, engine.info.vocab_size - 3) for _ in range(_PROMPT)]]
    shortened = [prompt[: _TOKENS // _SEQS - 4] for prompt in tokens * _SEQS]
    if not engine.info.generates:
        answers = [*engine.embed(tokens), *engine.embed(shortened)]
    else:
        greedy = SamplingParams(max_tokens=2, temperature=0.0, ignore_eos=True)
        drawn = {"temperature": 0.8, "top_p": 0.9, "min_p": 0.01, "logprobs": 20, "repetition_penalty": 1.2}
        everything = SamplingParams(max_tokens=3, frequency_penalty=0.1, ignore_eos=True, **drawn)
        each = [adapters[number % len(adapters)] for number in range(_SEQS)] if adapters else None
        first = adapters[0] if adapters else None
        answers = [
            *engine.generate(tokens, greedy, adapter=first),
            *engine.generate(shortened, everything, adapter=each),
        ]
    errors = [answer.error for answer in answers if answer.error]
    if errors:
        raise RuntimeError(f"of {len(answers)} requests of up to {length} tokens {len(errors)} failed: {errors[0]}")


if __name__ == "__main__":
    main()
