"""``scripts/uml`` around a kernel that is none: what is handed in and out, what is said when it does not boot or dies.

The machine is a folder of small programs that is the whole PATH; ``linux`` is a script. The real one is tested by the
tier ``uml`` itself.
"""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

_ROOT = Path(__file__).parents[3]
_BASICS = ("bash", "cat", "dirname", "grep", "mkdir", "mkfifo", "mktemp", "rm", "sleep")
_UNSHARE = """
while [[ $1 == -* ]]; do shift; done
exec "$@"
"""
_LINUX = """
for word in "$@"; do
    case $word in podwire_exchange=*) cd "${word#*=}";; esac
done
"""
_GUEST = (
    _LINUX
    + """
echo 6.1 >booted
mapfile -d '' -t words <command
echo "booted" >&2
(cd "$(<folder)" && "${words[@]}")
echo $? >status
echo "reboot: Power down" >&2
"""
)


class Machine:
    """A PATH, and a folder for what is temporary."""

    def __init__(self, folder: Path) -> None:
        self.programs, self.temporary = folder / "bin", folder / "tmp"
        self.programs.mkdir()
        self.temporary.mkdir()
        for name in _BASICS:
            result = shutil.which(name)
            assert result is not None
            (self.programs / name).symlink_to(result)
        self.put("id", "echo 0")
        self.put("mount", "exit 0")
        self.put("modprobe", "exit 0")
        self.put("unshare", _UNSHARE)
        self.put("gcc", f'PATH={os.environ["PATH"]} exec {shutil.which("gcc")} "$@"')
        self.put("linux", _GUEST)

    def put(self, name: str, text: str) -> None:
        path = self.programs / name
        path.write_text(f"#!/bin/bash\n{text}\n")
        path.chmod(0o755)

    def run(self, *arguments: str, limit_s: int = 30) -> subprocess.CompletedProcess[str]:
        bash = shutil.which("bash")
        assert bash is not None
        done = subprocess.run(
            [bash, str(_ROOT / "scripts/uml"), *arguments], capture_output=True, text=True, timeout=60, check=False,
            env={"PATH": str(self.programs), "TMPDIR": str(self.temporary), "UML_LIMIT_S": str(limit_s)},
        )  # fmt: skip
        assert list(self.temporary.iterdir()) == []
        return done


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


def test_a_command_its_words_its_output_and_its_status(machine: Machine) -> None:
    done = machine.run("bash", "-c", 'printf "%s|" "$PWD" "$@"; exit 3', "name", "two words", "", 'a "quote"')
    assert done.stdout == f'{_ROOT}|two words||a "quote"|'
    assert done.returncode == 3
    assert done.stderr == "booted\n"


def test_a_kernel_that_does_not_boot(machine: Machine) -> None:
    machine.put("linux", "echo no ptrace here >&2; exit 7")
    done = machine.run("true")
    assert done.returncode == 125
    assert "no ptrace here\numl: user-mode Linux does not boot here (status 7)\numl: it needs ptrace" in done.stderr


def test_a_kernel_that_dies_while_the_command_runs(machine: Machine) -> None:
    machine.put("linux", _LINUX + "echo 6.1 >booted; kill -SEGV $$")
    done = machine.run("true", limit_s=9)
    assert done.returncode == 125
    assert "uml: the guest hung or died while the command ran (status 139, limit 9 s)" in done.stderr


@pytest.mark.parametrize("name", ["linux", "modprobe"])
def test_what_is_not_installed_is_named(machine: Machine, name: str) -> None:
    (machine.programs / name).unlink()
    done = machine.run("true")
    assert done.returncode == 125
    assert f"uml: the command {name} is missing: run scripts/setup" in done.stderr


def test_it_needs_root_and_a_command(machine: Machine) -> None:
    assert machine.run().stderr == "uml: name a command\n"
    machine.put("id", "echo 1000")
    assert machine.run("true").stderr == "uml: this needs root\n"
