"""Whole models: our answers in bfloat16 against transformers', and those of CUDA graphs against eager ones.

The bounds are measured: transformers computes the same checkpoint in float32, which counts as exact, and in bfloat16.
Our errors may be only somewhat larger than those of transformers in bfloat16. Both are given our answer, token by
token. All checks are large, as transformers alone takes seconds to import; test_gpu_check.py runs one of them without a
GPU.
"""

from __future__ import annotations

import gc
import logging
import math
import random
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch

from bench.gpu import shapes
from bench.gpu.shapes import Shape, write_checkpoint, write_tokenizer
from octavo_engine import LLM, SamplingParams
from octavo_engine.attention.triton import interpreted
from octavo_engine.errors import ConfigurationError, ModelLoadError
from octavo_engine.llm import Completion
from tests.kernels.check import Build, Check, NotCheckedError

_SETTINGS: dict[str, Any] = {
    "max_num_seqs": 16,
    "max_num_batched_tokens": 128,
    "max_model_len": 1024,
    "num_kv_blocks": 1024,
}
LENGTHS = (1, 2, 15, 16, 17, 33, 100, 127, 128, 129, 400, 700)
"""Tokens of the prompts: block boundaries, chunk boundaries, one token."""


@dataclass(frozen=True)
class Tiny:
    """A model whose mixers are no plain attention, made by transformers, of sizes that the kernels have tiles for."""

    name: str
    family: str
    """As transformers names its classes, without `Config` and `ForCausalLM`."""
    changes: dict[str, Any]
    vocab: int = 512
    experts: int = 0

    def write(self, directory: Path) -> Path:
        """Save it with random weights, so large that tokens differ in likelihood, and norms around 1."""
        import transformers

        sizes = {"vocab_size": self.vocab, "hidden_size": 64, "intermediate_size": 96, "num_attention_heads": 4}
        options = {**sizes, "num_hidden_layers": 2, "num_key_value_heads": 4, **self.changes}
        config = getattr(transformers, f"{self.family}Config")(**options)
        torch.manual_seed(0)
        model = getattr(transformers, f"{self.family}ForCausalLM")(config)
        for name, parameter in model.named_parameters():
            torch.nn.init.normal_(parameter, mean=1.0 if "norm" in name else 0.0, std=0.1)
        model.to(torch.bfloat16).save_pretrained(directory)
        write_tokenizer(self.vocab, directory / "tokenizer.json")
        return directory


TINY_QWEN3_NEXT = Tiny(
    "tiny-qwen3-next",
    "Qwen3Next",
    {
        "layer_types": ["linear_attention", "full_attention"],
        "num_key_value_heads": 2,
        "head_dim": 16,
        "linear_num_key_heads": 2,
        "linear_num_value_heads": 4,
        "linear_key_head_dim": 32,
        "linear_value_head_dim": 32,
        "mlp_only_layers": [0, 1],
    },
)
TINY_DEEPSEEK = Tiny(
    "tiny-deepseek",
    "DeepseekV3",
    {
        "q_lora_rank": 48,
        "kv_lora_rank": 64,
        "qk_rope_head_dim": 32,
        "qk_nope_head_dim": 32,
        "v_head_dim": 32,
        "first_k_dense_replace": 2,
    },
)


@dataclass(frozen=True)
class Errors:
    """The differences of log probabilities from the exact ones, over all places of all answers."""

    rms: float
    largest: float
    agreement: float
    """Share of the places where the likeliest token is the exact one."""


def generate(
    folder: Path,
    shape: Shape | Tiny,
    device: torch.device,
    lengths: Sequence[int],
    count: int,
    *,
    adapters: Sequence[str | None] | None = None,
    **settings: Any,
) -> list[Completion]:
    """Greedy answers of `count` tokens to random prompts, always the same ones, all in one batch.

    `adapters`: the name of each prompt's, None for the base.
    """
    choose = random.Random(7)
    prompts = [choose.choices(range(shape.vocab), k=length) for length in lengths]
    if device.type == "cpu" and interpreted():  # whose products of bfloat16 are wrong
        settings = {"attention_backend": "triton", "dtype": "float32", **settings}
    try:
        llm = LLM(str(folder), device=device.type, **{**_SETTINGS, **settings})
    except (ModelLoadError, ConfigurationError) as error:
        raise NotCheckedError(f"not supported yet: {error}") from None
    try:
        greedy = SamplingParams(max_tokens=count, temperature=0.0, ignore_eos=True, logprobs=20)
        answers = llm.generate(prompts, greedy, adapter=adapters)
    finally:
        llm.close()
        del llm
        give_back(device)
    for answer in answers:
        assert answer.error is None, answer.error
        assert len(answer.token_ids) == len(answer.logprobs) == count
    return answers


