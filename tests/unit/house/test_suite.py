"""``scripts/suite.py``: what it says about failed tests. The jobs are real runs of pytest on small files."""

import importlib.util
import signal
import sys
import time
from collections import Counter
from pathlib import Path
from types import ModuleType

import pytest

_ROOT = Path(__file__).parents[3]
_TESTS = """
import pytest

@pytest.mark.parametrize("case", ["good", "a bad - one"])
def test_case(case):
    assert case == "good"

def test_skipped():
    pytest.skip("not here")

@pytest.fixture
def broken():
    raise OSError("no device")

def test_setup(broken):
    pass
"""


@pytest.fixture(scope="module")
def suite() -> ModuleType:
    spec = importlib.util.spec_from_file_location("suite", _ROOT / "scripts/suite.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["suite"] = module
    spec.loader.exec_module(module)
    return module


def pytest_command(folder: Path) -> tuple[str, ...]:
    return ("env", "-C", str(folder), sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-c", "/dev/null",
            "--disable-plugin-autoload", "tests")  # fmt: skip


def test_failed_tests_are_listed_with_their_commands(
    suite: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "tests").mkdir()
    (tmp_path / "tests/test_it.py").write_text(_TESTS)
    job = suite.Job("unit", pytest_command(tmp_path), ("again",))
    suite.run_jobs([job], tmp_path)
    assert job.counts == Counter(passed=1, failed=2, skipped=1)
    assert suite.report([job]) == 1
    assert capsys.readouterr().out.endswith(
        "\n== 2 failed; each line runs one of them again:\n"
        "again 'tests/test_it.py::test_case[a bad - one]'\n"
        "again tests/test_it.py::test_setup\n"
        "\nsuite: 1 passed, 2 failed, 1 skipped\n"
    )


def test_a_job_that_ends_without_a_result_is_listed(
    suite: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    job = suite.Job("uml", (sys.executable, "-c", "raise SystemExit(125)"))
    suite.run_jobs([job], tmp_path)
    assert suite.report([job]) == 1
    assert "# exit status 125, no test named\n\nsuite: 0 passed, 1 failed, 0 skipped\n" in capsys.readouterr().out


def test_a_suite_in_which_all_pass_succeeds(
    suite: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "tests").mkdir()
    (tmp_path / "tests/test_it.py").write_text("def test_true():\n    assert True\n")
    job = suite.Job("unit", pytest_command(tmp_path))
    suite.run_jobs([job], tmp_path)
    assert suite.report([job]) == 0
    assert capsys.readouterr().out.endswith("\nsuite: 1 passed, 0 failed, 0 skipped\n")


def test_an_unknown_tier_is_refused(suite: ModuleType, capsys: pytest.CaptureFixture[str]) -> None:
    assert suite.main(["unit", "uint"]) == 2
    assert capsys.readouterr().err == "suite: no tier uint; the tiers are unit, types, kernel, thorough, uml, e2e\n"


def test_every_test_of_the_tier_uml_has_its_marker(suite: ModuleType) -> None:
    for file in (_ROOT / "tests/uml").glob("test_*.py"):
        assert "pytest.mark.uml" in file.read_text(), f"{file.name} has no marker uml: no guest runs its tests"


_ONCE = """
import pathlib

def test_good():
    pass

def test_once():
    print("the port is 4711")
    mark = pathlib.Path(__file__).with_name("mark")
    first = not mark.exists()
    mark.touch()
    assert not first
"""
"""The second test fails in the first run and passes in every later one."""
_ALWAYS = """
def test_always():
    assert False
"""


def repeated(suite: ModuleType, folder: Path, tier: str, *texts: str) -> int:
    """The exit status of the suite with one job of ``tier`` on these files, after the second run."""
    (folder / "tests").mkdir()
    for number, text in enumerate(texts):
        (folder / f"tests/test_{number}.py").write_text(text)
    *again, _ = pytest_command(folder)
    job = suite.Job(tier, pytest_command(folder), tuple(again))
    suite.run_jobs([job], folder)
    suite.repeat_failed([job], folder)
    status: int = suite.report([job])
    return status


def test_tests_that_pass_alone_are_named_unstable(
    suite: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert repeated(suite, tmp_path, "kernel", _ONCE) == 0
    output = capsys.readouterr().out
    shown = output.partition("== how the 1 unstable failed:\n")[2]
    assert "_ test_once _" in shown and "    assert not first" in shown and "the port is 4711" in shown
    assert "== 1 unstable, failed among the others and passed alone; mend the cause:" in output
    assert "tests/test_0.py::test_once\n\nsuite: 2 passed, 0 failed, 0 skipped, 1 of the passed unstable\n" in output


def test_tests_that_fail_alone_fail_the_suite(
    suite: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert repeated(suite, tmp_path, "e2e", _ONCE, _ALWAYS) == 1
    output = capsys.readouterr().out
    assert "== 1 failed; each line runs one of them again:" in output
    assert output.endswith("\nsuite: 2 passed, 1 failed, 0 skipped, 1 of the passed unstable\n")


def test_failed_unit_tests_do_not_run_again(
    suite: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert repeated(suite, tmp_path, "unit", _ONCE) == 1
    assert capsys.readouterr().out.endswith("\nsuite: 1 passed, 1 failed, 0 skipped\n")


def test_many_failed_tests_do_not_run_again(
    suite: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    many = "\n".join(f"def test_{number}():\n    assert False\n" for number in range(suite.REPEATED_TESTS))
    assert repeated(suite, tmp_path, "kernel", _ONCE, many) == 1
    assert f"suite: 1 passed, {suite.REPEATED_TESTS + 1} failed, 0 skipped\n" in capsys.readouterr().out


_BROKEN = """
import pathlib
import pytest

@pytest.fixture(scope="module")
def site():
    mark = pathlib.Path(__file__).with_name("mark")
    first = not mark.exists()
    mark.touch()
    return not first

@pytest.mark.parametrize("number", range(20))
def test_site(site, number):
    assert site
"""
"""All tests fail in the first run, since their common fixture does, and pass in every later one."""


def test_failed_tests_of_one_file_run_again(
    suite: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert repeated(suite, tmp_path, "kernel", _BROKEN, "def test_good():\n    pass\n") == 0
    assert capsys.readouterr().out.endswith("suite: 21 passed, 0 failed, 0 skipped, 20 of the passed unstable\n")


def test_tests_get_sigint_where_the_suite_ignores_it(suite: ModuleType, tmp_path: Path) -> None:
    (tmp_path / "tests").mkdir()
    assertion = "assert signal.getsignal(signal.SIGINT) is signal.default_int_handler"
    (tmp_path / "tests/test_it.py").write_text(f"import signal\n\ndef test_action():\n    {assertion}\n")
    job = suite.Job("kernel", pytest_command(tmp_path))
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        suite.run_jobs([job], tmp_path)
    finally:
        signal.signal(signal.SIGINT, before)
    assert job.counts == Counter(passed=1)


@pytest.mark.parametrize("limit", ["SILENT_S", "WHOLE_S"])
def test_a_stuck_job_is_ended_with_its_processes(
    suite: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], limit: str
) -> None:
    below = tmp_path / "below"
    monkeypatch.setattr(suite, limit, 0.5)
    code = f"sleep 600 & echo $! > {below}; echo begun; wait"
    monkeypatch.setattr(suite, "TIERS", {"kernel": lambda: iter([suite.Job("kernel", ("bash", "-c", code))])})
    monkeypatch.setattr(suite, "TOGETHER", (("kernel",),))
    monkeypatch.setattr(suite, "ROOT", tmp_path)
    monkeypatch.chdir(tmp_path)
    assert suite.main(["kernel"]) == 1
    output = capsys.readouterr().out
    assert "begun" in output and "== ended, since" in output and "exit status -6, no test named" in output
    process = Path("/proc", below.read_text().strip())
    while process.exists() and " Z " not in (process / "stat").read_text():
        time.sleep(0.02)
