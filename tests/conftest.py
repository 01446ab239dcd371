"""Settings for all test processes, made before torch is imported."""

import gc
import logging
import os
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, settings

from octavo_engine.process_setup.openmp import sleep_soon

# Threads that spin while they wait for each other make small steps 15 times as slow on a machine with other work.
# There is such work in `make test`: the cluster's pods run beside all other tests.
sleep_soon(os.environ)
# For tiny models a second thread adds a third of CPU time and no speed. Tests of what threads share ask for more.
os.environ.setdefault("OMP_NUM_THREADS", "1")

# By default an example that takes more than 200 ms is a failure, as it is on a busy machine; and each run draws others,
# so that one fails by chance. `--hypothesis-profile=long` of tests/core draws new ones.
settings.register_profile("fixed", deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("fixed")

gc.disable()  # until all modules are imported


def pytest_collection_finish() -> None:
    """Exempt what the imports made from garbage collections: a full one walks a million objects, again and again."""
    gc.freeze()
    gc.enable()


def pytest_unconfigure() -> None:
    """Let the interpreter's end free them too: libraries report what is left then."""
    gc.unfreeze()


@pytest.fixture
def caplog(caplog: pytest.LogCaptureFixture) -> Iterator[pytest.LogCaptureFixture]:
    """pytest's fixture, without what a garbage collection reports meanwhile of objects that an earlier test left."""
    handler = caplog.handler
    handler.addFilter(not_about_leftovers)
    yield caplog
    handler.removeFilter(not_about_leftovers)


def not_about_leftovers(record: logging.LogRecord) -> bool:
    """Whether a record is not one of those that asyncio logs when an object is freed that nobody closed."""
    return record.name != "asyncio" or not record.getMessage().startswith(("Unclosed ", "Task was destroyed"))
