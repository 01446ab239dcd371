"""Reward models, which give a conversation one score: Qwen2.5-Math RM (arXiv 2409.12122) and InternLM2 Reward.

Each is its language model with another head, which reads the last token's hidden state. InternLM2's last token has to
be `reward_token_id` of config.json, which clients append.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from octavo_engine.model.families.family import Family
from octavo_engine.model.families.internlm2 import INTERNLM2
from octavo_engine.model.families.qwen2 import QWEN2
from octavo_engine.model.fields import Fields
from octavo_engine.model.spec import ClassifierSpec, HeadTransformSpec, ModelSpec


def _family(language_model: Family, head: ClassifierSpec, **names: Any) -> Family:
    """Return the reward model made of `language_model`; `names` are those of its head's tensors."""
    architecture = language_model.architecture.replace("ForCausalLM", "ForRewardModel")

    def read(fields: Fields) -> ModelSpec:
        spec = language_model.read(fields)
        return replace(spec, architecture=architecture, head=None, classifier=head, names=replace(spec.names, **names))

    return replace(language_model, architecture=architecture, read=read)


_SCORE: dict[str, Any] = {"labels": ("reward",), "activation": "identity"}
REWARD_MODELS = (
    _family(
        QWEN2,
        ClassifierSpec(**_SCORE, bias=True, transform=HeadTransformSpec(bias=True, activation="relu", norm=None)),
        classifier_dense="score.0",
        classifier="score.2",
    ),
    _family(INTERNLM2, ClassifierSpec(**_SCORE), classifier="v_head"),
)
