"""``scripts/setup`` on machines where something is missing: what it says, and its exit status.

Each machine is a folder of small programs that is the whole PATH.
"""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

_ROOT = Path(__file__).parents[3]
_BASICS = ("bash", "cat", "dirname", "grep", "tail", "sha256sum", "env")
_COMMANDS = ("nft", "iptables-restore", "ip", "conntrack", "gcc", "make", "curl", "tcpdump")
_PYTHON = """#!/bin/bash
# Python as the script uses it: versions, venv, pip.
case "$*" in
*"not (3, 11)"*) exit ${OLD:-0};;
*sys.executable*) echo "$0";;
--version) echo "Python 3.11.2";;
*ensurepip*) exit ${NO_VENV:-0};;
*venv*) mkdir -p .venv/bin; cp "$0" .venv/bin/python; echo '#!/bin/bash' >.venv/bin/podwire
        chmod +x .venv/bin/podwire; exit ${NO_DISK:-0};;
*"pip install"*) echo "Could not find a version"; exit ${NO_INDEX:-0};;
esac
exit 0
"""


class Machine:
    """A checkout and a PATH."""

    def __init__(self, folder: Path) -> None:
        self.checkout, self.programs = folder / "checkout", folder / "bin"
        (self.checkout / "scripts").mkdir(parents=True)
        (self.checkout / "requirements").mkdir()
        (self.checkout / "src/cni").mkdir(parents=True)
        (self.checkout / "requirements/dev.txt").write_text("")
        (self.checkout / "pyproject.toml").write_text("")
        shutil.copy(_ROOT / "scripts/setup", self.checkout / "scripts/setup")
        self.programs.mkdir()
        for name in (*_BASICS, "mkdir", "cp", "chmod"):
            found = shutil.which(name)
            assert found is not None
            (self.programs / name).symlink_to(found)
        self.put("id", "echo 0")
        self.put("python3", _PYTHON)

    def put(self, name: str, text: str) -> None:
        """A program of the machine, a line of shell unless it says itself what it is."""
        path = self.programs / name
        path.write_text(text if text.startswith("#!") else f"#!/bin/bash\n{text}\n")
        path.chmod(0o755)

    def debian(self, *, installed: bool = True, reachable: bool = True) -> None:
        self.put("dpkg-query", "echo install ok installed" if installed else "exit 1")
        self.put("apt-get", "exit 0" if reachable else "echo 'Could not resolve host'; exit 100")

    def setup(self, **environment: str) -> subprocess.CompletedProcess[str]:
        bash = shutil.which("bash")
        assert bash is not None
        return subprocess.run(
            [bash, str(self.checkout / "scripts/setup")], capture_output=True, text=True, timeout=30, check=False,
            env={"PATH": str(self.programs), "LANG": os.environ.get("LANG", "C"), **environment},
        )  # fmt: skip


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


def refused(done: subprocess.CompletedProcess[str], status: int, *said: str) -> None:
    assert done.returncode == status, done.stdout + done.stderr
    for text in said:
        assert text in done.stderr, done.stderr


def test_a_machine_that_has_everything_but_kubectl(machine: Machine) -> None:
    machine.debian()
    done = machine.setup()
    assert done.returncode == 0, done.stderr
    assert "kubectl is not installed; 1.31 or newer" in done.stdout
    again = machine.setup()
    assert (again.returncode, again.stdout, again.stderr) == (0, "", "")


def test_kubectl_is_not_mentioned_where_it_is(machine: Machine) -> None:
    machine.debian()
    machine.put("kubectl", "exit 0")
    assert "kubectl" not in machine.setup().stdout


def test_packages_need_root(machine: Machine) -> None:
    machine.debian(installed=False)
    machine.put("id", "echo 1000")
    refused(machine.setup(), 2, "as root: apt-get install nftables", "gcc")


def test_packages_need_a_mirror(machine: Machine) -> None:
    machine.debian(installed=False, reachable=False)
    refused(machine.setup(), 1, "Could not resolve host", "is the package mirror reachable?", "gcc")


def test_another_distribution_is_told_what_it_lacks(machine: Machine) -> None:
    for name in _COMMANDS[:-4]:
        machine.put(name, "exit 0")
    refused(machine.setup(), 2, "no apt-get, and misses these commands: gcc make curl tcpdump")
    for name in _COMMANDS:
        machine.put(name, "exit 0")
    assert machine.setup().returncode == 0


def test_an_old_python_is_refused(machine: Machine) -> None:
    machine.debian()
    refused(machine.setup(OLD="1"), 2, "Python 3.11, 3.12 or 3.13 is needed")


def test_a_python_without_venv_is_completed_or_named(machine: Machine) -> None:
    machine.debian()
    assert machine.setup(NO_VENV="1").returncode == 0
    shutil.rmtree(machine.checkout / ".venv")
    machine.put("id", "echo 1000")
    refused(machine.setup(NO_VENV="1"), 2, "as root: apt-get install python3-venv")


def test_an_environment_that_cannot_be_made_is_named(machine: Machine) -> None:
    machine.debian()
    refused(machine.setup(NO_DISK="1"), 1, "the virtual environment failed")


def test_packages_of_python_need_an_index_and_are_tried_again(machine: Machine) -> None:
    machine.debian()
    refused(machine.setup(NO_INDEX="1"), 1, "Could not find a version", "is the Python package index reachable?")
    assert machine.setup().returncode == 0
