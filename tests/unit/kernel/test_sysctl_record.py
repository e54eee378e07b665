"""The record of the values that sysctls had before podwire."""

from pathlib import Path

import pytest

from podwire.kernel.sysctl_record import Recorded, SysctlRecord, read

FORWARD = "net/ipv4/ip_forward"


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "state/sysctls.json"


def test_the_first_value_before_is_kept_across_starts(file: Path) -> None:
    SysctlRecord(file, ["eth0"]).note(FORWARD, "0", "1")
    later = SysctlRecord(file, ["eth0", "podwire-vxlan"])
    later.note(FORWARD, "1", "2")
    assert read(file).values == {FORWARD: Recorded("0", "2")}
    assert read(file).devices == ("eth0",)


def test_a_value_of_somebody_else_is_kept(file: Path) -> None:
    record = SysctlRecord(file, ["eth0"])
    record.note(FORWARD, "0", "1")
    record.note(FORWARD, "5", "1")
    assert read(file).values == {FORWARD: Recorded("5", "1")}


def test_only_devices_from_before_podwire_are_recorded(file: Path) -> None:
    record = SysctlRecord(file, ["eth0", "bond0.5"])
    for device in ("eth0", "bond0.5", "all", "default", "web-55cf-0864f3"):
        record.note(f"net/ipv4/conf/{device}/rp_filter", "1", "2")
    record.note("net/ipv6/neigh/podwire-vxlan/gc_stale_time", "1", "2")
    assert [path.split("/")[3] for path in read(file).values] == ["eth0", "bond0.5", "all", "default"]


def test_a_value_that_is_there_already_is_not_recorded(file: Path) -> None:
    SysctlRecord(file, ["eth0"]).note(FORWARD, "1", "1")
    assert not file.exists()


def test_a_broken_file_begins_anew(file: Path) -> None:
    file.parent.mkdir()
    file.write_text("{")
    SysctlRecord(file, ["eth0"]).note(FORWARD, "0", "1")
    assert read(file).values == {FORWARD: Recorded("0", "1")}
