"""The description of a loaded engine, which it sends once, when it is ready."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from octavo_engine.sampling_defaults import SamplingDefaults


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryInfo:
    """Memory that the model takes on one device, in bytes."""

    weights: int
    step: int
    kv_per_token: int
    total: int
    """The bytes of the device, or of the container on CPU."""

    def as_json(self) -> dict[str, int]:
        """The fields of /health/startup."""
        return {
            "weightBytes": self.weights,
            "stepBytes": self.step,
            "kvBytesPerToken": self.kv_per_token,
            "totalBytes": self.total,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelInfo:
    """The identity of the served model."""

    commit: str | None
    """The commit of a Hugging Face repository, if it is known."""
    size: int
    """Bytes of the weights' files."""

    def as_json(self) -> dict[str, str | int | None]:
        """The fields of /health/startup."""
        return {"resolvedRevision": self.commit, "sizeBytes": self.size}


COMPUTED_POOLINGS = ("cls", "last", "mean")
"""Vectors of the first token's hidden state, of the last one's, of the mean of all."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EmbeddingInfo:
    """The vectors that stand for texts."""

    size: int
    pooling: str = "last"
    """The hidden states that vectors are made of: one of `COMPUTED_POOLINGS`, or a kind that is not supported."""
    normalize: bool = True
    """Whether they have length 1 where a request does not say."""
    why_no_ranks: str = ""
    """The reason why the cosine of two vectors says nothing about their texts; empty: it does."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClassifierInfo:
    """The classes of a model that gives those instead of vectors or text."""

    labels: tuple[str, ...]
    activation: Literal["softmax", "sigmoid", "identity"]
    """The function that turns logits into probabilities or a score."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AdapterInfo:
    """A loaded LoRA adapter."""

    name: str
    """The model name by which requests select it."""
    path: str
    """The path that it was loaded from."""
    digest: str
    """The digest of its weights."""
    rank: int
    created: int
    """The time at which it was loaded, in seconds of Unix time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineInfo:
    """The properties of a loaded engine that the server and `LLM` need."""

    max_model_len: int
    """Tokens of the longest sequence, prompt and answer together."""
    vocab_size: int
    """Width of the logits: no token id may reach it."""
    eos_token_ids: tuple[int, ...]
    sampling: SamplingDefaults = field(default_factory=SamplingDefaults)
    """The sampling parameters that a request leaves open."""
    block_size: int
    num_kv_blocks: int
    max_num_seqs: int
    dtype: str
    kv_cache_dtype: str = "auto"
    """`auto`, as in vLLM, for keys and values in `dtype`."""
    device: str
    attention_backend: str
    load_seconds: float
    memory: MemoryInfo | None = None
    max_loras: int = 0
    """Most adapters in a step; 0: none are served."""
    adapters: tuple[AdapterInfo, ...] = ()
    """The adapters that --lora-modules names."""
    model: ModelInfo | None = None
    generates: bool = True
    """Whether it answers with text."""
    embedding: EmbeddingInfo | None = None
    """None: it gives no vectors."""
    classifier: ClassifierInfo | None = None
    """None: it does not classify."""
