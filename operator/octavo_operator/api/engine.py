"""The part of the spec that the engine's flags are made from."""

from __future__ import annotations

import difflib
import re
from typing import Annotated, Literal

from pydantic import Field

from octavo_operator.api.corev1 import EnvFromSource, EnvVar, LocalReference
from octavo_operator.api.engine_flags import EXTRA, FIELDS, RESERVED
from octavo_operator.api.fields import ImageReference
from octavo_operator.api.schema import ListType, Rule, Rules, SpecModel, pattern

_KNOWN_FLAG = f"--({'|'.join((*EXTRA, *FIELDS))})(=.*)?"


def _nearest(argument: str) -> str:
    """Return the flag that a misspelt one may be meant to be, and its field of the spec, as the end of a sentence."""
    name = argument.partition("=")[0].removeprefix("--")
    close = () if name in RESERVED else difflib.get_close_matches(name, (*EXTRA, *FIELDS), 1)
    fields = [f", which is spec.{FIELDS[flag]}" if flag in FIELDS else "" for flag in close]
    return "".join(f"; did you mean --{flag}{field}?" for flag, field in zip(close, fields, strict=True))


def _set_by(flag: str, path: str) -> Rule:
    return Rule(
        f"self != '--{flag}' && !self.startsWith('--{flag}=')",
        f"is what spec.{path} sets: write it there",
        lambda arg: arg.partition("=")[0] != f"--{flag}",
    )


class Engine(SpecModel):
    """Settings of the engine in each pod."""

    image: ImageReference | None = Field(
        None,
        description="Image of the engine. Default: the operator's at the first reconcile (status.engineImage).",
    )
    image_pull_policy: Literal["Always", "IfNotPresent", "Never"] = Field(
        "IfNotPresent", description="When nodes pull the image, as in a pod."
    )
    image_pull_secrets: Annotated[list[LocalReference], Field(max_length=8), ListType("name")] = Field(
        default_factory=list, description="Secrets for pulling the image."
    )
    dtype: Literal["auto", "bfloat16", "float16", "float32"] = Field(
        "auto", description="Type of weights and activations; auto takes the checkpoint's."
    )
    quantization: Literal["fp8", "int8", "int4", "awq", "gptq"] | None = Field(
        None,
        description="Quantization of the weights: fp8, int8 and int4 convert them while loading. A checkpoint that is"
        " already quantized needs no value, and accepts only the name of its own scheme.",
    )
    max_model_length: Annotated[int, Field(ge=1, le=16_777_216)] | None = Field(
        None, description="Longest context in tokens, prompt and answer together. Default: the model's, or what fits."
    )
    max_concurrent_requests: Annotated[int, Field(ge=1, le=2048)] = Field(
        64, description="Requests that one replica computes at the same time; autoscaling reads it."
    )
    max_queued_requests: Annotated[int, Field(ge=0, le=1_000_000)] = Field(
        256, description="Requests that may wait at one replica; more are answered 503 with Retry-After."
    )
    gpu_memory_utilization: Annotated[
        str,
        Field(max_length=8),
        pattern(r"0\.(0[5-9]|[1-9])[0-9]{0,3}|1(\.0{1,4})?", 'must be a share from "0.05" to "1", in quotes'),
    ] = Field("0.90", description="Share of the GPU's memory that the engine may take, as a string.")
    tensor_parallel_size: Annotated[int, Field(ge=1, le=64)] | None = Field(
        None, description="GPUs that share each layer. Default: accelerator.count."
    )
    extra_args: Annotated[
        list[
            Annotated[
                str,
                Field(max_length=1024),
                Rule(
                    "self.startsWith('--')",
                    "each argument is one item, written --flag or --flag=value",
                    lambda arg: arg.startswith("--"),
                ),
                Rules(tuple(_set_by(flag, path) for flag, path in FIELDS.items())),
                Rule(
                    f"!self.startsWith('--') || self.matches(r'^{_KNOWN_FLAG}$')",
                    "is a flag that the operator sets itself (as --port), that is not for a service (as --config),"
                    " or that the engine does not know; allowed are --" + ", --".join(EXTRA),
                    lambda arg: re.fullmatch(_KNOWN_FLAG, arg) is not None,
                    hint=_nearest,
                ),
            ]
        ],
        Field(max_length=32),
    ] = Field(default_factory=list, description="More flags of octavo-engine serve, each written --flag=value.",
              json_schema_extra={"x-kubernetes-list-type": "atomic"})  # fmt: skip
    env: Annotated[list[EnvVar], Field(max_length=64), ListType("name")] = Field(
        default_factory=list, description="More variables of the engine's environment."
    )
    env_from: Annotated[list[EnvFromSource], Field(max_length=16)] = Field(
        default_factory=list, description="Secrets and ConfigMaps whose keys become variables.",
        json_schema_extra={"x-kubernetes-list-type": "atomic"},
    )  # fmt: skip