def write_model(model: Shape | Tiny, folder: Path, device: torch.device) -> Path:
    return model.write(folder) if isinstance(model, Tiny) else write_checkpoint(model, folder, device, std=0.05)


def give_back(device: torch.device) -> None:
    gc.collect()
    if device.type == "cuda":
        torch.cuda.empty_cache()


@torch.inference_mode()
def _reference(folder: Path, device: torch.device, dtype: torch.dtype, answers: list[Completion]) -> list[torch.Tensor]:
    """transformers' log probabilities [tokens, vocabulary] at the places of each answer, float32 on the CPU."""
    from transformers import AutoConfig, AutoModelForCausalLM, Mxfp4Config

    mxfp4 = getattr(AutoConfig.from_pretrained(folder), "quantization_config", None) is not None
    options = {"quantization_config": Mxfp4Config(dequantize=True)} if mxfp4 else {}  # else kernels may be fetched
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=dtype, **options).to(device).eval()
    found = []
    for answer in answers:
        ids = torch.tensor([[*answer.prompt_token_ids, *answer.token_ids]], device=device)
        logits = model(ids, logits_to_keep=len(answer.token_ids) + 1).logits[0, :-1]
        found.append(torch.log_softmax(logits.float(), dim=-1).cpu())
    del model
    give_back(device)
    return found


_OTHER_EXPERTS = 0.01
"""Share of the numbers of a model with experts that are not compared: where two experts are nearly as good, bfloat16
chooses the other one at some places, at others than transformers', and the answer there is off by a whole expert."""


def _errors(
    values: list[torch.Tensor], exact: list[torch.Tensor], same: list[torch.Tensor], without: float = 0.0
) -> Errors:
    """Compare `values` with `exact` at the same tokens, without the worst share `without`.

    `same` says where the likeliest token is the exact one.
    """
    difference = torch.cat([(a - b).flatten() for a, b in zip(values, exact, strict=True)]).double()
    assert bool(difference.isfinite().all())
    difference = difference.abs().sort().values[: math.ceil((1 - without) * len(difference))]
    agreement = torch.cat(same).double().mean()
    return Errors(float(difference.pow(2).mean().sqrt()), float(difference.abs().max()), float(agreement))


def parity(shape: Shape | Tiny, lengths: Sequence[int], count: int, device: torch.device) -> str:
    """Our bfloat16 is about as near to float32 as transformers' own bfloat16."""
    with tempfile.TemporaryDirectory() as temporary:
        folder = write_model(shape, Path(temporary), device)
        answers = generate(folder, shape, device, lengths, count)
        exact = _reference(folder, device, torch.float32, answers)
        theirs = _reference(folder, device, torch.bfloat16, answers)
    tokens = [
        torch.tensor([[entry.token_id, *(token for token, _ in entry.top)] for entry in answer.logprobs])
        for answer in answers
    ]
    ours = [
        torch.tensor([[entry.logprob, *(value for _, value in entry.top)] for entry in answer.logprobs])
        for answer in answers
    ]
    expected = [values.gather(1, ids) for values, ids in zip(exact, tokens, strict=True)]
    best = [values.argmax(-1) for values in exact]
    without = _OTHER_EXPERTS if shape.experts else 0.0
    our_errors = _errors(ours, expected, [ids[:, 0] == top for ids, top in zip(tokens, best, strict=True)], without)
    their_errors = _errors(
        [values.gather(1, ids) for values, ids in zip(theirs, tokens, strict=True)],
        expected,
        [values.argmax(-1) == top for values, top in zip(theirs, best, strict=True)],
        without,
    )
    said = f"ours {our_errors}, transformers' {their_errors}"
    assert our_errors.rms <= 1.5 * their_errors.rms + 1e-3, said
    assert our_errors.largest <= 2 * their_errors.largest + 1e-2, said
    assert our_errors.agreement >= their_errors.agreement - 0.05, said
    less = torch.cat([values.amax(-1) - chosen[:, 0] for values, chosen in zip(exact, expected, strict=True)])
    missed = less.quantile(1 - without)
    assert float(missed) <= 4 * their_errors.largest + 1e-2, f"a token was chosen that is {float(missed)} less likely"
    return (
        f"logprob error rms {our_errors.rms:.4f} (transformers' bfloat16 {their_errors.rms:.4f}), largest "
        f"{our_errors.largest:.3f} ({their_errors.largest:.3f}), top-1 agreement {our_errors.agreement:.3f} "
        f"({their_errors.agreement:.3f})"
    )


@contextmanager
def graph_messages() -> Iterator[list[str]]:
    """Collect the log's messages about captured graphs, and about those that are not used."""
    heard: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: heard.append(record.getMessage())  # type: ignore[method-assign]
    handler.addFilter(lambda record: record.getMessage().startswith("CUDA graphs"))
    logger = logging.getLogger("octavo_engine.runner")
    level = logger.level
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    try:
        yield heard
    finally:
        logger.removeHandler(handler)
        logger.setLevel(level)


