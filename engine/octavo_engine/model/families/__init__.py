"""The supported families, one small file each."""

from octavo_engine.model.families.cohere2 import COHERE2
from octavo_engine.model.families.family import Family
from octavo_engine.model.families.gemma2 import GEMMA2
from octavo_engine.model.families.gpt_oss import GPT_OSS
from octavo_engine.model.families.granite import GRANITE
from octavo_engine.model.families.llama import LLAMA
from octavo_engine.model.families.mistral import MISTRAL
from octavo_engine.model.families.mixtral import MIXTRAL
from octavo_engine.model.families.olmo2 import OLMO2
from octavo_engine.model.families.phi3 import PHI3
from octavo_engine.model.families.qwen2 import QWEN2
from octavo_engine.model.families.qwen3 import QWEN3
from octavo_engine.model.families.qwen3_moe import QWEN3_MOE
from octavo_engine.model.families.stablelm import STABLELM

_ALL = (
    LLAMA,
    QWEN2,
    QWEN3,
    QWEN3_MOE,
    MISTRAL,
    MIXTRAL,
    GPT_OSS,
    PHI3,
    GRANITE,
    OLMO2,
    COHERE2,
    STABLELM,
    GEMMA2,
)

FAMILIES: dict[str, Family] = {family.architecture: family for family in _ALL}
"""By the architecture's name in config.json."""

__all__ = ["FAMILIES", "Family"]
