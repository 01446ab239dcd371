"""The tensor names of a family's checkpoints: one name, or pattern of names, for each role in a decoder."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, fields, replace
from typing import Literal

ExpertLayout = Literal["interleaved columns", "columns", "rows", "apart"]
"""The layout of a tensor that holds all experts of a layer. `interleaved columns`: each expert is transposed, and
columns of gate and up alternate (gpt-oss). `columns`: transposed, gate's columns before up's (Llama 4). `rows`: like a
linear's weight, gate's rows before up's (Granite). `apart`: gate, up and down have a tensor each (Step 3.7)."""


@dataclass(frozen=True, slots=True)
class QKVLayout:
    """The order of rows where one tensor has query, key and value: `groups` times some heads of each, in `order`.

    It also describes other projections that share a tensor.
    """

    groups: int = 1
    """The number of groups of heads; all have the same number of query heads and of KV heads."""
    order: tuple[int, ...] = (0, 1, 2, 3)
    """The order within a group: 0 is the query, 1 the key, 2 the value, 3 the output gate.

    Of a tensor that has none of these projections, the rows of one follow those of another.
    """


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorNames:
    """The names of a model's tensors, one for each role in the decoder; the defaults are Llama's.

    A name is a module's, to which `.weight` and `.bias` are appended, unless its comment says that it is a full name.
    `{layer}`, `{sublayer}`, `{head}` and `{expert}` stand for numbers. Roles with the same name are stored as one
    tensor, one after another: Phi-3's query, key and value are the rows of `qkv_proj`. If the names of experts have no
    `{expert}`, one tensor holds all experts of a layer, laid out as `expert_layout` says, and the names are full ones.
    If then gate and up have different names and the layout is not `apart`, each of the three tensors has the rows of
    one expert after another's, down transposed (DBRX).
    """

    qkv_layout: QKVLayout = QKVLayout()
    """The layout if some of the roles `query`, `key`, `value` and `output_gate` share a name."""
    delta_layout: QKVLayout = QKVLayout(order=(0, 1, 2, 3, 4, 5))
    """The layout of Gated DeltaNet's projections: query, key, value, gate, strength, decay."""
    transposed: bool = False
    """Whether the weights of layers' linears are stored as [in, out]."""
    modules: tuple[tuple[str, str], ...] = ()
    """Parts of the names of transformers' modules, which adapters and some files use, each with the part that published
    checkpoints have instead."""
    separate: tuple[tuple[str, tuple[str, ...]], ...] = ()
    """Ends of the names of projections that checkpoints have in one tensor and transformers as several modules, and the
    ends of these modules' names in the order of the rows."""
    buffers: tuple[str, ...] = ()
    """Full names of tensors in each layer that are not read: masks in old checkpoints, attention to an encoder."""

    sublayers: int = 1
    """The number of layers that share a number in names: `{layer}` is that number, `{sublayer}` the layer's index among
    them."""

    embedding: str = "model.embed_tokens"
    positions: str = "model.embed_positions"
    text_kinds: str = "model.token_type_embeddings"
    task_kinds: str = "model.task_type_embeddings"
    embedding_norm: str = "model.embed_norm"
    rope_scales: str = "model.rotary_emb.alpha"
    """The full name of the logarithms of the factors of RoPE's frequencies."""
    rope_table: str = "encoder.embed_positions.weight"
    """The full name of the sines of all positions, each row followed by the cosines."""
    embedding_in: str = "model.project_in"
    """The projection of token embeddings to the hidden size."""
    embedding_out: str = "model.project_out"
    """The projection of hidden states to the size of token embeddings."""
    norm: str = "model.norm"
    head: str = "lm_head"
    head_transform: str = "lm_head"
    """The module with the linear and the norm before the head."""

    vector_projection: str = "model.embedding_projection"
    """The projection of a text's pooled hidden states to its vector."""
    classifier: str = "score"
    """The linear that gives the logits of classes."""
    classifier_dense: str = "classifier.dense"
    """The linear before `classifier`."""
    classifier_norm: str = "classifier.norm"

    before_mixer: str = "model.layers.{layer}.input_layernorm"
    after_mixer: str = "model.layers.{layer}.post_attention_layernorm"
    """The default is the same as `before_feed_forward`'s: a layer reads the names of the norms that it has."""
    before_feed_forward: str = "model.layers.{layer}.post_attention_layernorm"
    after_feed_forward: str = "model.layers.{layer}.post_feedforward_layernorm"

    query: str = "model.layers.{layer}.self_attn.q_proj"
    key: str = "model.layers.{layer}.self_attn.k_proj"
    value: str = "model.layers.{layer}.self_attn.v_proj"
    output: str = "model.layers.{layer}.self_attn.o_proj"
    query_norm: str = "model.layers.{layer}.self_attn.q_norm"
    key_norm: str = "model.layers.{layer}.self_attn.k_norm"
    """The key's norm; with `{head}` if each head has weights of its own."""
    sinks: str = "model.layers.{layer}.self_attn.sinks"
    """The full name."""
    distance_terms: str = "encoder.relative_attention_bias"
    """The table of the terms for distances, which all layers share."""
    query_down: str = "model.layers.{layer}.self_attn.q_a_proj"
    query_latent_norm: str = "model.layers.{layer}.self_attn.q_a_layernorm"
    query_up: str = "model.layers.{layer}.self_attn.q_b_proj"
    latent: str = "model.layers.{layer}.self_attn.kv_a_proj_with_mqa"
    latent_norm: str = "model.layers.{layer}.self_attn.kv_a_layernorm"
    latent_up: str = "model.layers.{layer}.self_attn.kv_b_proj"
    splits_latent_up: bool = False
    """Whether files have `latent_key_up` and `latent_value_up` in place of `latent_up`: the rows of each head's key
    (without its rotated part), transposed, and of its value (GGUF)."""
    latent_key_up: str = "model.layers.{layer}.self_attn.k_b_proj"
    latent_value_up: str = "model.layers.{layer}.self_attn.v_b_proj"
    query_scaling: str = "model.layers.{layer}.self_attn.softmax_scaling"
    """The module with two numbers for each head, `.s` and `.b`."""
    rotated_norm: str = "model.layers.{layer}.self_attn.k_rope_only_layernorm"
    output_down: str = "model.layers.{layer}.attn.wo_a"
    """The projections of groups of heads before the output projection."""
    compressor: str = "model.layers.{layer}.attn.compressor"
    """The module's name, under which its tensors have fixed names."""
    indexer: str = "model.layers.{layer}.attn.indexer"
    """The module's name, under which its tensors have fixed names."""
    attention: str = "model.layers.{layer}.self_attn"
    """The module that contains scales of the KV cache and, in old checkpoints, RoPE's frequencies."""

    conv_input: str = "model.layers.{layer}.conv.in_proj"
    conv: str = "model.layers.{layer}.conv.conv"
    conv_output: str = "model.layers.{layer}.conv.out_proj"
    mamba: str = "model.layers.{layer}.mamba"
    """The module's name, under which its tensors have fixed names."""

    delta_net: str = "model.layers.{layer}.linear_attn"
    """The module's name, under which its tensors have fixed names."""
    delta_query: str = "model.layers.{layer}.linear_attn.in_proj_qkv"
    delta_key: str = "model.layers.{layer}.linear_attn.in_proj_qkv"
    delta_value: str = "model.layers.{layer}.linear_attn.in_proj_qkv"
    delta_gate: str = "model.layers.{layer}.linear_attn.in_proj_z"
    delta_strength: str = "model.layers.{layer}.linear_attn.in_proj_b"
    delta_decay: str = "model.layers.{layer}.linear_attn.in_proj_a"
    delta_query_conv: str = "model.layers.{layer}.linear_attn.conv1d"
    delta_key_conv: str = "model.layers.{layer}.linear_attn.conv1d"
    delta_value_conv: str = "model.layers.{layer}.linear_attn.conv1d"
    delta_norm: str = "model.layers.{layer}.linear_attn.norm"
    delta_output: str = "model.layers.{layer}.linear_attn.out_proj"

    lightning_query: str = "model.layers.{layer}.self_attn.qkv_proj"
    """The query's projection, with key and value laid out as `qkv_layout` says."""
    lightning_key: str = "model.layers.{layer}.self_attn.qkv_proj"
    lightning_value: str = "model.layers.{layer}.self_attn.qkv_proj"
    lightning_gate: str = "model.layers.{layer}.self_attn.output_gate"
    lightning_norm: str = "model.layers.{layer}.self_attn.norm"
    lightning_output: str = "model.layers.{layer}.self_attn.out_proj"

    shared_block: str = "model.layers.{layer}.shared_transformer"
    """The module's name, under which its tensors have fixed names."""
    adapters: str = "model.layers.{layer}.adapters"
    """The module with the low-rank weights that a layer adds to those of its shared block."""
    block_gate: str = "model.layers.{layer}.shared_transformer.feed_forward.gate_up_proj"
    block_up: str = "model.layers.{layer}.shared_transformer.feed_forward.gate_up_proj"
    block_output: str = "model.layers.{layer}.linear"

    gate: str = "model.layers.{layer}.mlp.gate_proj"
    up: str = "model.layers.{layer}.mlp.up_proj"
    """The projection to the intermediate size; the only one for a feed-forward without a gate."""
    down: str = "model.layers.{layer}.mlp.down_proj"
    gate_up_layout: QKVLayout | None = None
    """The layout if gate and up share a name; None: the gate's rows come first."""
    output_norm: str = "model.layers.{layer}.self_attn.attn_sub_norm"
    inner_norm: str = "model.layers.{layer}.mlp.ffn_sub_norm"
    output_gate: str = "model.layers.{layer}.self_attn.gate_proj"
    gate_bias: str = "model.layers.{layer}.self_attn.gate_bias"
    """The full name."""
    per_layer_embedding: str = "model.embed_tokens_per_layer"
    per_layer_projection: str = "model.per_layer_model_projection"
    per_layer_projection_norm: str = "model.per_layer_projection_norm"
    per_layer_gate: str = "model.layers.{layer}.per_layer_input_gate"
    per_layer_output: str = "model.layers.{layer}.per_layer_projection"
    per_layer_norm: str = "model.layers.{layer}.post_per_layer_input_norm"
    laurel_left: str = "model.layers.{layer}.laurel.linear_left"
    laurel_right: str = "model.layers.{layer}.laurel.linear_right"
    laurel_norm: str = "model.layers.{layer}.laurel.post_laurel_norm"
    alternating_updates: str = "model.layers.{layer}.altup"
    """The module's name, under which its tensors have fixed names."""
    stream_projection: str = "model.altup_projections"
    """The modules that compute a token's further vectors from its first one."""
    stream_unprojection: str = "model.altup_unembed_projections"
    """The projections that precede the merge of the vectors into one."""
    mixer_connections: str = "model.layers.{layer}.attn_hc"
    """The module of the hyper-connections around the mixer."""
    feed_forward_connections: str = "model.layers.{layer}.ffn_hc"
    head_connections: str = "model.hc_head"
    low_vector: str = "model.z_L_init"
    """The full name of the vector `low` with which all tokens begin (HRM-Text)."""
    affine_embedding: str = "model.input_hidden_states"
    """The beginning of the full names of the embeddings' `_scale` and `_bias`."""
    mixer_sum: str = "model.layers.{layer}.post_attention_residual_scale"
    """The module with the biases and factors of the mixer's result and of the stream that it is added to."""
    feed_forward_sum: str = "model.layers.{layer}.post_mlp_residual_scale"
    mixer_stream: str = "model.layers.{layer}.input_residual"
    """The full name of the vector that multiplies the stream before the mixer's result is added."""
    feed_forward_stream: str = "model.layers.{layer}.post_attention_residual"
    output_scale: str = "model.layers.{layer}.layer_scalar"
    """The full name."""
    activation: str = "model.layers.{layer}.mlp.act_fn"
    """The module of an activation that has parameters."""

    router: str = "model.layers.{layer}.mlp.gate"
    router_of_two_sets: bool = False
    """Whether the router's weight is stored as [hidden, experts], and its correction beside that of another set of
    experts, which is not read (ERNIE 4.5 VL)."""
    expert_gate: str = "model.layers.{layer}.mlp.experts.{expert}.gate_proj"
    expert_up: str = "model.layers.{layer}.mlp.experts.{expert}.up_proj"
    expert_down: str = "model.layers.{layer}.mlp.experts.{expert}.down_proj"

    experts_bias: str = "model.layers.{layer}.mlp.bias"
    """The full name of the bias that is added to the sum of experts."""

    expert_layout: ExpertLayout = "rows"
    """The layout of tensors with all experts; if the checkpoint has them one by one, the layout in transformers."""
    correction_bias: str = "model.layers.{layer}.mlp.gate.e_score_correction_bias"
    """The full name."""
    expert_table: str = "model.layers.{layer}.mlp.gate.tid2eid"
    """The full name of the table of each token's experts."""
    router_scale: str = "model.layers.{layer}.router.scale"
    """The full name of the weight of the norm before the router."""
    expert_scales: str = "model.layers.{layer}.router.per_expert_scale"
    """The full name."""
    before_shared: str = "model.layers.{layer}.pre_feedforward_layernorm"
    after_shared: str = "model.layers.{layer}.post_feedforward_layernorm_1"
    before_experts: str = "model.layers.{layer}.pre_feedforward_layernorm_2"
    after_experts: str = "model.layers.{layer}.post_feedforward_layernorm_2"
    latent_in: str = "model.layers.{layer}.mlp.fc1_latent_proj"
    """The projection of hidden states to the experts' input."""
    latent_out: str = "model.layers.{layer}.mlp.fc2_latent_proj"
    shared_gate: str = "model.layers.{layer}.mlp.shared_experts.gate_proj"
    shared_up: str = "model.layers.{layer}.mlp.shared_experts.up_proj"
    shared_down: str = "model.layers.{layer}.mlp.shared_experts.down_proj"
    shared_expert_gate: str = "model.layers.{layer}.mlp.shared_expert_gate"

    def of_layer(self, role: str, layer: int) -> str:
        """Return the name of a role in one layer; names of experts keep `{expert}`."""
        name: str = getattr(self, role)
        number, which = divmod(layer, self.sublayers)
        return name.replace("{layer}", str(number)).replace("{sublayer}", str(which))


