"""All settings of the engine and its server: name, default, range and help of each, in one place.

The command line, the `OCTAVO_<NAME>` variables, the YAML of `--config` and the reference in docs/ are all made from
the two classes here, so that no limit can exist without a name. Settings with vLLM's meaning have vLLM's name.
"""

from octavo_engine.config.engine import EngineConfig
from octavo_engine.config.server import ServerConfig

__all__ = ["EngineConfig", "ServerConfig"]
