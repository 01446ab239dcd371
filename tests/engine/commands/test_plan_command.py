"""`octavo-engine plan` and `pull` by the command line: what fits, which setting if not, and no weights for a plan."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from checkpoints import reference_model, save
from fake_hub import PATIENT, fake_hub

from octavo_engine.cli import main
from octavo_engine.commands import plan
from octavo_engine.config import EngineConfig
from octavo_engine.engine.startup.memory_plan_rows import short_context
from octavo_engine.engine.startup.sizing import size_engine
from octavo_engine.model.layers.operations import choose_compute
from octavo_engine.model.source import resolve_model
from octavo_engine.sizes import parse_size

LLAMA_70B = {
    "architectures": ["LlamaForCausalLM"],
    "hidden_size": 8192,
    "intermediate_size": 28672,
    "num_hidden_layers": 80,
    "num_attention_heads": 64,
    "num_key_value_heads": 8,
    "vocab_size": 128256,
    "max_position_embeddings": 131072,
    "rms_norm_eps": 1e-05,
    "rope_theta": 500000.0,
    "torch_dtype": "bfloat16",
}


@pytest.fixture
def llama_70b(tmp_path: Path) -> str:
    """Its configuration alone: 141 GB of weights are not needed for a plan."""
    (tmp_path / "config.json").write_text(json.dumps(LLAMA_70B))
    return str(tmp_path)


def rows(output: str) -> dict[str, str]:
    """The table a plan prints."""
    return {line.split("  ")[0]: line.split("  ", 1)[1].strip() for line in output.splitlines()}


def test_the_demo_model_fits(capsys):
    assert main(["plan", "smollm2", "--gpu-memory", "24GiB"]) == 0
    table = rows(capsys.readouterr().out)
    assert table["model"] == "smollm2 (LlamaForCausalLM, 30 layers)"
    assert table["weights"] == "256.6 MiB"  # 134,515,008 parameters in bfloat16
    assert table["checkpoint"] == "92.1 MiB"  # in Q4_1
    assert table["KV per token"] == "22.5 KiB"  # 2 * 30 layers * 3 heads * 64 * 2 bytes
    assert table["context"].startswith("8,192 tokens")
    assert table["fits"].startswith("yes, into 21.6 GiB")


def test_a_large_model_does_not_fit_on_one_gpu(llama_70b, capsys):
    assert main(["plan", llama_70b, "--gpu-memory", "80GiB"]) == 4
    output = capsys.readouterr()
    assert output.out == ""
    for part in (
        "does not fit into a GPU of 80.0 GiB",
        "weights 131.4 GiB",
        "there are 72.0 GiB",
        "more GPUs",
        "--quantization fp8",
    ):
        assert part in output.err
    assert output.err.count("\n") == 1


def test_the_same_model_fits_on_four(llama_70b, capsys):
    assert main(["plan", llama_70b, "--gpu-memory", "80GiB", "--tensor-parallel-size", "4"]) == 0
    table = rows(capsys.readouterr().out)
    assert table["on"] == "4 GPUs; the figures below are for each"
    assert table["weights"] == "32.9 GiB"
    assert table["KV per token"] == "80.0 KiB"
    assert table["checkpoint"] == "weights not downloaded yet"


def test_without_a_size_common_gpus_are_compared(llama_70b, capsys):
    assert main(["plan", llama_70b]) == 0
    output = capsys.readouterr().out
    found = {line.split("  ")[0]: [cell for cell in line.split("  ")[1:] if cell] for line in output.splitlines()}
    found = {name: [cell.strip() for cell in cells] for name, cells in found.items()}
    assert found["L4"][1:] == ["8", "16.4 GiB", *found["L4"][3:]]
    assert found["H100"][1:3] == ["2", "65.7 GiB"]
    assert main(["plan", llama_70b, "--gpu-memory", "139GiB", "--tensor-parallel-size", found["H200"][1]]) == 0
    planned = rows(capsys.readouterr().out)
    assert planned["KV cache"].startswith(found["H200"][3])
    assert planned["sequences"].startswith(f"{found['H200'][5]} of full length")


def test_a_cpu_is_planned_with_the_memory_of_this_machine(capsys):
    assert main(["plan", "smollm2", "--device", "cpu", "--max-model-len", "1024", "--kv-cache-memory", "64MiB"]) == 0
    table = rows(capsys.readouterr().out)
    assert table["on"].endswith(" free") and "GPU" not in table["on"]
    assert "CUDA graphs" not in table
    assert table["sequences"] == "2 of full length at a time"  # 2,912 tokens of 22.5 KiB
    assert main(["plan", "smollm2", "--device", "cpu", "--gpu-memory", "24GiB"]) == 2
    assert "omit one of the two" in capsys.readouterr().err


def test_planning_a_quantized_model_for_a_cpu_measures_nothing(monkeypatch, capsys):
    """A plan does not depend on which product is quickest; only an engine measures it, and keeps it in a file."""
    monkeypatch.setattr(choose_compute, "measured_crossovers", lambda *_, **__: pytest.fail("measured"))
    assert main(["plan", "smollm2", "--device", "cpu", "--quantization", "int4", "--kv-cache-memory", "64MiB"]) == 0
    assert rows(capsys.readouterr().out)["weights"].endswith("(linear layers in int4)")


def test_sequences_of_a_model_without_a_cache_are_those_of_a_step(tmp_path, capsys):
    config = {"architectures": ["BertModel"], "model_type": "bert", "hidden_size": 64, "intermediate_size": 128}
    config |= {"num_hidden_layers": 1, "num_attention_heads": 2, "vocab_size": 100, "max_position_embeddings": 512}
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert main(["plan", str(tmp_path)]) == 0
    assert {line.split()[-1] for line in capsys.readouterr().out.splitlines()[1:-2]} == {"4"}  # of 2,048 tokens


def test_a_model_that_fits_on_no_common_gpu(tmp_path, capsys):
    (tmp_path / "config.json").write_text(json.dumps({**LLAMA_70B, "intermediate_size": 32 * 28672}))
    assert main(["plan", str(tmp_path)]) == 4
    output = capsys.readouterr()
    assert output.out == "" and "does not fit into a GPU of 178.0 GiB" in output.err


@pytest.mark.parametrize(("ranks", "weights", "kv"), [(2, "136.8 MiB", "15.0 KiB"), (4, "68.4 MiB", "7.5 KiB")])
def test_the_fullest_of_uneven_ranks_is_planned(ranks, weights, kv, capsys):
    """That rank has two of three KV heads, or one of them with three of nine query heads."""
    assert main(["plan", "smollm2", "--gpu-memory", "24GiB", f"--tensor-parallel-size={ranks}"]) == 0
    table = rows(capsys.readouterr().out)
    assert (table["weights"], table["KV per token"]) == (weights, kv)


def test_a_context_that_is_shorter_than_the_models_says_so(capsys):
    """A server would refuse prompts that the model was made for, and nothing would have said why."""
    cases = {"1MiB": "32 of the model's 8,192 tokens: no more fit", "1GiB": "8,192 tokens (--max-model-len)"}
    for size, context in cases.items():
        assert main(["plan", "smollm2", "--device", "cpu", "--kv-cache-memory", size]) == 0
        assert rows(capsys.readouterr().out)["context"] == context
    arguments = ["plan", "smollm2", "--device", "cpu", "--kv-cache-memory", "1MiB", "--max-model-len", "32"]
    assert main(arguments) == 0
    assert rows(capsys.readouterr().out)["context"] == "32 tokens (--max-model-len)"


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"kv_cache_memory": 1 << 20}, "32 of the model's 8,192 tokens, since the KV cache of 720.0 KiB holds no more; "
         "for all of them it needs 180.0 MiB: raise --kv-cache-memory"),
        ({"num_kv_blocks": 4}, "64 of the model's 8,192 tokens, since .*: raise --num-kv-blocks"),
        ({"kv_cache_memory": 1 << 20, "max_model_len": 32}, "^$"),
        ({"kv_cache_memory": 1 << 30}, "^$"),
    ],
)  # fmt: skip
def test_an_engine_warns_of_a_context_that_is_shorter_than_the_models(settings, words):
    config = EngineConfig(model="smollm2", device="cpu", **settings)
    sizing = size_engine(config, resolve_model("smollm2", None, lambda *_: None))
    assert re.search(words, short_context(config, sizing.resolved, sizing.plan))


def test_a_length_that_does_not_fit_names_one_that_does(llama_70b, capsys):
    arguments = ["plan", llama_70b, "--gpu-memory", "40GiB", "--tensor-parallel-size", "4"]
    assert main([*arguments, "--max-model-len", "131072"]) == 4
    message = capsys.readouterr().err
    length = message.split("--max-model-len ")[-1].split(" (fits)")[0]
    assert main([*arguments, "--max-model-len", length]) == 0
    assert rows(capsys.readouterr().out)["context"] == f"{int(length):,} tokens (--max-model-len)"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--gpu-memory", "much"], "--gpu-memory: 'much' is not a size"),
        (["--gpu-memory", "80GiB", "--tensor-parallel-size", "0"], "--tensor-parallel-size: 0 is below"),
        (["--gpu-memory", "80GiB", "--max-model-len", "200000"], "--max-model-len 200000 is above the 131072 tokens"),
    ],
)
def test_wrong_settings_are_named(llama_70b, arguments, words, capsys):
    assert main(["plan", llama_70b, *arguments]) == 2
    assert words in capsys.readouterr().err


@pytest.mark.parametrize("command", [["plan", "--gpu-memory", "80GiB"], ["pull"]])
def test_an_unknown_model(command, capsys):
    assert main([*command, "no-such-model"]) == 3
    output = capsys.readouterr()
    assert "no-such-model: there is no such file or directory, and it is not a Hugging Face id either" in output.err
    assert output.out == ""


@pytest.mark.parametrize("model", ["smolm2", "SmolLM2-135M", "SMOLLM"])
def test_serve_refuses_a_misspelled_model_without_starting_an_engine(model, capsys):
    assert main(["serve", model]) == 3
    assert re.fullmatch(
        rf"octavo-engine: {model}: there is no such file .*; did you mean smollm2\? Otherwise give .*\n",
        capsys.readouterr().err,
    )


def test_an_empty_name_is_quoted(capsys):
    assert main(["plan", ""]) == 3
    assert "octavo-engine: '': there is no such file or directory" in capsys.readouterr().err


def test_pull_of_a_directory_says_where_it_is(llama_70b, capsys):
    assert main(["pull", llama_70b]) == 0
    assert capsys.readouterr().out == f"{llama_70b}\n"


def engine(home: Path, endpoint: str, *arguments: str) -> str:
    """The command in a process of its own: the hub library reads its environment once."""
    inherited = {key: value for key, value in os.environ.items() if not key.startswith("HF_")}
    done = subprocess.run(
        [Path(sys.executable).parent / "octavo-engine", *arguments],
        env={**inherited, **PATIENT, "HF_HOME": str(home), "HF_ENDPOINT": endpoint},
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout


def test_a_plan_pulls_no_weights_and_pull_does(tmp_path):
    repository = save(reference_model(), tmp_path / "repository", shard_size="60KB")
    with fake_hub("octavo/tiny", repository) as hub:
        table = rows(engine(tmp_path / "home", hub.url, "plan", "octavo/tiny", "--gpu-memory", "1GiB"))
        assert table["checkpoint"] == "weights not downloaded yet"
        assert not [path for path in hub.requested if path.endswith(".safetensors")]
        place = Path(engine(tmp_path / "home", hub.url, "pull", "octavo/tiny").strip())
    weights = {file.name for file in repository.glob("*.safetensors")}
    assert len(weights) > 1
    assert {file.name for file in place.glob("*.safetensors")} == weights


def test_fp8_halves_weights_and_cache(llama_70b, capsys):
    """Embedding and head stay: 2 * 128256 * 8192 numbers of 2 bytes on each of 4 GPUs a quarter."""
    arguments = ["plan", llama_70b, "--gpu-memory", "80GiB", "--tensor-parallel-size", "4"]
    assert main([*arguments, "--quantization", "fp8", "--kv-cache-dtype", "fp8"]) == 0
    table = rows(capsys.readouterr().out)
    assert table["weights"] == "16.9 GiB (linear layers in fp8)"  # 32.9 without
    assert table["KV per token"] == "40.0 KiB (fp8)"
    alone = ["plan", llama_70b, "--gpu-memory", "80GiB", "--max-model-len", "4096", "--quantization", "fp8"]
    assert main(alone) == 0
    assert rows(capsys.readouterr().out)["weights"] == "67.7 GiB (linear layers in fp8)"  # 131.4 without


def test_sampling_is_planned_for_the_few_rows_that_are_sampled_together(llama_70b, capsys):
    """256 rows of 128,256 logits at 32 bytes are a GiB, which no step takes."""
    arguments = ["plan", llama_70b, "--gpu-memory", "80GiB", "--tensor-parallel-size", "4"]
    assert main([*arguments, "--max-num-batched-tokens", "256"]) == 0
    assert parse_size(rows(capsys.readouterr().out)["one step"].split(" at ")[0].replace(" ", "")) < 512 << 20


def test_layers_are_looked_at_once_for_each_number_of_gpus(tmp_path, capsys, monkeypatch):
    """A model of thousands of layers was planned anew for each of ten GPUs, which took most of a minute."""
    (tmp_path / "config.json").write_text(json.dumps(LLAMA_70B))
    counted, need = [], plan.memory_need
    monkeypatch.setattr(plan, "memory_need", lambda resolved, config: counted.append(config) or need(resolved, config))
    assert main(["plan", str(tmp_path)]) == 0
    assert sorted(config.tensor_parallel_size for config in counted) == [1, 2, 4, 8]


def common_gpus(output: str) -> dict[str, list[str]]:
    """The cells of each row of the table, and its last lines, which have none."""
    rows = ([cell.strip() for cell in line.split("  ") if cell] for line in output.splitlines())
    return {row[0]: row[1:] for row in rows}


def test_gpus_that_do_not_multiply_in_fp8_need_room_for_dequantized_weights(llama_70b, capsys):
    """A100 and H100 have as much memory."""
    arguments = ["plan", llama_70b, "--tensor-parallel-size", "4", "--max-model-len", "4096", "--quantization"]
    assert main([*arguments, "fp8"]) == 0
    found = common_gpus(capsys.readouterr().out)
    kept, multiplied = (parse_size(found[gpu][3].replace(" ", "")) for gpu in ("A100 80GB", "H100"))
    largest = 2 * 28672 * 8192 // 4  # gate and up of one rank
    assert multiplied - kept == pytest.approx(2 * 2 * largest, abs=0.11 * 2**30)  # for steps and for graphs
    note = "keep the weights in FP8, but multiply in 16 bits: A10G, A100 40GB, A100 80GB"
    assert note in found
    assert main([*arguments, "int8"]) == 0
    found = common_gpus(capsys.readouterr().out)
    assert found["A100 80GB"] == found["H100"]
    assert note not in found
