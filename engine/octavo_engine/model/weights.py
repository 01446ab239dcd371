"""From checkpoint files to a decoder: every tensor checked by name and shape first, then read straight into place."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor

from octavo_engine.config import format_size
from octavo_engine.errors import ModelLoadError
from octavo_engine.kernels.cpu.pages import use_huge_pages
from octavo_engine.model.collectives import ALONE, Collectives
from octavo_engine.model.decoder import Decoder, DecoderLayer
from octavo_engine.model.expert_weights import (
    expert_tensors,
    is_expert,
    is_exponent,
    is_mxfp4,
    read_expert,
    stored_shape,
)
from octavo_engine.model.families import FAMILIES
from octavo_engine.model.gguf_file import GGUFFile, GGUFTensor, dequantize_rows, read_gguf, row_pieces
from octavo_engine.model.layers.linear import Linear
from octavo_engine.model.layers.moe import MoE
from octavo_engine.model.quantization import FP8, quantize_into, quantize_rows
from octavo_engine.model.safetensors_file import SafetensorsHeader, read_headers
from octavo_engine.model.scales import (
    KV_SCALE,
    clear_input_scales,
    computed_scales,
    is_scale,
    linears,
    read_kv_scale,
    read_scale,
    scale_parts,
)
from octavo_engine.model.shard import cut_of
from octavo_engine.model.source import ModelFiles, Progress
from octavo_engine.model.spec import ModelSpec

_FLOATS = ("F64", "F32", "F16", "BF16")
_DEQUANTIZE_THREADS = 4
_ALIGNMENT = 64
"""Bytes; a cache line."""


def load_model(
    files: ModelFiles,
    spec: ModelSpec,
    device: torch.device,
    dtype: torch.dtype,
    progress: Progress,
    ranks: Collectives = ALONE,
) -> Decoder:
    """The decoder of `spec` with the weights of `files` in `dtype` on `device`; of several ranks only their shard.

    Nothing is allocated before the headers agree with the spec. ModelLoadError names the tensors that do not.
    """
    blueprint = Decoder(spec, dtype=dtype, device=torch.device("meta"))
    expected = {name: _stored_shape(name, target, spec) for name, target in destinations(blueprint).items()}
    if files.gguf is not None:
        source = read_gguf(files.gguf)
        names = _gguf_names(spec, expected)
        found = {names.get(name, name): tensor.shape for name, tensor in source.tensors.items()}
        found.pop("rope_freqs.weight", None)  # read with the spec
        _check_names(files.gguf, spec, expected, found)
        decoder = _empty_decoder(spec, dtype, device, ranks)
        _load_gguf(source, names, decoder, progress)
        decoder.prepare()
        return decoder
    if files.directory is None:
        raise ModelLoadError(f"{files.name}: no files to read")
    headers = read_headers(files.directory)
    _check_names(
        files.directory, spec, expected, {name: t.shape for header in headers for name, t in header.tensors.items()}
    )
    decoder = _empty_decoder(spec, dtype, device, ranks)
    _load_safetensors(headers, decoder, progress)
    decoder.prepare()
    return decoder


def _empty_decoder(spec: ModelSpec, dtype: torch.dtype, device: torch.device, ranks: Collectives) -> Decoder:
    """A decoder whose parameters are to be filled. On a CPU they lie in one piece, so that huge pages can hold it."""
    decoder = Decoder(spec, dtype=dtype, device=device, ranks=ranks)
    if device.type != "cpu":
        return decoder
    parameters = list({id(parameter): parameter for parameter in decoder.parameters()}.values())
    starts = [0, *accumulate(-(-parameter.nbytes // _ALIGNMENT) * _ALIGNMENT for parameter in parameters)]
    whole = torch.empty(starts[-1], dtype=torch.uint8)
    use_huge_pages(whole)
    for parameter, start in zip(parameters, starts[:-1], strict=True):
        parameter.data = whole[start : start + parameter.nbytes].view(parameter.dtype).view(parameter.shape)
    return decoder


def destinations(decoder: Decoder) -> dict[str, Tensor]:
    """For each tensor of a Hugging Face checkpoint the part of a parameter it fills (a view).

    Experts' may have more dimensions (`expert_tensors`).
    Of a rank's decoder these are of the size of its part, which `cut_of` finds.
    """
    own_tokens = decoder.whole.vocab_size - decoder.ranks.shard.first_token(decoder.whole)
    targets: dict[str, Tensor] = {
        "model.embed_tokens.weight": decoder.embedding[:own_tokens],
        "model.norm.weight": decoder.norm.weight,
    }
    if decoder.lm_head is not decoder.embedding:
        targets["lm_head.weight"] = decoder.lm_head[:own_tokens]
    for index, layer in enumerate(cast("list[DecoderLayer]", decoder.layers)):
        prefix = f"model.layers.{index}"
        targets[f"{prefix}.input_layernorm.weight"] = layer.attention_norm.weight
        targets[f"{prefix}.post_attention_layernorm.weight"] = layer.mlp_norm.weight
        if (norm := layer.attention.qk_norm) is not None:
            targets[f"{prefix}.self_attn.q_norm.weight"] = norm.query.weight
            targets[f"{prefix}.self_attn.k_norm.weight"] = norm.key.weight
        if layer.attention.sinks is not None:
            targets[f"{prefix}.self_attn.sinks"] = layer.attention.sinks
        if isinstance(layer.mlp, MoE):
            mxfp4 = decoder.spec.moe is not None and decoder.spec.moe.mxfp4
            targets |= expert_tensors(f"{prefix}.mlp.experts", layer.mlp, mxfp4=mxfp4)
    for names, linear in linears(decoder):
        targets.update(_parts(names, linear))
    return targets


def _parts(names: tuple[str, ...], linear: Linear) -> Iterator[tuple[str, Tensor]]:
    for kind, parameter in (("weight", linear.weight), ("bias", linear.bias)):
        if parameter is not None:
            for name, part in zip(names, torch.split(parameter, list(linear.parts)), strict=True):
                yield f"{name}.{kind}", part
    scheme = linear.quantization
    if scheme is not None and scheme.scale_name is not None:
        for name, part in zip(names, scale_parts(linear), strict=True):
            yield f"{name}.{scheme.scale_name}", part
            if linear.input_scale is not None:
                yield f"{name}.input_scale", linear.input_scale


def _stored_shape(name: str, target: Tensor, spec: ModelSpec) -> tuple[int, ...]:
    """The shape that a tensor has in the checkpoint; of scales, ones do not count."""
    if is_expert(name):
        return stored_shape(name, target)
    single = spec.quantization is not None and spec.quantization.granularity == "tensor"
    if name.endswith(".input_scale") or (is_scale(name) and single):
        return ()
    return tuple(size for size in target.shape if size != 1) if is_scale(name) else tuple(target.shape)


def _check_names(
    where: Path, spec: ModelSpec, expected: dict[str, tuple[int, ...]], found: dict[str, tuple[int, ...]]
) -> None:
    """ModelLoadError unless the checkpoint holds exactly the expected tensors, in the expected shapes."""
    found = {
        name: tuple(size for size in shape if size != 1) if is_scale(name) else shape for name, shape in found.items()
    }
    wrong = [
        f"{name} is {list(found[name])}, expected {list(shape)}"
        for name, shape in expected.items()
        if name in found and found[name] != shape
    ]
    if wrong:
        raise ModelLoadError(f"{where}: the weights do not have the shapes of the configuration: {_some(wrong)}")
    if missing := [name for name in expected if name not in found]:
        raise ModelLoadError(f"{where}: {len(missing)} of {len(expected)} tensors are missing: {_some(missing)}")
    if unexpected := [name for name in found if name not in expected and not _ignorable(name, spec)]:
        raise ModelLoadError(
            f"{where}: {len(unexpected)} tensors that {spec.architecture} with this configuration does not have, so "
            f"its answers would be wrong: {_some(unexpected)}"
        )


def _ignorable(name: str, spec: ModelSpec) -> bool:
    """Tables older checkpoints carry, a copy of the embedding that is tied to it anyway, and the KV cache's scales."""
    tied = spec.tie_word_embeddings and name == "lm_head.weight"
    return tied or name.endswith("rotary_emb.inv_freq") or KV_SCALE.fullmatch(name) is not None


