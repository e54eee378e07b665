"""Addresses of a node over its ledger: durable, all or none, both families."""

import datetime
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from ipaddress import ip_address, ip_network
from pathlib import Path

import pytest

from podwire.cni.ipam.leases import Leases
from podwire.cni.ipam.ledger import Attachment, Ledger
from podwire.cni.ipam.pool import exhausted
from podwire.cni.protocol import AttachmentKey
from podwire.errors import CniError

START = datetime.datetime(2026, 1, 2, tzinfo=datetime.UTC)
V4 = ip_network("10.244.1.0/29")
V6 = ip_network("fd00::/64")


@pytest.fixture
def opened() -> Iterator[Callable[[Path], Ledger]]:
    """Opens ledgers that are closed behind the test."""
    with ExitStack() as stack:
        yield lambda path: stack.enter_context(closing(Ledger(path)))


def add(leases: Leases, container: str) -> Attachment:
    attachment = Attachment(
        key=AttachmentKey("podwire", container, "eth0"),
        addresses=tuple(str(a) for a in leases.choose()),
        host_link=container,
        mac="02:00:00:00:00:01",
        netns="",
    )
    leases.hold(attachment)
    return attachment


def test_one_address_of_each_family(tmp_path: Path, opened: Callable[[Path], Ledger]) -> None:
    leases = Leases(opened(tmp_path / "ipam.db"), lambda: START)
    leases.serve([V4, V6])
    assert add(leases, "a").addresses == ("10.244.1.2", "fd00::2")


def test_an_exhausted_family_takes_no_other_address(tmp_path: Path, opened: Callable[[Path], Ledger]) -> None:
    leases = Leases(opened(tmp_path / "ipam.db"), lambda: START)
    leases.serve([V6, V4])
    for name in "abcde":
        add(leases, name)
    free = leases.pools[0].free
    with pytest.raises(CniError) as failure:
        leases.choose()
    assert failure.value.code == 11
    assert exhausted(leases.pools, leases.closed) == ("10.244.1.0/29",)
    assert leases.pools[0].free == free


def test_second_pod_cidr_is_used_when_first_is_full(tmp_path: Path, opened: Callable[[Path], Ledger]) -> None:
    leases = Leases(opened(tmp_path / "ipam.db"), lambda: START)
    leases.serve([V4, ip_network("10.244.9.0/29")])
    assert [add(leases, str(i)).addresses[0] for i in range(6)][-1] == "10.244.9.2"


def test_a_restart_continues_where_it_was(tmp_path: Path, opened: Callable[[Path], Ledger]) -> None:
    now = START
    ledger = opened(tmp_path / "ipam.db")
    leases = Leases(ledger, lambda: now)
    leases.serve([V4])
    first, _second = add(leases, "a"), add(leases, "b")
    leases.release([first])
    ledger.close()
    again = Leases(opened(tmp_path / "ipam.db"), lambda: now + datetime.timedelta(seconds=5))
    again.serve([V4])
    assert set(again.held) == {AttachmentKey("podwire", "b", "eth0")}
    assert [add(again, name).addresses[0] for name in "cde"] == ["10.244.1.4", "10.244.1.5", "10.244.1.6"]
    assert again.early == 0
    assert add(again, "f").addresses == first.addresses
    assert again.early == 1


def test_a_node_without_pod_cidr_says_so(tmp_path: Path, opened: Callable[[Path], Ledger]) -> None:
    leases = Leases(opened(tmp_path / "ipam.db"), lambda: START)
    with pytest.raises(CniError, match="no pod CIDR"):
        leases.choose()


def test_a_damaged_file_is_set_aside(tmp_path: Path, opened: Callable[[Path], Ledger]) -> None:
    path = tmp_path / "ipam.db"
    path.write_bytes(b"this is no database" * 500)
    leases = Leases(opened(path), lambda: START)
    leases.serve([V4])
    add(leases, "a")
    assert (tmp_path / "ipam.db.damaged").exists()


