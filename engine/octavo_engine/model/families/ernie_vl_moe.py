"""The language model of ERNIE 4.5 VL, of Baidu: ERNIE 4.5 with two sets of experts in each mixture.

Tokens of text choose from the first set. The second, for images, follows it in the files and is not read.
"""

from __future__ import annotations

from dataclasses import replace

from octavo_engine.model.checkpoint.names import StoredNames, TensorNames
from octavo_engine.model.families import mixtures, reading
from octavo_engine.model.families.ernie_moe import ERNIE4_5_MOE, ernie_experts
from octavo_engine.model.families.family import Family
from octavo_engine.model.fields import Fields
from octavo_engine.model.spec import HeadSpec, ModelSpec

_MLP = "model.layers.{layer}.mlp"
_NAMES = TensorNames(
    correction_bias=f"{_MLP}.moe_statics.e_score_correction_bias",
    router_of_two_sets=True,
    buffers=(f"{_MLP}.gate.weight_1",),
)


def _read(fields: Fields) -> ModelSpec:
    norm, bias, count = reading.rms_norm(fields), fields.boolean("use_bias", False), reading.num_layers(fields)
    own = _of_text(fields)
    moe = ernie_experts(own)
    mixer = reading.interleaved(reading.attention(fields, qkv_bias=bias, output_bias=bias))
    by_type = mixtures.by_type(own, moe, first_dense=1, bias=bias, output_bias=bias)
    layers = mixtures.layers((mixer,) * count, by_type, norm)
    others = (
        f"{_MLP.replace('{layer}', str(layer))}.experts.{expert}."
        for layer, kind in enumerate(mixtures.layer_types(own, first_dense=1))
        for expert in range(moe.num_experts, 2 * moe.num_experts)
        if kind == "sparse"
    )
    return reading.model(
        fields,
        ERNIE4_5_VL_MOE.architecture,
        layers,
        norm=norm,
        head=HeadSpec(fields.boolean("tie_word_embeddings", True)),
        names=_NAMES,
        stored_names=StoredNames(ignored=tuple(others)),
    )


def _of_text(fields: Fields) -> Fields:
    """Return `fields` with the size of the experts of text, where a list has that and the size of those of images."""
    sizes = fields.values.get("moe_intermediate_size")
    if not isinstance(sizes, list):
        return fields
    if len(sizes) != 2:
        raise fields.wrong("moe_intermediate_size", sizes, "is not two sizes, of experts of text and of images")
    return replace(fields, values={**fields.values, "moe_intermediate_size": sizes[0]})


ERNIE4_5_VL_MOE = Family(
    architecture="Ernie4_5_VLMoeTextForCausalLM",
    model_type="ernie4_5_vl_moe_text",
    read=_read,
    defaults={**ERNIE4_5_MOE.defaults, "moe_intermediate_size": [1536, 512]},
)
