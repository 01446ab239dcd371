"""The decoder over paged attention gives transformers' logits, in float32, however a sequence is cut into steps."""

from __future__ import annotations

import pytest
import torch
from checkpoints import CONFIGURATIONS, SIZES, destinations, reference_model, save
from compared_logits import assert_same, random_tokens, reference_logits
from decoders import make_decoder
from loaded import load
from stepper import Sequence, Stepper

from octavo_engine.model.configuration.read_spec import read_spec
from octavo_engine.model.loader import load_model
from octavo_engine.model.source import resolve_model

CPU = torch.device("cpu")


@pytest.fixture(scope="module", params=CONFIGURATIONS)
def pair(request, tmp_path_factory):
    """A reference model and the same checkpoint in our decoder."""
    model = reference_model(**CONFIGURATIONS[request.param])
    return model, load(save(model, tmp_path_factory.mktemp(request.param)))


def test_whole_prompt(pair):
    model, decoder = pair
    tokens = random_tokens(100, 1)
    (logits,) = Stepper(decoder).step([(Sequence(tokens), 100)])
    assert_same(logits, reference_logits(model, tokens))


def test_prompt_in_chunks(pair):
    model, decoder = pair
    tokens = random_tokens(100, 2)
    sequence, stepper = Sequence(tokens), Stepper(decoder)
    logits = torch.cat([stepper.step([(sequence, n)])[0] for n in (7, 9, 16, 1, 40, 27)])
    assert_same(logits, reference_logits(model, tokens))


def test_one_token_at_a_time(pair):
    model, decoder = pair
    tokens = random_tokens(40, 3)
    sequence, stepper = Sequence(tokens), Stepper(decoder)
    logits = torch.cat([stepper.step([(sequence, 1)])[0] for _ in tokens])
    assert_same(logits, reference_logits(model, tokens))


def test_prefill_chunk_and_decode_in_one_step(pair):
    model, decoder = pair
    stepper = Stepper(decoder)
    lengths = (90, 3, 41, 17, 64, 33)
    sequences = [Sequence(random_tokens(n, 10 + n)) for n in lengths]
    got: list[list[torch.Tensor]] = [[] for _ in sequences]
    generator = torch.Generator().manual_seed(5)
    while any(s.computed < len(s.tokens) for s in sequences):
        work = []
        for index, sequence in enumerate(sequences):
            left = len(sequence.tokens) - sequence.computed
            count = min(left, int(torch.randint(0, 4, (), generator=generator)) * (1 if index % 2 else 13) + index % 2)
            if count:
                work.append((index, sequence, count))
        if work:
            for (index, _, _), logits in zip(work, stepper.step([(s, n) for _, s, n in work]), strict=True):
                got[index].append(logits)
    for sequence, logits in zip(sequences, got, strict=True):
        assert_same(torch.cat(logits), reference_logits(model, sequence.tokens))


def test_only_the_sampled_rows_come_back(pair):
    _, decoder = pair
    tokens = random_tokens(30, 4)
    (every,) = Stepper(decoder).step([(Sequence(tokens), 30)])
    (some,) = Stepper(decoder).step([(Sequence(tokens), 30)], sample=[29, 3])
    assert_same(some, every[[29, 3]])


def test_weights_in_several_files(tmp_path):
    model = reference_model()
    save(model, tmp_path, shard_size="40KB")
    assert len(list(tmp_path.glob("*.safetensors"))) > 3
    tokens = random_tokens(50, 5)
    (logits,) = Stepper(load(tmp_path)).step([(Sequence(tokens), 50)])
    assert_same(logits, reference_logits(model, tokens))


def test_bfloat16_is_close(tmp_path):
    model = reference_model()
    decoder = load(save(model, tmp_path), dtype=torch.bfloat16)
    tokens = random_tokens(50, 6)
    (logits,) = Stepper(decoder).step([(Sequence(tokens), 50)])
    reference = reference_logits(model, tokens)
    assert logits.dtype == torch.float32
    assert (logits - reference).abs().mean() < 0.05 * reference.abs().mean()


def test_heads_are_normalised_as_qwen3_does():
    from transformers import Qwen3Config, Qwen3ForCausalLM

    sizes = {**SIZES, "num_hidden_layers": 2, "head_dim": 24, "rms_norm_eps": 1e-5, "tie_word_embeddings": True}
    torch.manual_seed(4)
    model = Qwen3ForCausalLM(Qwen3Config(**sizes, rope_parameters={"rope_type": "default", "rope_theta": 10000.0}))
    for parameter in model.eval().parameters():
        parameter.data.normal_(std=0.25).add_(parameter.dim() == 1)
    shape = {"hidden_size": 64, "intermediate_size": 96, "num_heads": 8, "num_kv_heads": 2, "head_dim": 24}
    decoder = make_decoder(torch.float32, vocab_size=131, qk_norm=True, **shape)
    weights = model.state_dict()
    for name, target in destinations(decoder).items():
        target.copy_(weights[name])
    tokens = random_tokens(40, 7)
    (logits,) = Stepper(decoder).step([(Sequence(tokens), 40)])
    assert_same(logits, reference_logits(model, tokens))


def test_smollm2_has_the_logits_of_transformers(smollm2_reference):
    files = resolve_model("smollm2", None, lambda *_: None)
    spec = read_spec(files)
    decoder = load_model(files, spec, CPU, torch.float32, lambda *_: None)
    assert torch.equal(decoder.input.tokens.weight, smollm2_reference.get_input_embeddings().weight)
    sequences = [Sequence(random_tokens(n, n, spec.vocab_size)) for n in (1, 16, 90)]
    stepper = Stepper(decoder)
    whole = stepper.step([(s, len(s.tokens)) for s in sequences])
    for sequence, logits in zip(sequences, whole, strict=True):
        reference = reference_logits(smollm2_reference, sequence.tokens)
        difference = (logits.log_softmax(-1) - reference.log_softmax(-1)).abs().max()
        assert difference < 1e-3
        assert torch.equal(logits.argmax(-1), reference.argmax(-1))
