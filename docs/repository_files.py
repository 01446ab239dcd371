"""A hook of the documentation site: files of the repository that a page links to become part of the site.

Pages under docs/ link to samples, charts and results beside docs/, which is right for those who read them in the
repository. In the site these files stand under `repository/`, and the links point there.
"""

from __future__ import annotations

import os
import re
from pathlib import Path, PurePosixPath

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parent.parent
_LINK = re.compile(r"(?<=\]\()(?P<path>[^)#\s:]+)(?P<anchor>#[^)\s]*)?(?=\))")
_PREFIX = "repository"


def on_files(files: Files, *, config: MkDocsConfig) -> Files:
    """Add what the pages link to, and what the added pages link to in turn."""
    waiting = [file.src_uri for file in files.documentation_pages()]
    while waiting:
        page = waiting.pop()
        for target in _outside(page, _source(page).read_text(encoding="utf-8")):
            if files.get_file_from_path(f"{_PREFIX}/{target}") is None and (ROOT / target).is_file():
                files.append(File.generated(config, f"{_PREFIX}/{target}", abs_src_path=str(ROOT / target)))
                if target.endswith(".md"):
                    waiting.append(f"{_PREFIX}/{target}")
    return files


def on_page_markdown(markdown: str, *, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Point links to files outside docs/ at their copies in the site."""
    here = page.file.src_uri

    def rewritten(link: re.Match[str]) -> str:
        target = _target(here, link["path"])
        if target is None:
            return link[0]
        found = target.removeprefix("docs/") if target.startswith("docs/") else f"{_PREFIX}/{target}"
        return os.path.relpath(found, PurePosixPath(here).parent) + (link["anchor"] or "")

    return _LINK.sub(rewritten, markdown)


def _source(page: str) -> Path:
    """Return the file in the repository that a page of the site is made from."""
    return ROOT / page.removeprefix(f"{_PREFIX}/") if page.startswith(f"{_PREFIX}/") else ROOT / "docs" / page


def _outside(page: str, markdown: str) -> list[str]:
    """Return the files outside docs/ that a page links to, relative to the repository."""
    targets = (_target(page, link["path"]) for link in _LINK.finditer(markdown))
    return [target for target in targets if target is not None and not target.startswith("docs/")]


def _target(page: str, link: str) -> str | None:
    """Resolve a relative link to a path in the repository; None for a link within docs/ from a page there."""
    inside = not page.startswith(f"{_PREFIX}/")
    path = os.path.normpath(_source(page).parent / link)
    target = os.path.relpath(path, ROOT)
    return None if inside and target.startswith("docs/") else target
