"""The pictures of the documentation: drawn from the text beside them, and about modules that exist."""

import hashlib
import re
from pathlib import Path

import pytest

_ROOT = Path(__file__).parents[3]
_TEXTS = sorted((_ROOT / "docs/pictures").glob("*.dot"))


def _module_exists(name: str) -> bool:
    path = _ROOT / "src" / Path(*name.split("."))
    return path.with_suffix(".py").exists() or (path / "__init__.py").exists()


def test_there_are_pictures_to_check() -> None:
    assert _TEXTS


@pytest.mark.parametrize("text", _TEXTS, ids=lambda path: path.stem)
def test_a_picture_names_modules_that_exist(text: Path) -> None:
    named = re.findall(r'tooltip="([^"]+)"', text.read_text())
    assert named, f"{text.name}: no step names its module (tooltip)"
    missing = sorted({name for name in named if not _module_exists(name)})
    assert not missing, f"{text.name}: no such module: {', '.join(missing)}; correct the text and run scripts/draw"


@pytest.mark.parametrize("text", _TEXTS, ids=lambda path: path.stem)
def test_a_picture_is_drawn_from_its_text(text: Path) -> None:
    checksum = hashlib.sha256(text.read_bytes()).hexdigest()
    assert f"<!-- drawn from sha256 {checksum} -->" in text.with_suffix(".svg").read_text(), "run scripts/draw"


@pytest.mark.parametrize("text", _TEXTS, ids=lambda path: path.stem)
def test_a_page_shows_the_picture(text: Path) -> None:
    pages = [page.read_text() for page in (_ROOT / "docs").glob("*.md")]
    assert any(f"(pictures/{text.stem}.svg)" in page for page in pages)
