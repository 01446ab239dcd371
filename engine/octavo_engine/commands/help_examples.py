"""The examples at the end of `octavo-engine COMMAND --help`: command lines that can be copied unchanged."""

from __future__ import annotations

FIRST_STEPS = """first steps:
  octavo-engine doctor                     what this machine has for serving, and what it lacks
  octavo-engine serve smollm2              a small model, on http://127.0.0.1:8000
  octavo-engine chat --temperature 0.2 http://127.0.0.1:8000
  octavo-engine COMMAND --help             the flags of a command, with examples

exit codes: 0 done; 1 a server gave no usable answer, or compare found a figure worse; 2 usage or configuration;
3 the model is not found or cannot be loaded; 4 it does not fit in memory; 5 the engine stalled or died
"""
_SERVE = """
  octavo-engine serve smollm2                                    the demo model, on port 8000
  octavo-engine serve Qwen/Qwen3-8B --max-model-len 16384        from the Hugging Face Hub, with a shorter context
  octavo-engine serve ./model --tensor-parallel-size 2           a directory, on two GPUs
  octavo-engine serve smollm2 --api-key-file keys.yaml           only for those who have a key
"""
_GENERATE = """
  octavo-engine generate smollm2 --input prompts.jsonl --output answers.jsonl
"""
_PLAN = """
  octavo-engine plan Qwen/Qwen3-8B                               how many of which common GPUs it needs
  octavo-engine plan Qwen/Qwen3-8B --gpu-memory 24GiB            how much of such a GPU it takes
  octavo-engine plan smollm2 --device cpu                        how much of this machine's memory it takes
"""
_PULL = """
  octavo-engine pull Qwen/Qwen3-8B                               into the cache, and print where
  octavo-engine pull owner/sql --adapter                         a LoRA adapter
"""
_ADAPTERS = """
  octavo-engine adapters --list wanted.json --output adapters.json
  octavo-engine serve ./model --enable-lora --lora-modules-file adapters.json
"""
_MODELS = """
  octavo-engine models                                           all families, and what of each is supported
  octavo-engine models --json                                    the same for programs
"""
_DOCTOR = """
  octavo-engine doctor                                           what is missing here, and how to fix it
  octavo-engine doctor --json                                    the same for programs
"""
_CHAT = """
  octavo-engine chat http://127.0.0.1:8000
  octavo-engine chat http://127.0.0.1:8000 --temperature 0.2 --system "Answer in one sentence."
  octavo-engine chat http://127.0.0.1:8000 --api-key-file key    or OCTAVO_API_KEY in the environment
"""
_BENCH = """
  octavo-engine bench http://127.0.0.1:8000                      1, 8 and 32 users
  octavo-engine bench http://127.0.0.1:8000 --rate 1,2,4 --workload sharegpt
  octavo-engine bench http://127.0.0.1:8000 --find-saturation rate --max-ttft-p90 2000
  octavo-engine bench http://127.0.0.1:8000 --json after.json --plot figures.html
"""
_COMPARE = """
  octavo-engine compare before.json after.json                   exit code 1 if a figure is worse by more than 5 %
  octavo-engine compare before.json after.json --plot figures.png
"""
_TOP = """
  octavo-engine top http://127.0.0.1:8000                        until Ctrl-C
  octavo-engine top http://127.0.0.1:8000 --count 1              once
"""
_COMPLETION = """
  octavo-engine completion bash > /etc/bash_completion.d/octavo-engine
  octavo-engine completion zsh > ~/.zfunc/_octavo-engine         a folder of fpath, before compinit
  octavo-engine completion fish > ~/.config/fish/completions/octavo-engine.fish
"""

EXAMPLES = {
    "serve": _SERVE,
    "generate": _GENERATE,
    "plan": _PLAN,
    "pull": _PULL,
    "adapters": _ADAPTERS,
    "models": _MODELS,
    "doctor": _DOCTOR,
    "chat": _CHAT,
    "bench": _BENCH,
    "compare": _COMPARE,
    "top": _TOP,
    "completion": _COMPLETION,
}
"""The examples of each command; a line may end with a comment, after two spaces or more."""
