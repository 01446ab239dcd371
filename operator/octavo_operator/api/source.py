"""The sources of weights: one union for the model, and the same for its adapters with a narrower repository."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from octavo_operator.api.fields import Dns1123Name, HttpUrl, ImageReference, ObjectKey, VolumePath
from octavo_operator.api.schema import SpecModel, exactly_one_of, pattern

_HF_NAME = "[A-Za-z0-9_][A-Za-z0-9._-]*"


class SecretKeyReference(SpecModel):
    """One key of a Secret in the same namespace."""

    name: Dns1123Name = Field(description="Name of the Secret.")
    key: ObjectKey = Field(description="Key within the Secret.")


class SecretReference(SpecModel):
    """A Secret in the same namespace."""

    name: Dns1123Name = Field(description="Name of the Secret.")


class HuggingFaceSource(SpecModel):
    """A repository of the Hugging Face Hub, or of a mirror of it."""

    repository: Annotated[
        str,
        Field(max_length=257),
        pattern(
            f"{_HF_NAME}/{_HF_NAME}(:{_HF_NAME}(/{_HF_NAME})*)?",
            "must be written owner/name, such as meta-llama/Llama-3.1-8B, or owner/name:TAG of one of its GGUF models",
        ),
    ] = Field(description="Repository, written owner/name. owner/name:Q4_K_M names one of its GGUF models by a tag.")
    revision: (
        Annotated[
            str,
            Field(min_length=1, max_length=255),
            pattern("[A-Za-z0-9][A-Za-z0-9._/-]*", "must be a branch, a tag or a commit"),
        ]
        | None
    ) = Field(None, description="Branch, tag or commit. Default: the repository's main branch.")
    endpoint: HttpUrl | None = Field(None, description="Mirror to download from instead of the public hub.")
    token_secret_ref: SecretKeyReference | None = Field(None, description="Token for gated or private repositories.")


class PersistentVolumeClaimSource(SpecModel):
    """A folder on a PersistentVolumeClaim, always mounted read-only."""

    claim_name: Dns1123Name = Field(description="PersistentVolumeClaim in the same namespace.")
    path: VolumePath = Field("", description="Folder or .gguf file within the volume. Default: its root.")


class S3Source(SpecModel):
    """Objects under a prefix of an S3 bucket."""

    bucket: Annotated[
        str,
        Field(min_length=3, max_length=63),
        pattern("[a-z0-9][a-z0-9.-]*[a-z0-9]", "must be a bucket name: lower case letters, digits, '.' and '-'"),
    ] = Field(description="Name of the bucket.")
    prefix: VolumePath = Field("", description="Prefix of the model's objects.")
    region: Annotated[str, Field(max_length=63)] | None = Field(None, description="Region of the bucket.")
    endpoint_url: HttpUrl | None = Field(None, alias="endpointURL", description="Endpoint of an S3-compatible store.")
    credentials_secret_ref: SecretReference | None = Field(
        None, description="Secret with AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY. Default: the pod's own identity."
    )


class ImageSource(SpecModel):
    """An OCI image or artifact that holds the weights, mounted as an image volume."""

    reference: ImageReference = Field(description="Image reference, best by digest.")
    pull_policy: Literal["Always", "IfNotPresent", "Never"] = Field(
        "IfNotPresent", description="When nodes pull the image, as in a pod."
    )
    path: VolumePath = Field("", description="Folder or .gguf file within the image. Default: its root.")


class ModelSource(SpecModel):
    """The source of weights. Exactly one member is set."""

    rules = (
        exactly_one_of(
            "huggingFace",
            "persistentVolumeClaim",
            "s3",
            "image",
            "demo",
            message="exactly one source must be set: huggingFace, persistentVolumeClaim, s3, image or demo",
        ),
    )
    hugging_face: HuggingFaceSource | None = Field(None, description="A repository of the Hugging Face Hub.")
    persistent_volume_claim: PersistentVolumeClaimSource | None = Field(None, description="A folder on a volume.")
    s3: S3Source | None = Field(None, description="Objects in an S3 bucket.")
    image: ImageSource | None = Field(None, description="An OCI image that holds the weights.")
    demo: Literal["smollm2"] | None = Field(None, description="The small model that the engine's image contains.")


_WITHOUT_TAG = pattern(
    f"{_HF_NAME}/{_HF_NAME}", "must be written owner/name, without a tag: an adapter has no GGUF models"
)


class AdapterRepository(HuggingFaceSource):
    """A repository of an adapter. It has no tag: tags name GGUF models, and an adapter is what PEFT writes."""

    repository: Annotated[str, Field(max_length=257), _WITHOUT_TAG] = Field(
        description="Repository of a PEFT adapter, written owner/name."
    )

    @property
    def problem(self) -> str:
        """Return why no adapter can be fetched from it; empty: one can. Stored objects may have what is refused now."""
        is_right = _WITHOUT_TAG.holds is None or _WITHOUT_TAG.holds(self.repository)
        return (
            "" if is_right else f"its repository {self.repository!r} {_WITHOUT_TAG.message}; change it in spec.adapters"
        )


class AdapterSource(ModelSource):
    """The source of an adapter's weights. Exactly one member is set."""

    hugging_face: AdapterRepository | None = Field(None, description="A repository of the Hugging Face Hub.")