def _some(items: list[str]) -> str:
    return "; ".join(items[:4]) + (f"; and {len(items) - 4} more" if len(items) > 4 else "")


@dataclass(slots=True)
class _Meter:
    """Bytes of the checkpoint read so far."""

    total: int
    progress: Progress
    done: int = 0

    def add(self, num_bytes: int) -> None:
        self.done += num_bytes
        self.progress(
            "loading", self.done / max(1, self.total), f"{format_size(self.done)} of {format_size(self.total)}"
        )


def _load_safetensors(headers: tuple[SafetensorsHeader, ...], decoder: Decoder, progress: Progress) -> None:
    from safetensors import SafetensorError, safe_open

    targets, scales = destinations(decoder), computed_scales(decoder)
    clear_input_scales(decoder)
    meter = _Meter(sum(t.num_bytes for header in headers for t in header.tensors.values()), progress)
    meter.add(0)
    for later in (False, True):  # MXFP4's exponents may lie in a file before the numbers they belong to
        for header in headers:
            names = [name for name in header.tensors if is_exponent(name) == later]
            if not names:
                continue
            try:
                with safe_open(header.path, framework="pt", device="cpu") as file:
                    for name in names:
                        _load_tensor(file, header, name, decoder, targets, scales)
                        meter.add(header.tensors[name].num_bytes)
            except (SafetensorError, OSError) as error:
                raise ModelLoadError(f"{header.path}: cannot be read: {error}") from None


def _load_tensor(
    file: Any,
    header: SafetensorsHeader,
    name: str,
    decoder: Decoder,
    targets: dict[str, Tensor],
    scales: dict[str, Tensor],
) -> None:
    if name in targets:
        as_stored = targets[name].dtype == FP8 and name not in scales
        _check_type(header.path, name, header.tensors[name].dtype, fp8=as_stored)
        if is_expert(name):
            read_expert(name, file.get_tensor(name), targets[name])
        elif is_scale(name):
            read_scale(file, name, decoder, targets[name])
        else:
            _read_part(file, name, decoder, targets[name], scales.get(name))
    elif found := KV_SCALE.fullmatch(name):
        read_kv_scale(header.path, file.get_tensor(name), found, decoder)


