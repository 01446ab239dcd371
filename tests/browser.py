"""A headless Chromium for tests of the playground: Debian's, since Playwright's own cannot be fetched everywhere."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager

from playwright.sync_api import Browser, sync_playwright

from tests.cluster.packages import install_missing
from tests.cluster.report import Report

PROGRAM = "chromium-headless-shell"


def ensure_browser(report: Report) -> None:
    """Install the browser where it is absent; ClusterError where that cannot be done."""
    install_missing({PROGRAM: PROGRAM}, report)


@contextmanager
def browser() -> Iterator[Browser]:
    """A running browser. Tests run as root, where Chromium has no sandbox; it loads pages of our own only."""
    ensure_browser(print)
    with sync_playwright() as playwright:
        started = playwright.chromium.launch(
            executable_path=shutil.which(PROGRAM), args=["--no-sandbox"], timeout=120_000
        )
        yield started
        started.close()
