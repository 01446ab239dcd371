"""The description of a model's pooled outputs: the embeddings or classes that it gives for texts."""

from __future__ import annotations

import re

from octavo_engine.engine.info import ClassifierInfo, EmbeddingInfo
from octavo_engine.model.configuration.pooling import PoolingConfig
from octavo_engine.model.source import ModelFiles
from octavo_engine.model.spec import ModelSpec

_QWEN3_RERANKER = re.compile(r"qwen3-(vl-)?reranker", re.IGNORECASE)
"""Names of Qwen3-Reranker, whose score is a logit of its answer; its files are those of any other Qwen3."""


def embedding_info(files: ModelFiles, spec: ModelSpec, pooling: PoolingConfig) -> EmbeddingInfo | None:
    """Return the description of the model's embeddings; None for a model that classifies."""
    if spec.classifier is not None:
        return None
    why = ""
    if spec.head is not None and _QWEN3_RERANKER.search(files.name):
        why = (
            "Qwen3-Reranker scores a pair by how likely its answer is yes, which is not supported; serve it converted "
            "to Qwen3ForSequenceClassification (tomaarsen/Qwen3-Reranker-0.6B-seq-cls and its like)"
        )
    size = pooling.size(spec.vector_size or spec.hidden_size)
    return EmbeddingInfo(size=size, pooling=pooling.kind, normalize=pooling.normalize, why_no_ranks=why)


def classifier_info(spec: ModelSpec) -> ClassifierInfo | None:
    """Return the description of the model's classes; None if it has none."""
    if spec.classifier is None:
        return None
    return ClassifierInfo(labels=spec.classifier.labels, activation=spec.classifier.activation)
