"""The description of a loaded engine, which it sends once, when it is ready."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from octavo_engine.sampling_params import SamplingDefaults


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryInfo:
    """Memory that the model takes on one device, in bytes."""

    weights: int
    step: int
    kv_per_token: int
    total: int
    """The device's memory; on a CPU, the container's."""

    def as_json(self) -> dict[str, int]:
        """Return the memory fields of /health/startup."""
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
    """The size of the weights' files in bytes."""

    def as_json(self) -> dict[str, str | int | None]:
        """Return the model fields of /health/startup."""
        return {"resolvedRevision": self.commit, "sizeBytes": self.size}


COMPUTED_POOLINGS = ("cls", "last", "max", "mean", "mean_sqrt_len", "weightedmean")
"""The supported poolings: the first token's hidden state, the last token's, the largest of each number, the mean of all
tokens', their sum by the root of their number, and the mean in which the n-th token counts n times."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EmbeddingInfo:
    """The embeddings that a model gives."""

    size: int
    pooling: str = "last"
    """The pooling of hidden states: one of `COMPUTED_POOLINGS`, or a kind that is not supported."""
    normalize: bool = True
    """Whether embeddings are scaled to length 1 unless the request says otherwise."""
    why_no_ranks: str = ""
    """Why the cosine of two embeddings does not measure relevance; empty if it does."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClassifierInfo:
    """The classes of a model that classifies texts instead of generating text or embeddings."""

    labels: tuple[str, ...]
    activation: Literal["softmax", "sigmoid", "identity"]
    """The function that turns logits into probabilities or a score."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AdapterInfo:
    """A loaded LoRA adapter."""

    name: str
    """The model name by which requests select it."""
    path: str
    """The path that the adapter was loaded from."""
    digest: str
    """The digest of the adapter's weights."""
    rank: int
    created: int
    """The Unix time, in seconds, at which the adapter was loaded."""
    warning: str = ""
    """A sentence if the adapter may be one of another base model."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineInfo:
    """The properties of a loaded engine that the server and `LLM` need."""

    max_model_len: int
    """Tokens of the longest sequence, prompt and answer together."""
    vocab_size: int
    """The width of the logits: every token id is below it."""
    eos_token_ids: tuple[int, ...]
    sampling: SamplingDefaults = field(default_factory=SamplingDefaults)
    """The defaults of sampling parameters that a request does not set."""
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
    """The most adapters in one step; 0 if adapters are not served."""
    adapters: tuple[AdapterInfo, ...] = ()
    """The adapters that --lora-modules names."""
    model: ModelInfo | None = None
    generates: bool = True
    """Whether the model generates text."""
    embedding: EmbeddingInfo | None = None
    """None if the model gives no embeddings."""
    classifier: ClassifierInfo | None = None
    """None if the model does not classify."""
