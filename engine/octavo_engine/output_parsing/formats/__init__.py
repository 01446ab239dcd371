"""The formats in which models write tool calls, one module each."""

from octavo_engine.output_parsing.formats.deepseek import DEEPSEEK
from octavo_engine.output_parsing.formats.forced import FORCED
from octavo_engine.output_parsing.formats.glm import GLM
from octavo_engine.output_parsing.formats.harmony import HARMONY
from octavo_engine.output_parsing.formats.hermes import HERMES
from octavo_engine.output_parsing.formats.llama3_json import LLAMA3_JSON
from octavo_engine.output_parsing.formats.mistral import MISTRAL
from octavo_engine.output_parsing.formats.olmo3 import OLMO3
from octavo_engine.output_parsing.formats.pythonic import PYTHONIC
from octavo_engine.output_parsing.formats.qwen3_coder import QWEN3_CODER
from octavo_engine.output_parsing.formats.tool import Format

_ALL = (HARMONY, QWEN3_CODER, GLM, DEEPSEEK, MISTRAL, HERMES, OLMO3, PYTHONIC, LLAMA3_JSON)
"""Formats that need more of a template to be recognised come first."""

FORMATS: dict[str, Format] = {format_.name: format_ for format_ in _ALL}


def format_of(template: str) -> Format | None:
    """Return the format of a model's chat template; None if it knows no tools."""
    if "tools" not in template:
        return None
    return next((each for each in _ALL if all(marker in template for marker in each.in_template)), None)


__all__ = ["FORCED", "FORMATS", "Format", "format_of"]