def test_adopting_attachments_from_the_kernel(tmp_path: Path, opened: Callable[[Path], Ledger]) -> None:
    leases = Leases(opened(tmp_path / "ipam.db"), lambda: START)
    leases.serve([V4])
    leases.adopt(
        Attachment(key=AttachmentKey("n", "x", "eth0"), addresses=("10.244.1.2",), host_link="x", mac="", netns="")
    )
    assert add(leases, "a").addresses == ("10.244.1.3",)


def test_failing_disk_is_an_error_and_leases_nothing(tmp_path: Path, opened: Callable[[Path], Ledger]) -> None:
    ledger = opened(tmp_path / "ipam.db")
    leases = Leases(ledger, lambda: START)
    leases.serve([V4])
    item = add(leases, "a")
    ledger.close()
    for write in (lambda: leases.release([item]), lambda: add(leases, "b")):
        with pytest.raises(CniError) as failure:
            write()
        assert failure.value.code == 5
    assert set(leases.held) == {item.key}


def test_requested_addresses_ignore_the_cooldown(tmp_path: Path, opened: Callable[[Path], Ledger]) -> None:
    leases = Leases(opened(tmp_path / "ipam.db"), lambda: START)
    leases.serve([V4, V6])
    expected = [ip_address("10.244.1.5"), ip_address("fd00::77")]
    assert leases.choose(expected) == tuple(expected)
    leases.put_back(expected)
    assert leases.choose(reversed(expected)) == tuple(expected)
    assert add(leases, "a").addresses == ("10.244.1.2", "fd00::2")


def test_unrequested_family_gets_an_address_as_usual(tmp_path: Path, opened: Callable[[Path], Ledger]) -> None:
    leases = Leases(opened(tmp_path / "ipam.db"), lambda: START)
    leases.serve([V4, V6])
    assert [str(address) for address in leases.choose([ip_address("fd00::77")])] == ["10.244.1.2", "fd00::77"]


@pytest.mark.parametrize(
    ("expected", "code", "problem"),
    [
        ("10.244.1.5", 11, "10.244.1.5 is in use"),
        ("10.244.9.5", 7, "10.244.9.5 is not in a pod CIDR of this node"),
        ("10.244.1.7", 7, "10.244.1.7 is not in a pod CIDR of this node"),
    ],
    ids=str,
)
def test_a_wanted_address_that_cannot_be_had_takes_nothing(
    tmp_path: Path, opened: Callable[[Path], Ledger], expected: str, code: int, problem: str
) -> None:
    leases = Leases(opened(tmp_path / "ipam.db"), lambda: START)
    leases.serve([V4, V6])
    leases.choose([ip_address("10.244.1.5")])
    free = [pool.free for pool in leases.pools]
    with pytest.raises(CniError, match=problem) as failure:
        leases.choose([ip_address("fd00::77"), ip_address(expected)])
    assert failure.value.code == code
    assert [pool.free for pool in leases.pools] == free


def test_pods_of_further_networks_get_addresses_of_these(tmp_path: Path, opened: Callable[[Path], Ledger]) -> None:
    leases = Leases(opened(tmp_path / "ipam.db"), lambda: START)
    blue = {"blue": (ip_network("10.245.1.0/29"),)}
    leases.serve([V4, V6], further=blue)
    assert list(map(str, leases.choose(network="blue"))) == ["10.245.1.2"]
    assert list(map(str, leases.choose())) == ["10.244.1.2", "fd00::2"]
    assert list(map(str, leases.choose([ip_address("10.245.1.6")], "blue"))) == ["10.245.1.6"]
    with pytest.raises(CniError, match=r"10\.244\.1\.6 is not in a pod CIDR") as failure:
        leases.choose([ip_address("10.244.1.6")], "blue")
    assert (failure.value.code, failure.value.details) == (7, "the pod CIDRs are 10.245.1.0/29")
    with pytest.raises(CniError, match="this node has no pod network 'green'") as failure:
        leases.choose(network="green")
    assert (failure.value.code, failure.value.details) == (7, "the pod networks are default, blue")
    for _ in range(3):
        leases.choose(network="blue")
    with pytest.raises(CniError, match=r"no free address in 10\.245\.1\.0/29"):
        leases.choose(network="blue")
    assert exhausted(leases.pools, leases.closed) == (), "the default network still takes pods"
