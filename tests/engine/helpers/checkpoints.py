"""Small random checkpoints made by Hugging Face transformers, which is the reference for all results."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

SIZES = {
    "vocab_size": 131,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 3,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
LLAMA3_ROPE = {
    "rope_type": "llama3",
    "rope_theta": 10000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
CONFIGURATIONS: dict[str, dict[str, Any]] = {
    "tied": {"tie_word_embeddings": True},
    "untied": {"tie_word_embeddings": False},
    "gqa1": {"num_key_value_heads": 8},
    "gqa4": {"num_key_value_heads": 2},
    "gqa8": {"num_key_value_heads": 1},
    "head_dim": {"head_dim": 24, "num_key_value_heads": 4},
    "attention_bias": {"attention_bias": True},
    "mlp_bias": {"mlp_bias": True},
    "llama3_rope": {"rope_parameters": LLAMA3_ROPE},
    "linear_rope": {"rope_parameters": {"rope_type": "linear", "rope_theta": 500.0, "factor": 4.0}},
    "gelu": {"hidden_act": "gelu_pytorch_tanh"},
    "norm_eps": {"rms_norm_eps": 0.3},
}
UNEVEN: dict[str, Any] = {
    "hidden_size": 72,
    "num_attention_heads": 9,
    "num_key_value_heads": 3,
    "intermediate_size": 110,
    "attention_bias": True,
}
"""SmolLM2's heads, and an intermediate size that 2, 3 and 4 ranks can divide neither evenly nor by 16."""


def reference_model(family: str = "Llama", *, std: float = 0.25, **changes: Any) -> Any:
    """Return a Llama, or a model of another family, in float32 whose every weight matters: norms and biases are random.

    `changes`: of SIZES; `...` leaves a field out. `std`: of matrices other than embeddings; where it is large, layers
    drown what tokens are embedded as. Older families call their class LMHeadModel, those of images as well as text
    ForConditionalGeneration.
    """
    import transformers

    torch.manual_seed(1234)
    kinds = ("ForCausalLM", "LMHeadModel", "ForConditionalGeneration")
    model_class = next(getattr(transformers, family + kind) for kind in kinds if hasattr(transformers, family + kind))
    fields = {name: value for name, value in {**SIZES, **changes}.items() if value is not ...}
    model = model_class(model_class.config_class(**fields)).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith("bias"):
                parameter.normal_(std=1.2 * std)
            elif (
                "norm" in (own := ".".join(name.split(".")[-3:]).lower())
                or ".ln_" in own
                or own.endswith(("states_scale", "residual_scale"))
            ):  # DBRX has norms around attention, Zaya factors of the residual stream
                parameter.uniform_(0.5, 1.5)
            else:
                parameter.normal_(std=0.25 if "embed" in name else std)
        for name, buffer in model.named_buffers():
            if name.endswith(("correction_bias", "expert_bias", "balancing_biases")):
                buffer.normal_(std=0.2)
            elif name.endswith("tid2eid"):
                chances = torch.rand(len(buffer), model.config.n_routed_experts)
                buffer.copy_(chances.argsort(dim=-1)[:, : buffer.shape[1]])
    return model


def _is_computed(name: str, parameter: Any) -> bool:
    """Return True for sinusoidal positions: transformers computes them where no file holds other ones."""
    return ".embed_positions." in name and not parameter.requires_grad


_UNREAD_INDEXERS = ("minimax_m3", "mistral_large4", "qwen4_exp")


def num_parameters(model: Any) -> int:
    """Return the number of learnt parameters: what makes or corrects a router's choice are buffers in some families.

    Those of an indexer that nothing reads in contexts this short do not count (MiniMax M3, Mistral Large 4, Qwen4 Exp),
    nor those of experts that return their input (LongCat), of attention to an encoder (BART as a decoder), or of images
    (Chameleon).
    """
    ends = ("correction_bias", "expert_bias", "balancing_biases", "tid2eid")
    corrections = (buffer for name, buffer in model.named_buffers() if name.endswith(ends))
    unread = ".self_attn.indexer." if model.config.model_type.startswith(_UNREAD_INDEXERS) else "no such module"
    learnt = (
        parameter
        for name, parameter in model.named_parameters()
        if not _is_computed(name, parameter)
        and not any(part in name for part in (unread, ".encoder_attn", "bert.pooler.", ".vqmodel."))
    )
    zero = getattr(model.config, "zero_expert_num", 0)
    idle = (p[:zero].numel() for name, p in model.named_parameters() if name.endswith("experts.gate_up_proj"))
    return sum(tensor.numel() for tensor in (*learnt, *corrections)) - sum(idle)


def save(model: Any, directory: Path, *, shard_size: str = "5GB", dtype: torch.dtype = torch.float32) -> Path:
    """Save the model in Hugging Face layout, without a tokenizer, and return the folder."""
    model.to(dtype).save_pretrained(directory, max_shard_size=shard_size)
    model.float()
    return directory


def save_words(directory: Path, count: int) -> None:
    """Save a tokenizer of `count` words, each the name of its id, so that the text of an answer shows its tokens."""
    from tokenizers import Tokenizer, models

    words = {f"w{token}": token for token in range(count)}
    Tokenizer(models.WordLevel(words, unk_token="w0")).save(str(directory / "tokenizer.json"))


def save_smollm2(gguf: Path, directory: Path) -> Path:
    """Save the SmolLM2 of a GGUF file in Hugging Face layout, with tokenizer and chat template, in bfloat16."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    from tests.gguf_reading import quick_gguf

    with quick_gguf():
        model = AutoModelForCausalLM.from_pretrained(gguf.parent, gguf_file=gguf.name, dtype=torch.bfloat16)
        tokenizer = AutoTokenizer.from_pretrained(gguf.parent, gguf_file=gguf.name)
    # transformers would not save what it has read from a GGUF file, though it is quantized no longer.
    del model.config.quantization_config
    model.hf_quantizer = None
    model.save_pretrained(directory)
    tokenizer.save_pretrained(directory)
    return directory


def destinations(decoder: Any) -> dict[str, torch.Tensor]:
    """Map each tensor that the decoder needs and copies to the view of a parameter that it fills."""
    needed = [tensor for tensor in decoder.tensors() if not tensor.optional]
    return {tensor.name: tensor.pieces[0].target for tensor in needed}
