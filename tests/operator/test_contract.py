"""Two programs, one contract: each flag that the operator renders or lets through is one that the engine parses."""

from __future__ import annotations

import argparse

import pytest
import yaml

from octavo_engine.cli import build_parser
from octavo_operator.api.engine_flags import EXTRA, RENDERED, RESERVED
from tests.operator.golden import GOLDEN, inputs


def serve_parser() -> argparse.ArgumentParser:
    (commands,) = [action for action in build_parser()._actions if isinstance(action, argparse._SubParsersAction)]
    return commands.choices["serve"]


def engine_flags() -> set[str]:
    return {
        option.removeprefix("--")
        for action in serve_parser()._actions
        for option in action.option_strings
        if option.startswith("--")
    }


@pytest.mark.parametrize("case", inputs())
def test_the_engine_parses_what_is_rendered(case: str) -> None:
    (deployment,) = [
        m for m in yaml.safe_load_all((GOLDEN / case / "expected.yaml").read_text()) if m["kind"] == "Deployment"
    ]
    (container,) = deployment["spec"]["template"]["spec"]["containers"]
    assert container["command"] == ["octavo-engine"]
    parsed = build_parser().parse_args(container["args"])
    assert parsed.model == container["args"][1]


def test_every_flag_of_the_engine_is_rendered_reserved_or_let_through() -> None:
    """A new flag must be given its place here, or nobody could set it (or everybody could)."""
    assert engine_flags() == {*RENDERED, *RESERVED, *EXTRA} - {"model"}


def test_no_flag_has_two_places() -> None:
    assert not RENDERED & set(EXTRA)
    assert not RENDERED & RESERVED
    assert not RESERVED & set(EXTRA)
