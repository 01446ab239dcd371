"""Generating models that were published without their head, as embedding models or as classifiers.

transformers saves Qwen3Model with names that lack the prefix, and Qwen3ForSequenceClassification with a `score` of the
last token's hidden state. Both are the family of Qwen3ForCausalLM.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial

from octavo_engine.errors import ModelLoadError
from octavo_engine.model.checkpoint.names import StoredNames
from octavo_engine.model.families.classes import classifier
from octavo_engine.model.families.family import Family
from octavo_engine.model.fields import Fields
from octavo_engine.model.spec import ModelSpec

_EMBEDDING, _CLASSIFYING = "Model", "ForSequenceClassification"
_HEADS = ("ForCausalLM", "LMHeadModel")


def family_without_head(architecture: str, families: Mapping[str, Family]) -> Family | None:
    """Return the family of a class without its head, such as Qwen3Model; None if there is none."""
    for ending in filter(architecture.endswith, (_CLASSIFYING, _EMBEDDING)):
        stem = architecture.removesuffix(ending)
        names = (f"{prefix}{head}" for prefix in (stem, stem.removesuffix("Text")) for head in _HEADS)
        if (family := next((families[name] for name in names if name in families), None)) is None:
            return None
        read = partial(_read, family, architecture, classifies=ending == _CLASSIFYING)
        return replace(family, architecture=architecture, read=read)
    return None


def _read(family: Family, architecture: str, fields: Fields, *, classifies: bool) -> ModelSpec:
    spec = family.read(fields)
    if spec.embedding_size is not None or (classifies and spec.head is not None and spec.head.transform is not None):
        raise ModelLoadError(
            f"{fields.origin}: {architecture} has a projection between its last layer and its head, which is supported "
            f"for {family.architecture} alone"
        )
    return replace(
        spec,
        architecture=architecture,
        head=None,
        classifier=classifier(fields) if classifies else None,
        stored_names=_stored_names(spec),
    )


def _stored_names(spec: ModelSpec) -> StoredNames:
    """Return names in files with or without the decoder's prefix; a head's tensors are not read."""
    names, stored = spec.names, spec.stored_names
    prefix = names.embedding.partition(".")[0] + "."
    kept = (f"{names.classifier}.", f"{names.head}.", prefix)
    bare = ((there.removeprefix(prefix), here) for there, here in stored.renamed if there.startswith(prefix))
    renamed = (*stored.renamed, *bare, *((name, name) for name in kept), ("", prefix))
    return StoredNames(renamed=renamed, ignored=(*stored.ignored, f"{names.head}."))
