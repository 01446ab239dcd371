"""The tensor names of Nemotron-H's checkpoints, in which each layer has one norm and one module `mixer`."""

from __future__ import annotations

from octavo_engine.model.checkpoint.names import StoredNames, TensorNames

_NORM, _MIXER = "model.layers.{layer}.norm", "model.layers.{layer}.mixer"
NAMES = TensorNames(
    embedding="model.embeddings",
    before_mixer=_NORM,
    before_feed_forward=_NORM,
    norm="model.norm_f",
    query=f"{_MIXER}.q_proj",
    key=f"{_MIXER}.k_proj",
    value=f"{_MIXER}.v_proj",
    output=f"{_MIXER}.o_proj",
    attention=_MIXER,
    mamba=_MIXER,
    up=f"{_MIXER}.up_proj",
    down=f"{_MIXER}.down_proj",
    router=f"{_MIXER}.gate",
    correction_bias=f"{_MIXER}.gate.e_score_correction_bias",
    expert_gate=f"{_MIXER}.experts.{{expert}}.gate_proj",
    expert_up=f"{_MIXER}.experts.{{expert}}.up_proj",
    expert_down=f"{_MIXER}.experts.{{expert}}.down_proj",
    shared_up=f"{_MIXER}.shared_experts.up_proj",
    shared_down=f"{_MIXER}.shared_experts.down_proj",
    latent_in=f"{_MIXER}.fc1_latent_proj",
    latent_out=f"{_MIXER}.fc2_latent_proj",
)
STORED_NAMES = StoredNames(renamed=(("backbone.", "model."),), ignored=("mtp.",))
