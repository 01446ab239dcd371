"""BART (arXiv 1910.13461) and models of its shape as decoders alone, as transformers' `ForCausalLM` classes are."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

from octavo_engine.model.families.bart import BartShape, read_bart
from octavo_engine.model.families.family import Family
from octavo_engine.model.spec import PositionSpec

_COMPUTED = PositionSpec(sinusoidal=True, whole_range=False)
_ALIASES = {
    "d_model": "hidden_size",
    "decoder_layers": "num_hidden_layers",
    "decoder_attention_heads": "num_attention_heads",
    "activation_function": "hidden_act",
    "decoder_vocab_size": "vocab_size",
}


def _family(
    architecture: str, model_type: str, shape: BartShape, layers: int = 12, size: int = 1024, **defaults: Any
) -> Family:
    sizes = {"num_hidden_layers": layers, "hidden_size": size, "decoder_ffn_dim": 4 * size, "num_attention_heads": 16}
    common = {"vocab_size": 50265, "max_position_embeddings": 1024, "hidden_act": "gelu", "eos_token_id": 2}
    read = partial(read_bart, architecture, shape)
    fields = {**sizes, **common, "tie_word_embeddings": True, **defaults}
    return Family(architecture=architecture, model_type=model_type, read=read, aliases=_ALIASES, defaults=fields)


_BART, _PEGASUS = BartShape(), BartShape(norms_first=True, norm_of_input=None, positions=_COMPUTED)
_UNSHIFTED = PositionSpec()
BART_DECODERS = (
    _family("BartForCausalLM", "bart", _BART),
    _family("MBartForCausalLM", "mbart", BartShape(norms_first=True)),
    _family("MvpForCausalLM", "mvp", _BART, vocab_size=50267),
    _family(
        "PLBartForCausalLM",
        "plbart",
        _BART,
        layers=6,
        size=768,
        num_attention_heads=12,
        vocab_size=50005,
        scale_embedding=True,
    ),
    _family("PegasusForCausalLM", "pegasus", _PEGASUS, eos_token_id=1),
    _family(
        "MarianForCausalLM",
        "marian",
        BartShape(norm_of_input=None, positions=_COMPUTED),
        vocab_size=58101,
        eos_token_id=0,
    ),
    _family("TrOCRForCausalLM", "trocr", replace(_BART, head="output_projection"), max_position_embeddings=512),
    _family(
        "BlenderbotForCausalLM",
        "blenderbot",
        replace(_PEGASUS, positions=_UNSHIFTED),
        layers=24,
        size=2560,
        num_attention_heads=32,
        vocab_size=8008,
        max_position_embeddings=128,
    ),
    _family(
        "BlenderbotSmallForCausalLM",
        "blenderbot-small",
        BartShape(norm_of_input="tokens", positions=_UNSHIFTED),
        layers=8,
        size=512,
        max_position_embeddings=512,
    ),
    _family(
        "BigBirdPegasusForCausalLM",
        "bigbird_pegasus",
        replace(_PEGASUS, positions=_UNSHIFTED, last_norm="layernorm_embedding"),
        layers=16,
        vocab_size=96103,
        max_position_embeddings=4096,
        hidden_act="gelu_new",
        eos_token_id=1,
        scale_embedding=True,
        use_bias=False,
    ),
)
