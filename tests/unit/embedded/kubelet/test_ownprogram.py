"""Which commands of containers mean the program ``podwire`` of this interpreter."""

import sys
from pathlib import Path

import pytest

from podwire.embedded.kubelet.ownprogram import find_own

OWN = Path(sys.executable).with_name("podwire")
BESIDE = {"PATH": f"/bin:{OWN.parent}"}


@pytest.mark.parametrize("program", [str(OWN), "podwire"])
def test_own_program_is_found_by_path_and_by_name(program: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PYTHONPATH", raising=False)
    assert find_own(program, BESIDE) == str(OWN)


@pytest.mark.parametrize(
    ("program", "env"),
    [
        ("podwire", {"PATH": "/bin"}),
        ("sh", BESIDE),
        (str(OWN.parent / "python"), BESIDE),
        (str(OWN.parent / "missing"), BESIDE),
        ("podwire", {**BESIDE, "PYTHONUNBUFFERED": "1"}),
    ],
    ids=str,
)
def test_other_programs_and_interpreters_are_executed(
    program: str, env: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("PYTHONPATH", raising=False)
    assert find_own(program, env) == ""


def test_modules_of_another_place_are_not_shared(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", "/elsewhere")
    assert find_own(str(OWN), BESIDE) == ""
