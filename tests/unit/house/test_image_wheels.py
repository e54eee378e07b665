"""``scripts/image/wheels.py``: wheels that are there are not fetched again."""

import importlib
import subprocess
from pathlib import Path

import pytest

_SCRIPTS = Path(__file__).parents[3] / "scripts"


def test_wheels_that_are_there_are_not_fetched_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(_SCRIPTS))
    wheels = importlib.import_module("image.wheels")
    requirements = tmp_path / "requirements.txt"
    requirements.write_text("google-re2==1.1 \\\n    --hash=sha256:00\nclick==8.5.1 \\\n    --hash=sha256:00\n")
    folder = tmp_path / "amd64/wheels"
    folder.mkdir(parents=True)
    names = ("click-8.5.1-py3-none-any.whl", "google_re2-1.1-1-cp311-cp311-manylinux_2_28_x86_64.whl")
    for name in names:
        (folder / name).touch()

    def refuse(*_arguments: object, **_options: object) -> None:
        pytest.fail("pip is called")

    monkeypatch.setattr(subprocess, "run", refuse)
    assert [path.name for path in wheels.fetch(requirements, (), "amd64", tmp_path)] == list(names)
