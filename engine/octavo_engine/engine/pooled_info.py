"""The description of a model's pooled outputs: the vectors or classes that it gives for texts."""

from __future__ import annotations

import re

from octavo_engine.engine.info import ClassifierInfo, EmbeddingInfo
from octavo_engine.model.pooling import PoolingConfig
from octavo_engine.model.source import ModelFiles
from octavo_engine.model.spec import ModelSpec

_QWEN3_RERANKER = re.compile(r"qwen3-(vl-)?reranker", re.IGNORECASE)
"""Its files are those of any Qwen3, so only its name shows that its score is a logit of its answer."""


def embedding_info(files: ModelFiles, spec: ModelSpec, pooling: PoolingConfig) -> EmbeddingInfo | None:
    """The model's vectors; None for one that classifies."""
    if spec.classifier is not None:
        return None
    why = ""
    if spec.head is not None and _QWEN3_RERANKER.search(files.name):
        why = (
            "Qwen3-Reranker scores a pair by how likely its answer is yes, which is not supported; serve it converted "
            "to Qwen3ForSequenceClassification (tomaarsen/Qwen3-Reranker-0.6B-seq-cls and its like)"
        )
    size = pooling.size(spec.hidden_size)
    return EmbeddingInfo(size=size, pooling=pooling.kind, normalize=pooling.normalize, why_no_ranks=why)


def classifier_info(spec: ModelSpec) -> ClassifierInfo | None:
    """The model's classes; None if it has none."""
    if spec.classifier is None:
        return None
    return ClassifierInfo(labels=spec.classifier.labels, activation=spec.classifier.activation)
