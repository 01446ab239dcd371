"""The decoder: turns tokens into hidden states, and hidden states into logits.

The order of operations is Hugging Face transformers', so that float32 answers are the same token for token.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import chain
from typing import cast

import torch
from torch import Tensor, nn

from octavo_engine.attention.backend import StepInputs
from octavo_engine.attention.context import StepContext
from octavo_engine.model.checkpoint.tensors import CheckpointTensor, ignored, unsharded
from octavo_engine.model.layers.adapters.lora import LoraBatch
from octavo_engine.model.layers.attention.attention_experts import AttentionExperts
from octavo_engine.model.layers.attention.biased_attention import BiasedAttention
from octavo_engine.model.layers.attention.compressed_attention import CompressedAttention
from octavo_engine.model.layers.attention.convolved_attention import ConvolvedAttention
from octavo_engine.model.layers.attention.differential_attention import DifferentialAttention
from octavo_engine.model.layers.attention.grouped_query_attention import Attention, share_distance_terms
from octavo_engine.model.layers.attention.latent_attention import LatentAttention
from octavo_engine.model.layers.decoder_layer import DecoderLayer, share_blocks, share_layers
from octavo_engine.model.layers.embeddings.classifier import Classifier
from octavo_engine.model.layers.embeddings.dense_modules import DenseModules
from octavo_engine.model.layers.embeddings.embedding import Head, Input, VocabularyWeight
from octavo_engine.model.layers.embeddings.rope import RotaryEmbedding
from octavo_engine.model.layers.experts.moe import MoE
from octavo_engine.model.layers.experts.quantized_experts import QuantizedExperts
from octavo_engine.model.layers.linear import Linear
from octavo_engine.model.layers.norms.norm import Norm
from octavo_engine.model.layers.operations.choose_compute import choose_compute
from octavo_engine.model.layers.operations.device_support import DeviceSupport, device_support
from octavo_engine.model.layers.operations.experts_in_turn import ExpertsInTurn
from octavo_engine.model.layers.operations.run_layers import one_by_one
from octavo_engine.model.layers.options import LayerOptions
from octavo_engine.model.layers.residual_streams.alternating_updates import TokenVectors
from octavo_engine.model.layers.residual_streams.hyper_connections import ConnectedVectors
from octavo_engine.model.layers.residual_streams.per_layer_input import PerLayerEmbedding
from octavo_engine.model.layers.residual_streams.stacked import LevelVectors
from octavo_engine.model.layers.shared_block import SharedBlock
from octavo_engine.model.spec import AttentionMixer, LayerSpec, LearntQueryScaling, ModelSpec, QueryScaling, RopeSpec
from octavo_engine.model.tensor_parallel.collectives import ALONE, Collectives
from octavo_engine.model.tensor_parallel.shard import check_size

Attending = (
    Attention | LatentAttention | DifferentialAttention | BiasedAttention | AttentionExperts | ConvolvedAttention
)


class Decoder(nn.Module):
    """A causal language model, or one rank's shard of it. Parameters are uninitialised until the loader fills them."""

    def __init__(
        self,
        spec: ModelSpec,
        *,
        dtype: torch.dtype,
        device: torch.device,
        ranks: Collectives = ALONE,
        support: DeviceSupport | None = None,
    ) -> None:
        """Build the layers; ConfigurationError if the ranks cannot divide them.

        `support`: what the device is to compute with weights as they are stored; None: what `device` does.
        """
        super().__init__()
        check_size(spec, ranks.shard.size)
        self.spec, self.ranks, self.dtype = spec, ranks, dtype
        self.dense: DenseModules | None = None
        """The dense modules after pooling, in models that have such."""
        self.lora: LoraBatch | None = None
        """The adapters of a step's tokens, if adapters are served."""
        self.compute = choose_compute(spec, dtype, device, ranks.shard)
        support = support or device_support(self.compute, device)
        options = LayerOptions(
            ranks, self.compute, dtype, device, spec.names, support, spec.quantization, spec.stored_names
        )
        self.kv_groups = ranks.shard.kv_groups(spec)
        self.input = Input(spec, options)
        extra = spec.layers[0].per_layer_input
        self.per_layer_embedding = (
            None if extra is None else PerLayerEmbedding(extra, spec.hidden_size, spec.num_layers, options)
        )
        self.vectors = _vectors(spec.layers[0], spec.hidden_size, options)
        of_layers = [_rotation(layer.attention) for layer in spec.layers]
        rotations = list(dict.fromkeys(of_layers))
        self.ropes = nn.ModuleList(RotaryEmbedding(rope, size, device, scaling) for rope, size, scaling in rotations)
        self._rope_of_layer = [rotations.index(rotation) for rotation in of_layers]
        self.layers = nn.ModuleList(
            DecoderLayer(layer, spec.hidden_size, index, _for_layer(layer, options))
            for index, layer in enumerate(spec.layers)
        )
        share_layers(self.decoder_layers)
        share_distance_terms([mixer for mixer in self.attentions() if isinstance(mixer, Attention)])
        self.reads_embeddings = share_blocks(self.decoder_layers)
        self.reads_tokens = any(mixture.table is not None for mixture in self.mixtures())
        self.norm = None if spec.norm is None else Norm(spec.hidden_size, spec.norm, options)
        head, classifier = spec.head, spec.classifier
        self.head = None if head is None else Head(head, spec.hidden_size, self.input.tokens, options)
        self.classifier = None if classifier is None else Classifier(classifier, spec.hidden_size, options)
        sizes = None if spec.vector_size is None else (unsharded(spec.hidden_size), (unsharded(spec.vector_size),))
        self.vector_projection = None if sizes is None else Linear(*sizes, bias=False, options=options)

    def forward(self, inputs: StepInputs, context: StepContext) -> Tensor:
        """Return the normalised hidden states of the rows that are sampled, [R, hidden]."""
        x = self.input(inputs.token_ids, inputs.positions, inputs.second_text)
        different = [rope(inputs.positions, inputs.long_context) for rope in self.ropes]
        ropes = [different[index] for index in self._rope_of_layer]
        if self.per_layer_embedding is not None:
            context = replace(context, per_layer_inputs=self.per_layer_embedding(inputs.token_ids, x))
        if self.reads_embeddings:
            context = replace(context, embedded=x.clone())
        if self.reads_tokens:
            context = replace(context, token_ids=inputs.token_ids)
        if self.vectors is not None:
            x = self.vectors.spread(x)
        run = self.compute.run
        if self.lora is not None:
            context = replace(context, adapter_slots=self.lora.slots)
            # The call that computes all layers finds a token's adapter only by its slot.
            run = one_by_one if self.lora.by_slot else run
        x = run(self.decoder_layers, x, ropes, context)
        hidden = x if inputs.all_sampled else x[inputs.token_indices]
        if self.vectors is not None:
            hidden = self.vectors.merged(hidden)
        hidden = hidden.to(self.dtype)
        return hidden if self.norm is None else cast("Tensor", self.norm(hidden)[0])

    def logits(self, hidden: Tensor, out: Tensor | None = None) -> Tensor:
        """Return the next token's logits [R, vocab] in `logits_dtype` for hidden states [R, hidden].

        Only the first rank has them. They are written into `out` if it is given. For a model that does not generate
        they are zeros [R, 1], and the token that is sampled from them only ends the prompt.
        """
        if self.head is None:
            return torch.zeros(len(hidden), 1, dtype=self.logits_dtype, device=hidden.device)
        logits: Tensor = self.head(hidden, out)
        return logits

    def before_mean(self, hidden: Tensor) -> Tensor:
        """Return the vectors [R, hidden] that are summed or compared for a text's vector, of tokens' hidden states."""
        classifier = self.classifier
        if classifier is None or not classifier.spec.transforms_tokens:
            return hidden
        return classifier.transformed(hidden)

    def pooled(self, vectors: Tensor) -> Tensor:
        """Return the pooled outputs of vectors [R, hidden]: logits of classes [R, classes], or the vectors."""
        if self.vector_projection is not None:
            vectors = self.vector_projection(vectors.to(self.dtype)).float()
        if self.classifier is None:
            return vectors if self.dense is None else self.dense(vectors)
        classes: Tensor = self.classifier(vectors.to(self.dtype))
        return classes

    @property
    def logits_dtype(self) -> torch.dtype:
        """The type of logits: float32, or the model's own where Triton's kernels sample."""
        return self.compute.logits_dtype or self.dtype

    @property
    def decoder_layers(self) -> list[DecoderLayer]:
        """The layers, typed as DecoderLayer."""
        return cast("list[DecoderLayer]", list(self.layers))

    def rotations(self) -> list[RotaryEmbedding]:
        """Return the different rotary embeddings of the layers, typed as RotaryEmbedding."""
        return cast("list[RotaryEmbedding]", list(self.ropes))

    def tensors(self) -> Iterator[CheckpointTensor]:
        """Yield the tensors that a checkpoint of the model has, with their places in this decoder."""
        names = self.spec.names
        yield from self.input.tensors()
        if self.per_layer_embedding is not None:
            yield from self.per_layer_embedding.tensors()
        if self.vectors is not None:
            yield from self.vectors.tensors()
        for rotation in self.rotations():
            yield from rotation.tensors(names)
        for layer in self.decoder_layers:
            yield from layer.tensors()
            yield from (ignored(name.replace("{layer}", str(layer.layer))) for name in names.buffers)
        if self.norm is not None:
            yield from self.norm.tensors(names.norm)
        if self.head is not None:
            yield from self.head.tensors()
        if self.vector_projection is not None:
            yield from self.vector_projection.tensors(names.vector_projection)
        if self.classifier is not None:
            yield from self.classifier.tensors()

    def linears(self) -> list[Linear]:
        """Return the linear layers, without experts."""
        return [module for module in self.modules() if isinstance(module, Linear)]

    def linears_of_sampled_rows(self) -> list[Linear]:
        """Return the linear layers after the last decoder layer: they compute the rows that are sampled alone."""
        merging = None if self.vectors is None else self.vectors.merging
        parts = (merging, self.head, self.classifier, self.vector_projection)
        after = [module for module in parts if module is not None]
        return [module for part in after for module in part.modules() if isinstance(module, Linear)]

    def shared_blocks(self) -> list[SharedBlock]:
        """Return the blocks before layers' mixers, of which several may have the same weights."""
        return [module for module in self.modules() if isinstance(module, SharedBlock)]

    def mixtures(self) -> list[MoE]:
        """Return the mixtures of experts."""
        return [module for module in self.modules() if isinstance(module, MoE)]

    def prepare(self) -> None:
        """Prepare the layers for computing, once all weights are loaded."""
        modules = list(self.modules())
        codes = [
            module.quantized
            for module in modules
            if isinstance(module, VocabularyWeight) and module.quantized is not None
        ]
        if isinstance(self.compute.experts, ExpertsInTurn):
            codes += chain(*(module.split() for module in modules if isinstance(module, QuantizedExperts)))
        self.compute.prepare([linear.weights for linear in self.linears()], codes)
        if mixtures := self.mixtures():
            self.compute.prepare_mixture(mixtures[0].experts, mixtures[0].spec.top_k)

    def kv_scales(self) -> dict[int, tuple[float, float]]:
        """Return each layer's scales of cached keys and values: the value of one unit of e4m3."""
        return {mixer.layer: (mixer.key_scale, mixer.value_scale) for mixer in self.attentions()}

    def choosing_attentions(self) -> list[CompressedAttention | LatentAttention]:
        """Return the mixers that may attend to compressed keys or to chosen tokens, which no backend computes."""
        return [module for module in self.modules() if isinstance(module, CompressedAttention | LatentAttention)]

    def attentions(self) -> list[Attending]:
        """Return the mixers whose attention is computed by an attention backend."""
        return [module for module in self.modules() if isinstance(module, Attending)]


def _for_layer(layer: LayerSpec, options: LayerOptions) -> LayerOptions:
    """Return the options of a layer: on `meta`, without memory, if it has the weights of another layer."""
    return options if layer.weights_of_layer is None else replace(options, device=torch.device("meta"))


def _vectors(
    layer: LayerSpec, hidden_size: int, options: LayerOptions
) -> TokenVectors | ConnectedVectors | LevelVectors | None:
    """Return the module between embedding or head and a residual stream of several vectors; None: it has one vector."""
    if layer.alternating_updates is not None:
        return TokenVectors(layer.alternating_updates, hidden_size, options)
    if layer.stack is not None:
        return LevelVectors(hidden_size, options)
    return None if layer.connections is None else ConnectedVectors(layer.connections, hidden_size, options)


_Rotation = tuple[RopeSpec | None, int, QueryScaling | LearntQueryScaling | None]


def _rotation(mixer: AttentionMixer | None) -> _Rotation:
    """Return a key that is equal for layers with equal angles; layers without attention have none."""
    return (None, 2, None) if mixer is None else (mixer.rope, mixer.rope_size, mixer.query_scaling)
