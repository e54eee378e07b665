"""The directory of the plugin host-local."""

import datetime
from ipaddress import ip_network
from pathlib import Path

import pytest

from podwire.cni.ipam import hostlocal
from podwire.cni.ipam.leases import Leases
from podwire.cni.ipam.ledger import Ledger
from podwire.cni.ipam.lending import AddressLending
from podwire.cni.ipam.pool import exhausted
from podwire.cni.protocol import AttachmentKey


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    place = tmp_path / "cbr0"
    place.mkdir()
    files = {
        "10.244.1.2": "aa\r\neth0",
        "fd00:1::2": "aa\r\neth0",
        "10.244.1.3": "bb\nnet1",
        "10.244.1.4": "old-version",
        "10.244.1.5": "",
        "last_reserved_ip.0": "10.244.1.5",
        "lock": "",
        "10.244.1.": "x",
    }
    for name, text in files.items():
        (place / name).write_bytes(text.encode())
    return place


def make(path: Path) -> Leases:
    return Leases(Ledger(path), lambda: datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC), 0.0)


def test_files_become_attachments(directory: Path) -> None:
    held = {(item.key.container, item.key.ifname): item.addresses for item in hostlocal.read(directory)}
    assert held == {
        ("aa", "eth0"): ("10.244.1.2", "fd00:1::2"),
        ("bb", "net1"): ("10.244.1.3",),
        ("old-version", "eth0"): ("10.244.1.4",),
        ("unknown-10.244.1.5", "eth0"): ("10.244.1.5",),
    }
    assert list(map(str, hostlocal.last_assigned(directory))) == ["10.244.1.5"]


def test_held_addresses_are_not_assigned_again(directory: Path, tmp_path: Path) -> None:
    leases = make(tmp_path / "ipam.db")
    assert leases.import_held(hostlocal.read(directory), hostlocal.last_assigned(directory)) == 4
    leases.serve([ip_network("10.244.1.0/29"), ip_network("fd00:1::/64")])
    assert [str(ip) for ip in leases.choose()] == ["10.244.1.6", "fd00:1::3"]
    assert exhausted(leases.pools, leases.closed) == ("10.244.1.0/29",)


def test_addresses_are_imported_once(directory: Path, tmp_path: Path) -> None:
    leases = make(tmp_path / "ipam.db")
    leases.import_held(hostlocal.read(directory), ())
    leases.release(list(leases.lent.values()))
    leases.close()
    again = make(tmp_path / "ipam.db")
    assert again.import_held(hostlocal.read(directory), ()) == 0
    assert again.lent == {}


def test_imported_addresses_are_freed(directory: Path, tmp_path: Path) -> None:
    """By a DEL under any name of the network, and when the other plugin removed its file."""
    leases = make(tmp_path / "ipam.db")
    leases.import_held(hostlocal.read(directory), ())
    lending = AddressLending(leases)
    lending.forget(AttachmentKey("podwire", "aa", "eth0"))
    (directory / "10.244.1.3").unlink()
    for _ in range(2):
        lending.sweep(lambda path: not Path(path).exists())
    assert sorted(key.container for key in leases.lent) == ["old-version", "unknown-10.244.1.5"]