def _check_type(path: Path, name: str, dtype: str, *, fp8: bool) -> None:
    """ModelLoadError unless the tensor is of the type, or one of those, that is read into its place."""
    types = ("F8_E4M3",) if fp8 else ("U8",) if is_mxfp4(name) else _FLOATS
    if dtype not in types:
        raise ModelLoadError(
            f"{path}: tensor {name!r} is {dtype}, not {'floating point' if types == _FLOATS else types[0]}"
        )


def _read_part(file: Any, name: str, decoder: Decoder, target: Tensor, scale: Tensor | None) -> None:
    """Fill `target` from an open safetensors file, of which no more is read; quantized if there is a `scale`."""
    if decoder.ranks.alone:
        values = file.get_tensor(name)
    else:
        cut = cut_of(name, decoder.whole, decoder.ranks.shard)
        part = slice(cut.start, cut.start + target.shape[cut.dim])
        values = file.get_slice(name)[part] if cut.dim == 0 else file.get_slice(name)[:, part]
    if scale is None:
        target.copy_(values)
    else:
        quantize_into(target, scale, values)


def _gguf_names(spec: ModelSpec, expected: dict[str, tuple[int, ...]]) -> dict[str, str]:
    """GGUF tensor name to the Hugging Face name, for the tensors expected."""
    import gguf

    architectures = {name: arch for arch, name in gguf.MODEL_ARCH_NAMES.items()}
    mapping = gguf.get_tensor_name_map(architectures[FAMILIES[spec.architecture].gguf_architecture], spec.num_layers)
    names = {mapping.get_name(name, try_suffixes=(".weight", ".bias")): name for name in expected}
    return {theirs: ours for theirs, ours in names.items() if theirs is not None}


def _load_gguf(source: GGUFFile, names: dict[str, str], decoder: Decoder, progress: Progress) -> None:
    """Dequantize piece by piece on a few threads (numpy lets go of the interpreter), each piece straight into place."""
    data = np.memmap(source.path, mode="r", dtype=np.uint8)
    targets, scales = destinations(decoder), computed_scales(decoder)
    wanted = [tensor for name, tensor in source.tensors.items() if names.get(name) in targets]
    cuts = {tensor.name: cut_of(names[tensor.name], decoder.whole, decoder.ranks.shard) for tensor in wanted}
    meter = _Meter(sum(tensor.num_bytes for tensor in wanted), progress)
    meter.add(0)

    def fill(tensor: GGUFTensor, first: int, last: int) -> int:
        name, cut = names[tensor.name], cuts[tensor.name]
        target, values = targets[name], torch.from_numpy(dequantize_rows(data, tensor, first, last))
        if len(tensor.shape) == 1:  # all of it is one piece
            first, last, values = 0, len(target), values[cut.start : cut.start + len(target)]
        elif cut.dim == 0:
            first, last = first - cut.start, last - cut.start
        else:
            values = values[:, cut.start : cut.start + target.shape[1]]
        order = _row_order(name, decoder.spec)
        # `order` is a bijection of rows, so pieces never write the same one.
        rows = slice(first, last) if order is None else order[first:last].to(target.device)
        if name in scales:
            values, scales[name][rows] = quantize_rows(values.to(target.device))
            target, values = target.view(torch.uint8), values.view(torch.uint8)  # PyTorch indexes no e4m3 on the CPU
        target[rows] = values.to(target)
        return tensor.num_bytes * (last - first) // len(target)

    def pieces_of(tensor: GGUFTensor) -> Iterator[tuple[int, int]]:
        cut = cuts[tensor.name]
        if len(tensor.shape) == 1 or cut.dim == 1:
            return row_pieces(tensor)
        return row_pieces(tensor, cut.start, cut.start + len(targets[names[tensor.name]]))

    with ThreadPoolExecutor(_DEQUANTIZE_THREADS, thread_name_prefix="dequantize") as pool:
        pieces = [pool.submit(fill, tensor, *piece) for tensor in wanted for piece in pieces_of(tensor)]
        try:
            for piece in as_completed(pieces):
                meter.add(piece.result())
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise


def _row_order(name: str, spec: ModelSpec) -> Tensor | None:
    """Where each row of a GGUF tensor belongs, or None where it stays; of `spec`, a rank's, the rank's rows.

    llama.cpp keeps the rows of q and k so that the two of a rotated pair are neighbours; in Hugging Face's order they
    are half a head apart (convert_hf_to_gguf.py, `permute`; this is its inverse).
    """
    if not FAMILIES[spec.architecture].gguf_interleaves_rope:
        return None
    heads = spec.num_heads if ".q_proj." in name else spec.num_kv_heads if ".k_proj." in name else None
    if heads is None:
        return None
    rows = torch.arange(heads * spec.head_dim).view(heads, 2, spec.head_dim // 2)
    return rows.transpose(1, 2).reshape(-1)
