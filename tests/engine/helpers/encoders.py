"""Small random encoders of classes of transformers, and prompts for them."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import torch
import transformers
from checkpoints import save_words
from safetensors.torch import save_file

WORDS = 131

SIZES: dict[str, Any] = {
    "vocab_size": WORDS,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "max_position_embeddings": 130,
    "pad_token_id": 1,
}

DISTIL: dict[str, Any] = {
    "vocab_size": WORDS,
    "dim": 64,
    "hidden_dim": 96,
    "n_layers": 3,
    "n_heads": 4,
    "max_position_embeddings": 130,
}

MODERN = {**SIZES, "local_attention": 16, "global_attn_every_n_layers": 2, "cls_token_id": 0, "sep_token_id": 2}
MODERN |= {"bos_token_id": 0, "eos_token_id": 2}

ROTATING = {**SIZES, "rope_parameters": {"rope_type": "default", "rope_theta": 100.0}}

CASES: dict[str, dict[str, Any]] = {
    "Bert": SIZES,
    "Ernie": {**SIZES, "hidden_act": "relu", "use_task_id": True},
    "Electra": {**SIZES, "embedding_size": 40},
    "MPNet": {**SIZES, "max_position_embeddings": 132, "type_vocab_size": 2},
    "Albert": {**SIZES, "embedding_size": 24},
    "Gte": {**ROTATING, "type_vocab_size": 0},
    "NomicBert": ROTATING,
    "Gemma3Text": {
        **ROTATING,
        "head_dim": 16,
        "num_key_value_heads": 1,
        "sliding_window": 16,
        "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
        "use_bidirectional_attention": True,
        "rope_parameters": None,
    },
    "EuroBert": {**ROTATING, "num_key_value_heads": 2, "attention_bias": True, "classifier_pooling": "bos"},
    "Ultrabert": {
        **ROTATING,
        "num_key_value_heads": 2,
        "sliding_window": 9,
        "mlp_bias": True,
        "rope_parameters": {
            "sliding_attention": {"rope_type": "default", "rope_theta": 100.0},
            "full_attention": {"rope_type": "linear", "factor": 2.0, "rope_theta": 3000.0},
        },
    },
    "JinaEmbeddingsV3": {**ROTATING, "type_vocab_size": 2},
    "Roberta": {**SIZES, "type_vocab_size": 1},
    "XLMRoberta": {**SIZES, "type_vocab_size": 1, "hidden_act": "gelu_new"},
    "Camembert": SIZES,
    "DistilBert": {**DISTIL, "sinusoidal_pos_embds": True},
    "ModernBert": {**MODERN, "norm_bias": True, "attention_bias": True, "mlp_bias": True},
}

VECTORS = {
    **CASES,
    "EmbeddingGemma2Text": {
        **ROTATING,
        "num_key_value_heads": 2,
        "head_dim": 12,
        "global_head_dim": 20,
        "num_global_key_value_heads": 1,
        "sliding_window": 9,
        "sliding_window_pattern": 2,
        "hidden_size_per_layer_input": 10,
        "embedding_dim": 36,
        "attention_bias": True,
        "rope_parameters": None,
    },
}
"""Those with classes, and one without."""

LENGTHS = (40, 2, 127, 7, 96, 90, 20, 128, 33, 3)
"""The longest fill the context, or a step that holds no more."""

SETTINGS: dict[str, Any] = {"device": "cpu", "dtype": "float32", "max_num_batched_tokens": 160, "max_num_seqs": 6}


def saved(name: str, directory: Path, **changes: Any) -> Any:
    """A random model of a class of transformers, every weight of which matters, with a tokenizer of words."""
    torch.manual_seed(11)
    kind = getattr(transformers, name)
    stem = next(stem for stem in sorted(VECTORS, key=len, reverse=True) if name.startswith(stem))
    model = kind(kind.config_class(**{**VECTORS[stem], **changes})).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(std=0.3)
        for key, buffer in model.named_buffers():
            if key.endswith("layer_scalar"):
                buffer.fill_(0.7)
    model.save_pretrained(directory)
    save_words(directory, WORDS)
    return model


JINA_NAMES = (
    (".intermediate.", ".mlp."),
    (".output.dense.", ".mlp.wo."),
    (".output.LayerNorm.", ".mlp.layernorm."),
    (".attention.mlp.wo.", ".attention.output.dense."),
    (".attention.mlp.layernorm.", ".attention.output.LayerNorm."),
)
"""Parts of names in BERT, and what Jina Embeddings v2 has for them."""


class GatedByGelu(torch.nn.Module):
    """The first part of its feed-forward."""

    def __init__(self, hidden: int, inner: int) -> None:
        super().__init__()
        self.gated_layers = torch.nn.Linear(hidden, 2 * inner, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        gate, up = self.gated_layers(x).chunk(2, dim=-1)
        return torch.nn.functional.gelu(gate) * up


def jina_bert(directory: Path) -> Any:
    """A random BERT with gates, whose six heads attend with ALiBi, saved as Jina Embeddings v2 is."""
    model = saved("BertModel", directory, hidden_size=72, num_attention_heads=6)
    model.embeddings.position_embeddings.weight.data.zero_()
    for layer in model.encoder.layer:
        layer.intermediate = GatedByGelu(72, 96)
        torch.nn.init.normal_(layer.intermediate.gated_layers.weight, std=0.3)
    tensors = {name: each for name, each in model.state_dict().items() if "position" not in name}
    for there, here in JINA_NAMES:
        tensors = {name.replace(there, here): each for name, each in tensors.items()}
    save_file(tensors, directory / "model.safetensors")
    config = json.loads((directory / "config.json").read_text())
    own = {"position_embedding_type": "alibi", "feed_forward_type": "geglu", "architectures": ["JinaBertForMaskedLM"]}
    (directory / "config.json").write_text(json.dumps({**config, **own}))
    model.register_forward_pre_hook(_with_alibi, with_kwargs=True)
    return model


def _with_alibi(model: Any, args: tuple[torch.Tensor], kwargs: dict[str, Any]) -> Any:
    """The biases of six heads, to both sides alike."""
    places = torch.arange(args[0].shape[1])
    slopes = torch.tensor([2.0**-exponent for exponent in (2, 4, 6, 8, 1, 3)])
    return args, {"attention_mask": -slopes[None, :, None, None] * (places[:, None] - places).abs()}


def prompts_of(*lengths: int) -> list[list[int]]:
    """Without the token of padding, which transformers counts no position for."""
    draw = random.Random(3)
    return [[draw.randrange(2, WORDS) for _ in range(length)] for length in lengths]
