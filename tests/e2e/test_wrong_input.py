"""Wrong input to ``podwire up``: exit status 2, one line that names object, field and what was expected."""

import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.e2e.clusters import own_name, run

NAME = own_name("wrong")
RUN = Path("/run/podwire", NAME)


@pytest.fixture(autouse=True)
def nothing_left() -> Iterator[None]:
    """Fails when a test leaves a cluster."""
    yield
    created = RUN.exists()
    run("down", "--name", NAME)
    assert not created


def refused(done: subprocess.CompletedProcess[str], output: str, status: int = 2) -> None:
    text = done.stdout + done.stderr
    assert done.returncode == status, text
    assert "Traceback" not in text
    assert output in done.stderr
    assert done.stderr.count("\n") == 1, done.stderr


@pytest.mark.parametrize(
    ("text", "output"),
    [
        ("nodes: [", "not YAML: "),
        ("nodes: many", "nodes: expected a whole number, got a text"),
        ("nodez: 3", "unknown field `nodez`"),
        ("routing: {backend: 7}", "routing.backend: expected a text, got a whole number"),
        ("routing: {backend: pigeon}", "routing.backend: 'pigeon' is not a routing backend; expected one of "),
        ("proxy: {mode: pigeon}", "proxy.mode: 'pigeon' is not a data plane; expected one of nftables"),
        ("proxy: {conntrack: {udpTimeout: soon}}", "proxy.conntrack.udpTimeout: 'soon' is not a time, such as 24h0m0s"),
        ("proxy: {detectLocalMode: BridgeInterface}", "proxy.detectLocal.bridgeInterface: '' is not a device name"),
        ("podCIDRs: [ten]", "podCIDRs[0]: 'ten' does not appear to be an IPv4 or IPv6 network; expected a network"),
        ("serviceCIDRs: [10.244.0.0/24]", "serviceCIDRs[0]: 10.244.0.0/24 overlaps podCIDRs[0] (10.244.0.0/16)"),
        ("images: [{name: web}]", "images[0].command: expected a command"),
        ("- nodes", "expected an object, got a list"),
        ("\x00", "not YAML: "),
    ],
)
def test_a_wrong_configuration(tmp_path: Path, text: str, output: str) -> None:
    file = tmp_path / "cluster.yaml"
    file.write_text(text)
    refused(run("up", "--name", NAME, "--config", str(file)), output)


@pytest.mark.parametrize("name", ["Upper", "under_score", "-dash", "a/b", "..", "x" * 33, ""])
def test_a_wrong_name(name: str) -> None:
    for command in ("up", "down"):
        refused(run(command, "--name", name), f"--name: {name!r}: expected lower-case letters, digits and dashes")


def test_a_manifest_that_cannot_be_read(tmp_path: Path) -> None:
    (tmp_path / "bytes.yaml").write_bytes(b"\xff\xfe\x00")
    refused(run("up", "--name", NAME, "-f", str(tmp_path / "bytes.yaml")), f"{tmp_path}/bytes.yaml")
    (tmp_path / "loop.yaml").symlink_to("loop.yaml")
    refused(run("up", "--name", NAME, "-f", str(tmp_path / "loop.yaml")), f"{tmp_path}/loop.yaml")
    (tmp_path / "folder.yaml").mkdir()
    refused(run("up", "--name", NAME, "-f", str(tmp_path / "folder.yaml")), f"{tmp_path}/folder.yaml")


def test_a_folder_without_manifests(tmp_path: Path) -> None:
    refused(run("up", "--name", NAME, "-f", str(tmp_path)), str(tmp_path))


@pytest.mark.parametrize("place", ["/proc/nowhere", "/sys/nowhere"])
def test_a_state_folder_that_cannot_be_written(place: str) -> None:
    refused(run("up", "--name", NAME, "--state-dir", place), f"--state-dir: {place}/{NAME}: cannot be written: ")


def test_a_state_folder_that_is_a_file(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    refused(run("up", "--name", NAME, "--state-dir", str(tmp_path / "file")), "cannot be written: Not a directory")


def as_another(*limits: str) -> list[str]:
    setpriv = shutil.which("setpriv")
    if setpriv is None:
        pytest.fail("setpriv (util-linux) is not installed")
    return [setpriv, *limits]


@pytest.mark.parametrize("command", ["up", "down", "probe", "exec node-1 true"])
def test_without_root(command: str) -> None:
    """Runs as another user who may read all files, so that podwire refuses and not the file system."""
    limits = ("--reuid=65534", "--clear-groups", "--inh-caps=+dac_override,+dac_read_search",
              "--ambient-caps=+dac_override,+dac_read_search")  # fmt: skip
    refused(bound(as_another(*limits), command), "local clusters are made of network namespaces, which needs root")


@pytest.mark.parametrize("lacking", ["net_admin", "sys_admin"])
def test_a_root_without_rights(lacking: str) -> None:
    output = f"local clusters need CAP_{lacking.upper()}, which this process lacks"
    refused(bound(as_another(f"--bounding-set=-{lacking}"), "up"), output)


def bound(before: list[str], command: str) -> subprocess.CompletedProcess[str]:
    word, *rest = command.split()
    arguments = [*before, sys.executable, "-m", "podwire.cli.main", word, "--name", NAME, *rest]
    return subprocess.run(arguments, capture_output=True, text=True, timeout=120, check=False)
