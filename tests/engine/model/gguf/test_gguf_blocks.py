"""GGUF files whose blocks stay quantized in memory: exactly the file's numbers, in about the file's bytes."""

from __future__ import annotations

from pathlib import Path

import gguf
import pytest
import torch
from c_kernels import kernels, lost_in_8_bits, needs_kernels, random  # noqa: F401
from checkpoints import reference_model
from gguf.constants import GGML_QUANT_SIZES
from gguf.constants import GGMLQuantizationType as Kind
from gguf_writer import random_blocks, write_gguf
from loaded import linears
from rank_logits import group_logits, logits_of

from octavo_engine.config import EngineConfig
from octavo_engine.engine.startup.resolved_config import make_blueprint, resolve_config, resolve_for_estimate
from octavo_engine.errors import ConfigurationError, ModelLoadError
from octavo_engine.kernels.cpu.library import CPUKernels
from octavo_engine.model import footprint
from octavo_engine.model.alignment import check_alignment
from octavo_engine.model.checkpoint.tensors import unsharded
from octavo_engine.model.configuration import gguf_blocks
from octavo_engine.model.configuration.read_spec import read_spec
from octavo_engine.model.decoder import Decoder
from octavo_engine.model.gguf import rows as gguf_rows
from octavo_engine.model.loader import load_model
from octavo_engine.model.quantization.gguf import FORMATS, GGUFBlocks
from octavo_engine.model.quantization.linear_method import LinearShape, Projection
from octavo_engine.model.source import DEMO_MODEL, ModelFiles, resolve_model
from octavo_engine.model.tensor_parallel.shard import Shard

BF16, F32 = torch.bfloat16, torch.float32
pytestmark = pytest.mark.usefixtures("several_threads")

CPU = torch.device("cpu")
SIZES = {"hidden_size": 64, "intermediate_size": 96, "num_attention_heads": 2, "num_key_value_heads": 1}
LINEARS = ("attn_q", "attn_k", "attn_v", "attn_output", "ffn_gate", "ffn_up", "ffn_down")


def files_of(path: Path) -> ModelFiles:
    return ModelFiles("test", gguf=path)


def load(path: Path, name: str | None, dtype: torch.dtype = F32) -> Decoder:
    files = files_of(path)
    spec = gguf_blocks.quantized(files, read_spec(files), name)
    return load_model(files, spec, CPU, dtype, lambda *_: None)


@pytest.mark.parametrize("kind", FORMATS)
def test_the_numbers_are_exactly_the_librarys(kernels: CPUKernels, kind: str) -> None:  # noqa: F811
    """This holds for the reference and for the kernels; a changed layout of ggml would show here."""
    form, method, rows, columns = FORMATS[kind], GGUFBlocks(kind), 21, 512
    assert GGML_QUANT_SIZES[Kind[kind]] == (form.columns, form.num_bytes)
    raw = random_blocks(kind, rows, columns)
    weights = method.create(LinearShape((rows,), unsharded(columns)), F32, CPU, fp8_products=False)
    (tensor,) = method.tensors(weights, Projection("p", slice(0, rows), unsharded(rows), unsharded(columns)))
    assert tensor.types == (kind,) and tensor.shape == (rows, columns)
    for piece in tensor.pieces:
        piece.put(torch.from_numpy(raw))
    exact = torch.from_numpy(gguf.quants.dequantize(raw, Kind[kind]))
    assert torch.equal(method.dequantized(weights, F32), exact)
    assert weights.quantized is not None and weights.quantized.known_to_kernels
    assert torch.equal(kernels.dequantize(weights.quantized, F32), exact)
    for dtype in (F32, BF16):
        x = torch.randn(5, columns, generator=torch.Generator().manual_seed(0)).to(dtype)
        wanted, size = x.double() @ exact.double().T, x.double().abs() @ exact.double().abs().T
        found = kernels.quantized_linear(x, weights.quantized).double()
        assert bool(((found - wanted).abs() <= wanted.abs() * torch.finfo(dtype).eps + size * 1e-5).all())


@needs_kernels
@pytest.mark.parametrize("kind", [Kind.Q4_0, Kind.Q4_1, Kind.Q8_0])
def test_a_file_gives_the_logits_of_the_numbers_it_stands_for(kind: Kind, tmp_path: Path) -> None:
    path = write_gguf(reference_model(**SIZES), tmp_path / "model.gguf", kind)
    kept, exact = load(path, "gguf"), load(path, None)
    assert {linear.method for linear in linears(kept)} == {GGUFBlocks(kind.name)}
    assert {linear.weight.dtype for linear in linears(exact)} == {F32}
    torch.testing.assert_close(logits_of(kept), logits_of(exact), rtol=1e-4, atol=1e-4)


