"""A whole decoder on one page: tokens in, hidden states out, logits from those.

The order of operations is Hugging Face transformers', so that float32 answers are the same token for token.
"""

from __future__ import annotations

from functools import partial
from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from octavo_engine.attention.backend import AttentionVariant, StepInputs
from octavo_engine.attention.context import AttentionContext
from octavo_engine.attention.qk_norm import QKNorm
from octavo_engine.attention.rope import Rope
from octavo_engine.kernels.cpu.layers import LayerWeights
from octavo_engine.kernels.quantized import Quantized
from octavo_engine.model.collectives import ALONE, Collectives
from octavo_engine.model.layers.choose_compute import choose_compute
from octavo_engine.model.layers.compute import Compute
from octavo_engine.model.layers.linear import Linear
from octavo_engine.model.layers.mlp import GatedMLP
from octavo_engine.model.layers.moe import MoE
from octavo_engine.model.layers.norm import Norm
from octavo_engine.model.layers.residual import ResidualStream
from octavo_engine.model.layers.rope import RotaryEmbedding
from octavo_engine.model.shard import sharded
from octavo_engine.model.spec import ModelSpec


class Attention(nn.Module):
    """Grouped-query attention over the paged cache (arXiv 2305.13245)."""

    def __init__(
        self,
        spec: ModelSpec,
        layer: int,
        *,
        ranks: Collectives,
        compute: Compute,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        super().__init__()
        self.ranks, self.compute = ranks, compute
        self.layer, self.head_dim = layer, spec.head_dim
        self.key_scale = self.value_scale = 1.0
        """What a checkpoint says one e4m3 number of the KV cache is worth."""
        query, key = spec.num_heads * spec.head_dim, spec.num_kv_heads * spec.head_dim
        linear = partial(Linear, compute=compute, dtype=dtype, device=device, quantization=spec.quantization)
        self.qkv = linear(spec.hidden_size, (query, key, key), bias=spec.attention_bias)
        self.output = linear(query, (spec.hidden_size,), bias=spec.attention_output_bias)
        norm = partial(Norm, spec.head_dim, spec.rms_norm_eps, compute=compute, dtype=dtype, device=device)
        self.query_norm = norm() if spec.qk_norm else None
        self.key_norm = norm() if spec.qk_norm else None
        self.sinks = (
            nn.Parameter(torch.empty(spec.num_heads, dtype=dtype, device=device), requires_grad=False)
            if spec.attention_sinks
            else None
        )
        self.variant = AttentionVariant(spec.head_dim**-0.5, sinks=self.sinks)

    @property
    def qk_norm(self) -> QKNorm | None:
        """How the heads of query and key are normalised, if they are."""
        query, key = self.query_norm, self.key_norm
        return None if query is None or key is None else QKNorm(query.weights, key.weights)

    def forward(
        self, x: Tensor | Quantized, residual: Tensor, rope: Rope | None, attention: AttentionContext
    ) -> ResidualStream:
        """[T, hidden] to the same, added to `residual`, which may be overwritten."""
        heads = self.qkv(x).view(len(residual), -1, self.head_dim)
        attended = attention.attend(self.layer, heads, self.variant, rope, self.qk_norm)
        return self.output.add_to(residual, attended.reshape(len(residual), -1), self.ranks)


class DecoderLayer(nn.Module):
    """Attention and feed-forward, each normalised before and added to what came in."""

    def __init__(
        self,
        spec: ModelSpec,
        layer: int,
        *,
        ranks: Collectives,
        compute: Compute,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        super().__init__()
        size, eps = spec.hidden_size, spec.rms_norm_eps
        self.attention_norm = Norm(size, eps, compute=compute, dtype=dtype, device=device)
        self.attention = Attention(spec, layer, ranks=ranks, compute=compute, dtype=dtype, device=device)
        self.mlp_norm = Norm(size, eps, compute=compute, dtype=dtype, device=device)
        if spec.moe is None:
            self.mlp: GatedMLP | MoE = GatedMLP(spec, ranks=ranks, compute=compute, dtype=dtype, device=device)
        else:
            self.mlp = MoE(spec, spec.moe, compute=compute, dtype=dtype, device=device)

    def forward(self, stream: ResidualStream, rope: Rope | None, attention: AttentionContext) -> ResidualStream:
        """[T, hidden] to the same."""
        normed, x = self.attention_norm(stream, self.attention.qkv.input_scaling)
        stream = self.attention(normed, x, rope, attention)
        normed, x = self.mlp_norm(stream, self.mlp.input_scaling)
        output: ResidualStream = self.mlp(normed, x)
        return output

    def weights(self) -> LayerWeights:
        """The weights of a layer with a dense feed-forward, for kernels that compute all of it."""
        attention, mlp = self.attention, cast("GatedMLP", self.mlp)
        return LayerWeights(
            attention_norm=self.attention_norm.weight,
            qkv=attention.qkv.weight,
            qkv_bias=attention.qkv.bias,
            output=attention.output.weight,
            output_bias=attention.output.bias,
            mlp_norm=self.mlp_norm.weight,
            gate_up=mlp.gate_up.weight,
            gate_up_bias=mlp.gate_up.bias,
            down=mlp.down.weight,
            down_bias=mlp.down.bias,
        )


class Decoder(nn.Module):
    """A causal language model, or one rank's shard of it. Parameters are uninitialised until the loader fills them."""

    def __init__(
        self, whole: ModelSpec, *, dtype: torch.dtype, device: torch.device, ranks: Collectives = ALONE
    ) -> None:
        super().__init__()
        self.whole, self.ranks = whole, ranks
        self.spec = spec = sharded(whole, ranks.shard)
        self.compute = compute = choose_compute(spec, dtype, device, ranks.alone)
        self.embedding = nn.Parameter(
            torch.empty(spec.vocab_size, spec.hidden_size, dtype=dtype, device=device), requires_grad=False
        )
        self.rope = RotaryEmbedding(spec.rope, spec.head_dim, device)
        self.layers = nn.ModuleList(
            DecoderLayer(spec, layer, ranks=ranks, compute=compute, dtype=dtype, device=device)
            for layer in range(spec.num_layers)
        )
        self.norm = Norm(spec.hidden_size, spec.rms_norm_eps, compute=compute, dtype=dtype, device=device)
        self.lm_head = (
            self.embedding
            if spec.tie_word_embeddings
            else nn.Parameter(torch.empty_like(self.embedding), requires_grad=False)
        )

    def forward(self, inputs: StepInputs, attention: AttentionContext) -> Tensor:
        """The normalised hidden states of the rows that are sampled, [R, hidden]."""
        x = self.ranks.add_up(self._embed(inputs.token_ids))
        ropes = [self.rope(inputs.positions)] * len(self.layers)
        x = self.compute.run(cast("list[DecoderLayer]", self.layers), x, ropes, attention)
        hidden: Tensor = self.norm(x[inputs.token_indices])[0]
        return hidden

    def _embed(self, token_ids: Tensor) -> Tensor:
        """The embeddings of the tokens that are this rank's, zeros for others; [T, hidden]."""
        if self.ranks.alone:
            return F.embedding(token_ids, self.embedding)
        places = token_ids - self.ranks.shard.first_token(self.whole)
        elsewhere = (places < 0) | (places >= self.spec.vocab_size)
        found = F.embedding(places.masked_fill(elsewhere, 0), self.embedding)
        return found.masked_fill_(elsewhere.unsqueeze(1), 0)

    def matrices(self) -> list[Tensor]:
        """The weights that activations are multiplied with, [out, in], without experts'."""
        return [module.weight for module in self.modules() if isinstance(module, Linear)]

    def prepare(self) -> None:
        """All weights are in place now."""
        self.compute.prepare(self.matrices())
        if mixtures := [module for module in self.modules() if isinstance(module, MoE)]:
            self.compute.prepare_mixture(mixtures[0].experts, mixtures[0].active)

    def kv_scales(self) -> dict[int, tuple[float, float]]:
        """By layer, what one e4m3 number of its cached keys and of its cached values is worth."""
        layers = cast("list[DecoderLayer]", self.layers)
        return {layer.attention.layer: (layer.attention.key_scale, layer.attention.value_scale) for layer in layers}

    def logits(self, hidden: Tensor, out: Tensor | None = None) -> Tensor:
        """Logits of the next token [R, vocab] in `logits_dtype` from hidden states [R, hidden]; on the first rank only.

        Into `out` if it is given.
        """
        if self.ranks.alone:
            return self.compute.logits(hidden, self.lm_head, out)
        product = self.ranks.gather(self.compute.logits(hidden, self.lm_head))
        if self.ranks.shard.rank:
            return product
        product = product[:, : self.whole.vocab_size]
        return product if out is None else out.copy_(product)

    @property
    def logits_dtype(self) -> torch.dtype:
        """What sampling takes: float32, or the model's type where Triton's kernels sample."""
        return self.compute.logits_dtype or self.lm_head.dtype