@dataclass(frozen=True, slots=True)
class StoredNames:
    """How names in a checkpoint's files differ from `TensorNames`, as in files of a larger model that contains this
    one."""

    renamed: tuple[tuple[str, str], ...] = ()
    """Prefixes in the files, and what replaces them; the first that matches is used."""
    ignored: tuple[str, ...] = ()
    """Prefixes of tensors that are not read, after the replacements."""
    endings: tuple[tuple[str, str], ...] = ()
    """Endings in the files, and what replaces them."""

    def own(self, name: str) -> str | None:
        """Return the name in `TensorNames` of a tensor in the files; None: it is not read."""
        for prefix, replacement in self.renamed:
            if name.startswith(prefix):
                name = replacement + name.removeprefix(prefix)
                break
        for ending, replacement in self.endings:
            if name.endswith(ending):
                name = name.removesuffix(ending) + replacement
        return None if name.startswith(self.ignored) else name

    def stored(self, name: str) -> tuple[str, ...]:
        """Return the names that files may have for the module `name`, including `name`."""
        others = (there + name.removeprefix(here) for there, here in self.renamed if name.startswith(here))
        return name, *others


def base_model_names(prefix: str, *modules: str) -> StoredNames:
    """Return the names in files that may have been saved without the head, and so without `prefix`.

    `modules` are the beginnings of such names.
    """
    return StoredNames(renamed=tuple((module, prefix + module) for module in modules))


def with_base_model_names(stored: StoredNames, names: TensorNames) -> StoredNames:
    """Return `stored` extended by the names in files that were saved from the model without its head.

    Those lack the first part of `names`, such as `model.`. The replacements of `stored` take precedence, with that part
    or without.
    """
    first, dot, _ = names.embedding.partition(".")
    prefix = first + dot
    if not dot:
        return stored
    every = (str(getattr(names, field.name)) for field in fields(names))
    modules = {name.removeprefix(prefix).partition(".")[0] + "." for name in every if name.startswith(prefix)}
    bare = ((there.removeprefix(prefix), here) for there, here in stored.renamed if there.startswith(prefix))
    return replace(stored, renamed=(*stored.renamed, *bare, *base_model_names(prefix, *sorted(modules)).renamed))


def by_modules(name: str, modules: Iterable[tuple[str, str]]) -> Iterator[str]:
    """Yield `name`, and each name that it may have in checkpoints if it is that of a module of transformers.

    `modules` are the replacements of `TensorNames.modules`.
    """
    yield name
    for there, here in modules:
        if there in name:
            yield name.replace(there, here)


LLAMA_NAMES = TensorNames()
SAME_NAMES = StoredNames()