def _graphs_equal_eager(shape: Shape | Tiny, dtype: str, device: torch.device, tokens: int = 128) -> str:
    """The same answers with CUDA graphs as without, token for token, but for ties; steps have at most so many tokens.

    Steps with prompts are graphs as well, except where layers keep a state or have a latent cache.

    A graph is padded to a batch of its ladder, for which cuBLAS may choose another kernel: bfloat16 then rounds
    otherwise, and of two tokens that are equally likely but for that the other one may win. Each of both may be as far
    from the exact answers as `parity` allows, and so from each other twice as far.
    """
    if device.type != "cuda":
        raise NotCheckedError("CUDA graphs need a GPU")
    with tempfile.TemporaryDirectory() as temporary:
        folder = write_model(shape, Path(temporary), device)
        with graph_messages() as captured:
            settings = {"dtype": dtype, "max_num_batched_tokens": tokens, "cudagraph_mode": "full"}
            graphs = generate(folder, shape, device, LENGTHS, 48, **settings)
        with graph_messages() as none:
            eager = generate(folder, shape, device, LENGTHS, 48, **settings, enforce_eager=True)
        slack = 1e-3 if dtype == "float32" else 2 * (2 * their_largest(folder, device, eager) + 1e-2)
    mixed = "" if isinstance(shape, Tiny) else f"up to {tokens} tokens captured"
    assert captured and all(mixed in message for message in captured), f"CUDA graphs of other steps: {captured}"
    assert not none, f"with --enforce-eager: {none}"
    equal = count_equal(graphs, eager, slack)
    return f"{equal} of {sum(len(each.token_ids) for each in eager)} tokens equal, but for ties of {slack:.3g}"


def count_equal(answers: Sequence[Completion], expected: Sequence[Completion], slack: float) -> int:
    """Return the number of equal tokens before each answer's first other one, which must be as likely but for `slack`.

    AssertionError if the likeliest tokens' log probabilities up to there differ by more than `slack`, or the tokens do.
    """
    equal = 0
    for one, other in zip(answers, expected, strict=True):
        for place, (a, b) in enumerate(zip(one.logprobs, other.logprobs, strict=True)):
            assert abs(a.top[0][1] - b.top[0][1]) <= slack, f"place {place}: {a} instead of {b}"
            if a.token_id == b.token_id:
                equal += 1
                continue
            gap = b.logprob - dict(b.top).get(a.token_id, float("-inf"))
            assert gap <= slack, f"place {place}: token {a.token_id} instead of {b.token_id}, {gap} less likely"
            break  # from here on they answer different things
    return equal


def their_largest(folder: Path, device: torch.device, answers: list[Completion]) -> float:
    """Return the largest error of transformers' bfloat16 against its float32, at these answers' likeliest tokens."""
    tops = [torch.tensor([[token for token, _ in entry.top] for entry in answer.logprobs]) for answer in answers]
    exact, theirs = (
        [values.gather(1, ids) for values, ids in zip(_reference(folder, device, dtype, answers), tops, strict=True)]
        for dtype in (torch.float32, torch.bfloat16)
    )
    return max(float((a - b).abs().max()) for a, b in zip(exact, theirs, strict=True))


def _parity_check(shape: Shape | Tiny) -> Check:
    return Check(f"parity_{shape.name}", partial(parity, shape, LENGTHS, 48), large=True)


CHECKS = [
    *(
        _parity_check(model)
        for model in (
            shapes.LLAMA_1B,
            shapes.QWEN3_06B,
            shapes.TINY_LLAMA,
            shapes.TINY_QWEN3,
            shapes.TINY_GPT_OSS,
            TINY_QWEN3_NEXT,
            TINY_DEEPSEEK,
        )
    ),
    Check("graphs_bfloat16", partial(_graphs_equal_eager, shapes.LLAMA_1B, "bfloat16"), large=True, alone=True),
    Check(
        "graphs_of_512_tokens",
        partial(_graphs_equal_eager, shapes.LLAMA_1B, "bfloat16", tokens=512),
        large=True,
        alone=True,
    ),
    Check(
        "graphs_of_512_tokens_float32",
        partial(_graphs_equal_eager, shapes.LLAMA_1B, "float32", tokens=512),
        large=True,
        alone=True,
    ),
    Check("graphs_float32", partial(_graphs_equal_eager, shapes.LLAMA_1B, "float32"), large=True, alone=True),
    *(
        Check(f"graphs_{model.name}", partial(_graphs_equal_eager, model, "float32"), large=True, alone=True)
        for model in (TINY_QWEN3_NEXT, TINY_DEEPSEEK)
    ),
]
BUILDS: list[Build] = []
