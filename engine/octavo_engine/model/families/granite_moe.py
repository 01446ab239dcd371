"""Granite 3's mixtures of experts, of IBM: Granite with experts in every layer.

GraniteMoeShared has a shared expert beside them, GraniteMoeSWA has attention sinks and sliding windows.
"""

from __future__ import annotations

from dataclasses import replace

from octavo_engine.model.checkpoint.names import TensorNames
from octavo_engine.model.families import granite, granite_swa, mixtures, reading
from octavo_engine.model.families.family import Family
from octavo_engine.model.fields import Fields
from octavo_engine.model.spec import ModelSpec, MoESpec, RouterSpec, SharedExpertSpec

_MOE, _SHARED = "model.layers.{layer}.block_sparse_moe", "model.layers.{layer}.shared_mlp"
NAMES = TensorNames(
    modules=(
        (".router", ".router.layer"),
        (".experts.gate_up_proj", ".input_linear.weight"),
        (".experts.down_proj", ".output_linear.weight"),
    ),
    router=f"{_MOE}.router.layer",
    expert_gate=f"{_MOE}.input_linear.weight",
    expert_up=f"{_MOE}.input_linear.weight",
    expert_down=f"{_MOE}.output_linear.weight",
    expert_layout="rows",
    shared_gate=f"{_SHARED}.input_linear",
    shared_up=f"{_SHARED}.input_linear",
    shared_down=f"{_SHARED}.output_linear",
)
DENSE_NAMES = TensorNames(gate=f"{_SHARED}.input_linear", up=f"{_SHARED}.input_linear", down=f"{_SHARED}.output_linear")
_NAMES_SWA = replace(
    NAMES,
    router=f"{_MOE}.router",
    expert_gate=f"{_MOE}.experts.gate_up_proj",
    expert_up=f"{_MOE}.experts.gate_up_proj",
    expert_down=f"{_MOE}.experts.down_proj",
)


def experts(fields: Fields) -> MoESpec:
    """Return the experts of a layer, with a shared one if `shared_intermediate_size` is not 0."""
    width = fields.integer("shared_intermediate_size", 0, 1 << 22, default=0)
    shared = SharedExpertSpec(mlp=reading.mlp(fields, intermediate_size=width)) if width else None
    return mixtures.experts(fields, RouterSpec(), count="num_local_experts", size="intermediate_size", shared=shared)


def _read(fields: Fields, architecture: str) -> ModelSpec:
    mixers = (granite.mixer(fields),) * reading.num_layers(fields)
    return granite.model(fields, architecture, mixers, experts(fields), names=NAMES)


def _read_swa(fields: Fields) -> ModelSpec:
    mixers = granite_swa.mixers_with_windows(fields)
    return granite.model(fields, GRANITE_MOE_SWA.architecture, mixers, experts(fields), names=_NAMES_SWA)


DEFAULTS = {
    **granite.DEFAULTS,
    "rms_norm_eps": 1e-6,
    "max_position_embeddings": 2048,
    "num_local_experts": 8,
    "num_experts_per_tok": 2,
    "eos_token_id": 2,
}
NULLABLE = frozenset({"attention_multiplier"})
"""With null, transformers would take another scale than the default."""
GRANITE_MOE: Family = Family(
    architecture="GraniteMoeForCausalLM",
    model_type="granitemoe",
    read=lambda fields: _read(fields, GRANITE_MOE.architecture),
    defaults=DEFAULTS,
    nullable=NULLABLE,
)
GRANITE_MOE_SHARED: Family = Family(
    architecture="GraniteMoeSharedForCausalLM",
    model_type="granitemoeshared",
    read=lambda fields: _read(fields, GRANITE_MOE_SHARED.architecture),
    defaults=DEFAULTS,
    nullable=NULLABLE,
)
GRANITE_MOE_SWA = Family(
    architecture="GraniteMoeSWAForCausalLM",
    model_type="granitemoe_swa",
    read=_read_swa,
    defaults={**DEFAULTS, "sliding_window": 128},
    nullable=NULLABLE,
)
