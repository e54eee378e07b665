"""The documentation: links that lead somewhere, pages that the index names."""

import re
from pathlib import Path

import pytest
from tests.documented import NOT_RUN, commands_of
from tests.documented import pages as documented_pages

_ROOT = Path(__file__).parents[3]
_PAGES = sorted([*_ROOT.glob("*.md"), *(_ROOT / "docs").rglob("*.md")])
_LINK = re.compile(r"\]\(([^)\s]+)\)")


def _anchors(page: Path) -> set[str]:
    """The anchors of a page's headings, as Git forges make them."""
    headings = re.findall(r"^#+ +(.*)$", page.read_text(), re.M)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", _PAGES, ids=lambda page: str(page.relative_to(_ROOT)))
def test_links_of_a_page_lead_somewhere(page: Path) -> None:
    broken = []
    for link in _LINK.findall(page.read_text()):
        target, _, anchor = link.partition("#")
        if "://" in target:
            continue
        path = (page.parent / target).resolve() if target else page
        if not path.exists() or (anchor and anchor not in _anchors(path)):
            broken.append(link)
    assert not broken, f"{page.relative_to(_ROOT)}: {', '.join(broken)}"


def test_the_index_names_every_page() -> None:
    index = _ROOT / "docs/README.md"
    named = {(index.parent / link.partition("#")[0]).resolve() for link in _LINK.findall(index.read_text())}
    pages = {page.resolve() for page in (_ROOT / "docs").rglob("*.md") if page != index and page.parent.name != "adr"}
    assert not pages - named, f"not in docs/README.md: {sorted(str(page) for page in pages - named)}"


def test_terms_of_the_glossary_are_in_order_and_name_modules() -> None:
    rows = re.findall(r"^\| ([^|]+) \| [^|]+ \| `([\w.]+)` \|$", (_ROOT / "docs/glossary.md").read_text(), re.M)
    assert len(rows) > 20
    terms = [term for term, _ in rows]
    assert terms == sorted(terms, key=str.lower)
    paths = {module: _ROOT / "src" / Path(*module.split(".")) for _, module in rows}
    missing = [name for name, path in paths.items() if not path.is_dir() and not path.with_suffix(".py").exists()]
    assert not missing, f"docs/glossary.md names modules that do not exist: {', '.join(missing)}"


def test_commands_that_are_not_run_stand_in_the_documentation() -> None:
    documented = {item for page in documented_pages() for item in commands_of(page)}
    stale = [f"{item.page}: {item.command}" for item in NOT_RUN if item not in documented]
    assert not stale, f"tests/documented.py has commands that no page has: {', '.join(stale)}"
    assert len(documented) > 100
