"""Reads the classes of a classifier from config.json: their names, and the function from logits to probabilities."""

from __future__ import annotations

from typing import Any, Literal

from octavo_engine.model.fields import Fields
from octavo_engine.model.spec import ClassifierSpec

_MOST_CLASSES = 1 << 16
_PROBLEMS: dict[str, Literal["softmax", "sigmoid", "identity"]] = {
    "single_label_classification": "softmax",
    "multi_label_classification": "sigmoid",
    "regression": "identity",
}
_MODULES: dict[str, Literal["softmax", "sigmoid", "identity"]] = {
    "torch.nn.modules.linear.Identity": "identity",
    "torch.nn.modules.activation.Sigmoid": "sigmoid",
    "torch.nn.modules.activation.Softmax": "softmax",
}


def classifier(fields: Fields, **values: Any) -> ClassifierSpec:
    """Return the classification head of a model; `values` are its fields that say how logits are computed."""
    labels = _labels(fields)
    return ClassifierSpec(labels=labels, activation=_activation(fields, len(labels)), **values)


def _labels(fields: Fields) -> tuple[str, ...]:
    """Read the names in `id2label`, or number as many as `num_labels`, by default two."""
    named = fields.mapping("id2label")
    if named is None:
        return tuple(f"LABEL_{index}" for index in range(fields.integer("num_labels", 1, _MOST_CLASSES, default=2)))
    count = len(named.values)
    if not 1 <= count <= _MOST_CLASSES:
        raise fields.wrong("id2label", count, f"is not between 1 and {_MOST_CLASSES} classes")
    return tuple(named.text(str(index)) for index in range(count))


def _activation(fields: Fields, count: int) -> Literal["softmax", "sigmoid", "identity"]:
    """Read `problem_type` or the cross-encoder fields of sentence-transformers; the default depends on the classes."""
    if fields.has("problem_type"):
        problem = fields.text("problem_type")
        if problem not in _PROBLEMS:
            raise fields.wrong("problem_type", problem, f"is not one of {', '.join(_PROBLEMS)}")
        return _PROBLEMS[problem]
    holder, name = fields.mapping("sentence_transformers"), "activation_fn"
    if holder is None or not holder.has(name):
        holder, name = fields, "sbert_ce_default_activation_function"
    if not holder.has(name):
        return "sigmoid" if count == 1 else "softmax"
    module = holder.text(name)
    if module not in _MODULES:
        raise holder.wrong(name, module, f"is not supported; supported: {', '.join(_MODULES)}")
    return _MODULES[module]