@needs_kernels
def test_projections_of_one_layer_may_be_of_several_types(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """llama.cpp's mixes (Q4_K_M) have them: weights that are multiplied as one are dequantized, all others stay."""
    import gguf_writer

    kinds = {"attn_v": Kind.Q8_0, "ffn_down": Kind.F16}
    plain = gguf.GGUFWriter.add_tensor

    def add_tensor(self, name, tensor, raw_dtype=None):
        kind = next((kind for part, kind in kinds.items() if part in name), None)
        if kind is None or "bias" in name:
            return plain(self, name, tensor, raw_dtype=raw_dtype)
        values = gguf.quants.dequantize(tensor, raw_dtype)
        return plain(self, name, gguf.quants.quantize(values, kind), raw_dtype=kind)

    monkeypatch.setattr(gguf_writer.gguf.GGUFWriter, "add_tensor", add_tensor)
    monkeypatch.setattr(gguf_rows, "_PIECE_ELEMENTS", 512)  # as large weights are read
    path = write_gguf(reference_model(**SIZES), tmp_path / "model.gguf", Kind.Q4_0)
    kept = load(path, "gguf")
    names = {linear.method.name for linear in linears(kept)}
    assert names == {"gguf Q4_0, dequantized, gguf Q8_0, dequantized", "gguf Q4_0", "unquantized"}
    torch.testing.assert_close(logits_of(kept), logits_of(load(path, None)), rtol=1e-4, atol=1e-4)


def blocks_of(monkeypatch: pytest.MonkeyPatch, kinds: dict[str, str]) -> None:
    """Have files written with random blocks of these types in these tensors."""
    plain = gguf.GGUFWriter.add_tensor

    def add_tensor(self, name, tensor, raw_dtype=None):
        if name not in kinds:
            return plain(self, name, tensor, raw_dtype=raw_dtype)
        rows, columns = gguf.quants.dequantize(tensor, raw_dtype).shape
        return plain(self, name, random_blocks(kinds[name], rows, columns), raw_dtype=Kind[kinds[name]])

    monkeypatch.setattr(gguf.GGUFWriter, "add_tensor", add_tensor)


@needs_kernels
@pytest.mark.parametrize("kinds", [{}, {"token_embd.weight": "Q4_K", "output.weight": "Q6_K"}], ids=["tied", "k"])
def test_embedding_and_head_stay_in_blocks(
    kinds: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Embeddings are the file's numbers, and so are logits, but for hidden states that are rounded to 8 bits."""
    blocks_of(monkeypatch, kinds)
    model = reference_model(**{**SIZES, "hidden_size": 256}, tie_word_embeddings=not kinds)
    path = write_gguf(model, tmp_path / "model.gguf", Kind.Q8_0)
    kept, exact = load(path, "gguf", BF16), load(path, None)
    tokens, head = kept.input.tokens, kept.head
    assert (
        tokens.quantized is not None
        and head.quantized is not None
        and (tokens.quantized is head.quantized) == (not kinds)
    )
    assert tokens.method.name == f"gguf {kinds.get('token_embd.weight', 'Q8_0')}"
    ids = torch.tensor([0, 130, 7, 7, 16])
    assert torch.equal(tokens(ids), exact.input.tokens(ids).to(BF16))
    for count in (1, 5, 40):
        x, numbers = random(count, 256, dtype=BF16, seed=count), exact.head.weight.double()
        wanted, bound = x.double() @ numbers.T, lost_in_8_bits(x, numbers) * 1.001
        logits = head(x)
        assert logits.dtype == F32 and bool(((logits.double() - wanted).abs() <= bound).all())
        assert torch.equal(head(x, torch.empty_like(logits)), logits)
        second, first = wanted.topk(2).values.unbind(-1)[::-1]
        certain = first - second > 2 * bound.amax(-1)
        assert torch.equal(logits.argmax(-1)[certain], wanted.argmax(-1)[certain])
    expected = logits_of(exact)
    assert (logits_of(load(path, "gguf")) - expected).abs().max() < 1e-4 * expected.abs().max()
    planned = footprint.weight_bytes(make_blueprint(kept.spec, BF16, Shard()))
    assert planned == sum(parameter.nbytes for parameter in kept.parameters())
    on_gpu = make_blueprint(kept.spec, BF16, Shard(), device=torch.device("cuda"))
    assert on_gpu.head.weight.dtype == on_gpu.input.tokens.weight.dtype == BF16


@needs_kernels
def test_ranks_share_a_vocabulary_in_blocks(tmp_path: Path) -> None:
    """131 tokens, which two ranks do not divide; what is another rank's is looked up as zeros."""
    sizes, paths = {**SIZES, "hidden_size": 128, "intermediate_size": 256}, []
    for tied in (True, False):
        model = reference_model(**sizes, tie_word_embeddings=tied)
        paths.append(write_gguf(model, tmp_path / f"tied_{tied}.gguf", Kind.Q8_0))
    group_logits(2, paths, tmp_path)
    for path in paths:
        logits = torch.load(tmp_path / f"{path.stem}.pt")
        torch.testing.assert_close(logits, logits_of(load(path, None)), rtol=1e-4, atol=1e-4)


@needs_kernels
def test_the_demos_file_takes_its_own_bytes(tmp_path: Path) -> None:
    """Planned and measured, and 16 bits where that is asked for."""
    files = resolve_model(DEMO_MODEL, None, lambda *_: None)
    config = EngineConfig(model=DEMO_MODEL, quantization="gguf")
    spec = resolve_config(config, files, Shard()).spec
    planned = footprint.weight_bytes(make_blueprint(spec, BF16, Shard()))
    loaded = load_model(files, spec, CPU, BF16, lambda *_: None)
    assert planned == sum(parameter.nbytes for parameter in loaded.parameters())
    assert loaded.head.weights.weight.dtype == torch.int8 and loaded.head.quantized.interleaved
    assert footprint.checkpoint_bytes(files) is not None
    stored = sum(
        tensor.num_bytes
        for name, tensor in gguf_blocks.read_model(files.gguf).tensors.items()
        if any(part in name for part in LINEARS)
    )
    measured = sum(p.nbytes for linear in linears(loaded) for p in linear.parameters())
    assert measured == stored
    embedding = gguf_blocks.read_model(files.gguf).tensors["token_embd.weight"].num_bytes
    assert sum(each.nbytes for each in loaded.head.weights.parameters.values()) == embedding
    assert resolve_config(EngineConfig(model=DEMO_MODEL), files, Shard()).spec.quantization is None
    planned_for = resolve_for_estimate(config, files).spec.quantization
    assert planned_for is not None and planned_for.name == "gguf Q4_1"


def test_ranks_have_complete_blocks(tmp_path: Path) -> None:
    files = files_of(write_gguf(reference_model(**{**SIZES, "hidden_size": 128}), tmp_path / "model.gguf", Kind.Q4_0))
    spec = gguf_blocks.quantized(files, read_spec(files), "gguf")
    check_alignment(spec, 1)
    check_alignment(spec, 2)
    few = files_of(write_gguf(reference_model(**{**SIZES, "num_attention_heads": 4}), tmp_path / "few.gguf", Kind.Q4_0))
    spec = gguf_blocks.quantized(few, read_spec(few), "gguf")
    with pytest.raises(ConfigurationError, match=r"is not a multiple of 32, .*sizes that work: 1, 2"):
        check_alignment(spec, 4)


def test_the_flags_value_is_for_gguf_files(tmp_path: Path) -> None:
    files = ModelFiles("a directory", directory=tmp_path)
    with pytest.raises(ConfigurationError, match=r"--quantization gguf: is for .gguf files, and a directory"):
        gguf_blocks.quantized(files, None, "gguf")


def test_a_file_without_blocks_is_reported(tmp_path: Path) -> None:
    path = write_gguf(reference_model(**SIZES), tmp_path / "model.gguf")
    with pytest.raises(ConfigurationError, match="has no linear layers in Q4_0"):
        load(path, "gguf")
    assert {linear.weight.dtype for linear in linears(load(path, None))} == {F32}


@needs_kernels
def test_blocks_are_dequantized_to_be_quantized_otherwise(tmp_path: Path) -> None:
    path = write_gguf(reference_model(**SIZES), tmp_path / "model.gguf", Kind.Q4_0)
    assert {linear.method.name for linear in linears(load(path, "int8"))} == {"int8"}


@needs_kernels
def test_scales_that_are_no_numbers_are_refused(tmp_path: Path) -> None:
    path = write_gguf(reference_model(**SIZES), tmp_path / "model.gguf", Kind.Q4_0)
    start = gguf_blocks.read_model(path).tensors["blk.1.ffn_down.weight"].start
    content = bytearray(path.read_bytes())
    content[start : start + 2] = b"\x00\x7c"
    path.write_bytes(content)
    with pytest.raises(ModelLoadError, match=r"'blk.1.ffn_down.weight' has scales that are not finite"):
        load(path, "gguf")
