"""The administrator's defaults for the pods of all LLMServices, where these set nothing themselves."""

from __future__ import annotations

import json

from pydantic import Field, ValidationError

from octavo_operator.api.corev1 import LocalReference, Toleration
from octavo_operator.api.fields import Dns1123Name
from octavo_operator.api.llmservice import Auth, LLMServiceSpec
from octavo_operator.api.network_policy import NetworkPolicy
from octavo_operator.api.schema import SpecModel


class EngineDefaults(SpecModel):
    """The chart's `engine` values beside its image."""

    tolerations: list[Toleration] = Field(default_factory=list, description="Beside those of the spec.")
    runtime_class_name: Dns1123Name | None = Field(None, description="Where the spec names none.")
    image_pull_secrets: list[LocalReference] = Field(default_factory=list, description="Where the spec names none.")
    auth: Auth | None = Field(None, description="Where the spec names no Secret with API keys.")
    network_policy: NetworkPolicy | None = Field(None, description="Where the spec has none.")
    fixed_user: bool = Field(True, description="Whether pods run as the image's user and group.")

    def applied_to(self, spec: LLMServiceSpec) -> LLMServiceSpec:
        """Return `spec` with these defaults in it."""
        scheduling, engine = spec.scheduling, spec.engine
        more = [each for each in self.tolerations if each not in scheduling.tolerations]
        changed = {
            "tolerations": [*scheduling.tolerations, *more],
            "runtime_class_name": scheduling.runtime_class_name or self.runtime_class_name,
        }
        secrets = {"image_pull_secrets": engine.image_pull_secrets or self.image_pull_secrets}
        update = {
            "scheduling": scheduling.model_copy(update=changed),
            "engine": engine.model_copy(update=secrets),
            "auth": spec.auth or self.auth,
            "network_policy": spec.network_policy or self.network_policy,
        }
        return spec.model_copy(update=update)


NO_DEFAULTS = EngineDefaults.model_validate({})


def parse_engine_defaults(text: str) -> EngineDefaults:
    """Parse the defaults from JSON; raises ValueError with a sentence about each problem."""
    try:
        return EngineDefaults.model_validate(json.loads(text))
    except ValidationError as error:
        problems = (f"{'.'.join(map(str, each['loc']))}: {each['msg']}" for each in error.errors(include_url=False))
        raise ValueError("; ".join(problems)) from None
