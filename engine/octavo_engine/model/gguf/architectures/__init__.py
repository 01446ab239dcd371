"""The architectures of GGUF files that are read: a file for each kind of model."""

from __future__ import annotations

from octavo_engine.errors import ModelLoadError
from octavo_engine.model.gguf.architecture import GGUFArchitecture
from octavo_engine.model.gguf.architectures.dense import DENSE
from octavo_engine.model.gguf.architectures.encoders import ENCODERS
from octavo_engine.model.gguf.architectures.experts import EXPERTS
from octavo_engine.model.gguf.architectures.gemma import GEMMA
from octavo_engine.model.gguf.architectures.hybrid import HYBRID
from octavo_engine.model.gguf.architectures.latent import LATENT
from octavo_engine.model.gguf.architectures.layer_norm import LAYER_NORM
from octavo_engine.model.gguf.header import Header

ARCHITECTURES = (*DENSE, *ENCODERS, *EXPERTS, *GEMMA, *HYBRID, *LATENT, *LAYER_NORM)


def gguf_architecture(header: Header) -> GGUFArchitecture:
    """Return the architecture of a file; ModelLoadError if its files are not read."""
    count = header.num_experts
    of_name = [each for each in ARCHITECTURES if each.name == header.file.architecture]
    # One expert is stated in files of Jamba with experts' keys, and in HunYuan's without.
    for experts in (True, False) if count == 1 else (count > 0,):
        for architecture in of_name:
            if architecture.experts == experts:
                return architecture
    kind = "the GGUF architecture"
    if of_name:
        kind += " with experts" if count else " without experts"
    supported = ", ".join(sorted({each.name for each in ARCHITECTURES}))
    name = header.file.architecture
    raise ModelLoadError(f"{header.fields.origin}: {kind} {name!r} is not supported (supported: {supported})")


def architecture_of(model_class: str) -> GGUFArchitecture | None:
    """Return the GGUF architecture of a model class; None if GGUF files of it are not read."""
    return next((each for each in ARCHITECTURES if model_class in (each.model_class, *each.other_classes)), None)
