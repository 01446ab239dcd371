"""Octavo's engine: paged attention, continuous batching and an OpenAI-compatible API in one process tree.

`LLM` and `SamplingParams` are for offline use. They are imported at their first use, so that a process that does not
need torch (the HTTP process) does not load it.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from octavo_engine.llm import LLM
    from octavo_engine.sampling_params import SamplingParams

__version__ = "0.1.0"
__all__ = ["LLM", "SamplingParams", "__version__"]


def __getattr__(name: str) -> Any:
    if name == "LLM":
        from octavo_engine.llm import LLM

        return LLM
    if name == "SamplingParams":
        from octavo_engine.sampling_params import SamplingParams

        return SamplingParams
    raise AttributeError(name)
