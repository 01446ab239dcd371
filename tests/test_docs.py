"""The pages of the documentation: each is in the site's navigation, and their links lead somewhere."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).parents[1]
PAGES = [
    ROOT / "README.md",
    ROOT / "CONTRIBUTING.md",
    *sorted((ROOT / "docs").rglob("*.md")),
    *sorted((ROOT / "examples").glob("*.md")),
    *sorted((ROOT / "charts").rglob("*.md")),
]
LINK = re.compile(r"\]\((?P<path>[^)#\s:]*)(?:#(?P<anchor>[^)\s]*))?\)")
HEADING = re.compile(r"^#+ (.*)$", re.MULTILINE)
CODE = re.compile(r"^```.*?^```", re.MULTILINE | re.DOTALL)


def pages_of(entry: Any) -> Iterator[str]:
    """The pages below an entry of mkdocs.yml's `nav`."""
    if isinstance(entry, str):
        yield entry
    for child in entry if isinstance(entry, list) else entry.values() if isinstance(entry, dict) else ():
        yield from pages_of(child)


def anchors(page: Path) -> set[str]:
    """The anchors that the headings of a page have."""
    headings = HEADING.findall(CODE.sub("", page.read_text(encoding="utf-8")))
    return {re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", "-") for heading in headings}


def test_every_page_is_in_the_navigation() -> None:
    navigation = list(pages_of(yaml.safe_load((ROOT / "mkdocs.yml").read_text())["nav"]))
    there = [str(page.relative_to(ROOT / "docs")) for page in sorted((ROOT / "docs").rglob("*.md"))]
    assert sorted(navigation) == there


def test_the_comparison_of_load_generators_says_what_its_pages_say() -> None:
    page = ROOT / "docs/how-to/benchmark.md"
    rows = re.findall(r"\(\[measured\]\((.*)\)\) \| (.*) \| (.*) % \| (.*) % \|", page.read_text(encoding="utf-8"))
    assert len(rows) == 3
    for link, *said in rows:
        measured = (page.parent / link).read_text(encoding="utf-8")
        rounds = re.findall(r"^\| \d+ \|", measured, re.MULTILINE)
        [median] = re.findall(r"^\| median \|.*", measured, re.MULTILINE)
        ratios = [float(median.split("|")[column]) for column in (4, 7)]
        assert said == [str(len(rounds)), *(f"{abs(ratio - 1):.1%}"[:-1] for ratio in ratios)], link


def test_links_lead_to_files_and_headings() -> None:
    broken = []
    for page in PAGES:
        for link in LINK.finditer(CODE.sub("", page.read_text(encoding="utf-8"))):
            target = (page.parent / link["path"]).resolve() if link["path"] else page
            found = target.exists() and (not link["anchor"] or link["anchor"] in anchors(target))
            if not found:
                broken.append(f"{page.relative_to(ROOT)}: {link[0]}")
    assert broken == []
