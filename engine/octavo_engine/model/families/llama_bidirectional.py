"""Llama Nemotron's models for embeddings and ranks, of NVIDIA: Llama in which each token also sees later ones."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Literal

from octavo_engine.model.families.classes import classifier
from octavo_engine.model.families.family import Family
from octavo_engine.model.families.llama import LLAMA
from octavo_engine.model.fields import Fields
from octavo_engine.model.spec import AttentionSpec, LayerSpec, ModelSpec

_POOLING: dict[str, Literal["mean", "cls", "last"]] = {"avg": "mean", "cls": "cls", "last": "last"}


def _both_ways(layer: LayerSpec) -> LayerSpec:
    mixer = layer.mixer
    return replace(layer, mixer=replace(mixer, causal=False)) if isinstance(mixer, AttentionSpec) else layer


def _read(architecture: str, fields: Fields) -> ModelSpec:
    pooling, temperature = fields.text("pooling", "avg"), fields.number("temperature", 0, 1e6, default=1.0)
    classifies = architecture.endswith("ForSequenceClassification")
    if pooling not in (_POOLING if classifies else ("avg",)):
        raise fields.wrong("pooling", pooling, f"is not supported for {architecture}")
    if classifies and temperature != 1:
        raise fields.wrong("temperature", temperature, "is not supported, only 1")
    spec = LLAMA.read(fields)
    return replace(
        spec,
        architecture=architecture,
        layers=tuple(map(_both_ways, spec.layers)),
        head=None,
        classifier=classifier(fields, pooling=_POOLING[pooling]) if classifies else None,
    )


LLAMA_BIDIRECTIONAL_FAMILIES = tuple(
    Family(
        architecture=f"LlamaBidirectional{ending}",
        model_type="llama_bidirec",
        read=partial(_read, f"LlamaBidirectional{ending}"),
        defaults=LLAMA.defaults,
    )
    for ending in ("Model", "ForSequenceClassification")
)
