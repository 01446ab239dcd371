"""The tensor names of Mistral Large 4's checkpoints; files that transformers writes have the published names."""

from __future__ import annotations

from octavo_engine.model.checkpoint.names import StoredNames, TensorNames

_LAYER, _ATTENTION = "layers.{layer}", "layers.{layer}.attention"
NAMES = TensorNames(
    embedding="tok_embeddings",
    rope_scales="lerope.alpha",
    norm="norm",
    head="output",
    before_mixer=f"{_LAYER}.attention_norm",
    before_feed_forward=f"{_LAYER}.ffn_norm",
    attention=_ATTENTION,
    query=f"{_ATTENTION}.wq",
    latent=f"{_ATTENTION}.wkv_a_with_mqa",
    latent_norm=f"{_ATTENTION}.kv_a_norm",
    latent_up=f"{_ATTENTION}.wkv_b",
    output=f"{_ATTENTION}.wo",
    query_scaling=f"{_ATTENTION}.ssmax_scaling",
    gate=f"{_LAYER}.feed_forward.w1",
    up=f"{_LAYER}.feed_forward.w3",
    down=f"{_LAYER}.feed_forward.w2",
    router=f"{_LAYER}.gate",
    expert_gate=f"{_LAYER}.experts.{{expert}}.w1",
    expert_up=f"{_LAYER}.experts.{{expert}}.w3",
    expert_down=f"{_LAYER}.experts.{{expert}}.w2",
    shared_gate=f"{_LAYER}.shared_experts.w1",
    shared_up=f"{_LAYER}.shared_experts.w3",
    shared_down=f"{_LAYER}.shared_experts.w2",
)


def stored_names(layers: int, *, rotates: bool) -> StoredNames:
    """Return which tensors are not read: those of indexers, of images and of multi-token prediction.

    Factors of RoPE frequencies are not read either if no layer `rotates`.
    """
    indexers = (f"layers.{layer}.attention.indexer." for layer in range(layers))
    images = ("vision_language_adapter.", "patch_merger.", "pre_mm_projector_norm.", "mtp_dspark.")
    return StoredNames(ignored=(*indexers, *images, *(() if rotates else ("lerope.",))))
