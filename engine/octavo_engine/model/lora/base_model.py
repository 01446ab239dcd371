"""Warns of an adapter whose configuration names another base model than the one that is served.

Names prove nothing: a base is often a local folder, and many owners publish copies of one model. So it is a warning.
"""

from __future__ import annotations

import re

from octavo_engine.model.source import is_hub_id

_NUMBER_TYPE = re.compile(
    r"[-_.](gguf|awq|gptq|bnb|nf4|qat|bf16|quantized|unsloth|dynamic|(nv|mx)?fp[48]|int[48]|[48]-?bit|w\d+a\d+)\b.*"
)
"""The end of a name that says in which numbers a copy of a model is stored."""


def warn_of_base(trained_on: str, served: str) -> str:
    """Return a sentence if an adapter was trained on another Hugging Face repository than the served one, else "".

    `trained_on` is `base_model_name_or_path` of its configuration. Owners and ends that name a type of numbers are not
    compared, nor is `Meta-`, which Llama 3.1's repositories have lost. Names that are no Hugging Face ids are not
    compared at all. The tag of a GGUF model does not count.
    """
    repository = served.partition(":")[0]
    if not (is_hub_id(trained_on) and is_hub_id(repository)) or _model_name(trained_on) == _model_name(repository):
        return ""
    return (
        f"its configuration says that it was trained on {trained_on}, and {served} is served: "
        "if their weights differ, the adapter's answers are wrong"
    )


def _model_name(hub_id: str) -> str:
    name = hub_id.rpartition("/")[2].lower()
    return _NUMBER_TYPE.sub("", name).removeprefix("meta-")
