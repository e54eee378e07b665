"""Files of kernel parameters that stay open, in real namespaces."""

import subprocess
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from podwire.kernel import netns, sysctl
from podwire.kernel.sysctl_files import SysctlFiles
from podwire.state.route import Sysctl

FIRST = Sysctl("net/ipv4/conf/v0/send_redirects", "0")
SECOND = Sysctl("net/ipv4/conf/v0/accept_redirects", "0")


@pytest.fixture
def places(tmp_path: Path) -> Iterator[list[Path]]:
    """Two namespaces, each with a device of the same name."""
    paths = [tmp_path / name for name in ("one", "two")]
    for path in paths:
        netns.create(path)
        run(path, "link add v0 type veth peer name v1")
    yield paths
    for path in paths:
        netns.delete(path)


def open_files() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


def run(place: Path, command: str) -> None:
    subprocess.run(["nsenter", f"--net={place}", "ip", *command.split()], check=True)


def test_changed_values_are_found_in_their_namespace(places: list[Path]) -> None:
    one, two = places
    for place in places:
        for value in (FIRST, SECOND):
            sysctl.write(value.path, "0", place)
    with closing(SysctlFiles()) as files:
        files.keep("a", (FIRST, SECOND), one)
        files.keep("b", (FIRST,), two)
        assert files.differing() == []
        sysctl.write(FIRST.path, "1", two)
        sysctl.write(SECOND.path, "1", two)
        assert files.differing() == [(two, FIRST)]
        sysctl.write(SECOND.path, "1", one)
        assert files.differing() == [(one, SECOND), (two, FIRST)]
        files.drop("b")
        assert files.differing() == [(one, SECOND)]
        files.keep("a", (FIRST,), one)
        assert files.differing() == []


def test_files_follow_devices_that_are_made_again_or_renamed(places: list[Path]) -> None:
    place = places[0]
    with closing(SysctlFiles()) as files:
        sysctl.write(FIRST.path, "0", place)
        files.keep("a", (FIRST,), place)
        assert files.differing() == []
        run(place, "link del v0")
        assert files.differing() == []
        run(place, "link add v0 type veth peer name v1")
        assert files.differing() == [(place, FIRST)], "the kernel's default is 1"
        sysctl.write(FIRST.path, "0", place)
        assert files.differing() == []
        run(place, "link set v0 name w0")
        run(place, "link set v1 name v0")
        assert files.differing() == [(place, FIRST)]


def test_open_files_keep_no_namespace_and_are_closed(tmp_path: Path) -> None:
    place = tmp_path / "gone"
    netns.create(place)
    run(place, "link add v0 type veth peer name v1")
    before = open_files()
    files = SysctlFiles()
    files.keep("a", (FIRST, SECOND), place)
    assert [value for _, value in files.differing()] == [FIRST, SECOND]
    assert open_files() == before + 2
    netns.delete(place)
    deadline = time.monotonic() + 20
    while files.differing():
        assert time.monotonic() < deadline, "the namespace stays"
        time.sleep(0.01)
    files.close()
    assert open_files() == before
