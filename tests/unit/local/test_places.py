"""Who may make local clusters, and where they may lie."""

from pathlib import Path

import pytest

from podwire.errors import ConfigError
from podwire.local import places


def test_capabilities_are_read_from_the_status_of_a_process() -> None:
    status = "Name:\tx\nCapPrm:\t0000000000000000\nCapEff:\t0000000000201000\n"
    assert places.capabilities(status) == 1 << 21 | 1 << 12


@pytest.mark.parametrize("name", ["", "Upper", "-a", "a-", "a_b", "a" * 33, "a/b", "..", "a b"])
def test_a_name_that_is_no_label_is_refused(name: str) -> None:
    with pytest.raises(ConfigError, match=r"^--name: .*: expected lower-case letters"):
        places.check_name(name)


def test_a_state_folder_that_cannot_be_made_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(places, "RUN_ROOT", tmp_path / "run")
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match=r"^--state-dir: .*/file/demo: cannot be written: Not a directory"):
        places.establish("demo", 1, tmp_path / "file", ())
    assert not (tmp_path / "run").exists()
