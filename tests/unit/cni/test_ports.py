"""The hostPort table."""

import random

import pytest
from msgspec.structs import replace

from podwire.cni import ports
from podwire.cni.ipam.ledger import Attachment
from podwire.cni.protocol import AttachmentKey
from podwire.cni.spec import PortMapping
from podwire.errors import CniError
from podwire.state.nft_diff import AddElements, DeleteElements, Transaction, diff
from podwire.state.nft_text import parse_table


def attachment_of(
    name: str, *mappings: PortMapping, addresses: tuple[str, ...] = ("10.244.1.2", "fd00::2")
) -> Attachment:
    return Attachment(
        key=AttachmentKey("n", name, "eth0"),
        addresses=addresses,
        host_link=name,
        mac="",
        netns="",
        namespace="shop",
        pod=name,
        ports=mappings,
    )


def test_table() -> None:
    table = ports.plan(
        [
            attachment_of(
                "web",
                PortMapping(host_port=8080, container_port=80),
                PortMapping(host_port=53, container_port=5353, protocol="UDP", host_ip="10.89.0.11"),
            ),
            attachment_of("plain"),
        ]
    )
    assert table is not None
    text = str(table)
    assert 'tcp . 8080 comment "shop/web" : 10.244.1.2 . 80' in text
    assert 'tcp . 8080 comment "shop/web" : fd00::2 . 80' in text
    assert '10.89.0.11 . udp . 53 comment "shop/web" : 10.244.1.2 . 5353' in text
    assert "fib daddr type local dnat ip to meta l4proto . th dport map @any4" in text
    assert parse_table(text) == table.canonical()
    assert ports.held_in(table) == {
        "10.244.1.2": (
            PortMapping(host_port=8080, container_port=80),
            PortMapping(host_port=53, container_port=5353, protocol="udp", host_ip="10.89.0.11"),
        ),
        "fd00::2": (PortMapping(host_port=8080, container_port=80),),
    }


def test_no_ports_no_table() -> None:
    assert ports.plan([attachment_of("plain")]) is None


@pytest.mark.parametrize(
    "mapping",
    [
        PortMapping(host_port=0, container_port=1),
        PortMapping(host_port=1, container_port=70000),
        PortMapping(host_port=1, container_port=1, protocol="icmp"),
        PortMapping(host_port=1, container_port=1, host_ip="nowhere"),
    ],
)
def test_a_mapping_that_cannot_be(mapping: PortMapping) -> None:
    with pytest.raises(CniError, match="portMappings"):
        ports.check(mapping)


def test_a_port_is_held_once_per_address() -> None:
    held = [attachment_of("web", PortMapping(host_port=80, container_port=80, host_ip="10.0.0.1"))]
    ask = [PortMapping(host_port=80, container_port=8080)]
    assert "shop/web" in ports.holder_of(ask, held)
    assert not ports.holder_of([PortMapping(host_port=80, container_port=1, protocol="udp")], held)
    assert not ports.holder_of([PortMapping(host_port=80, container_port=1, host_ip="10.0.0.2")], held)


def test_a_port_of_one_pod_leads_to_one_target() -> None:
    web = PortMapping(host_port=80, container_port=8080)
    same = PortMapping(host_port=80, container_port=8080, protocol="TCP", host_ip="0.0.0.0")
    udp = PortMapping(host_port=80, container_port=81, protocol="udp")
    assert ports.checked([web, same, udp]) == (web, udp)
    for other in (
        PortMapping(host_port=80, container_port=81),
        PortMapping(host_port=80, container_port=81, host_ip="10.0.0.1"),
    ):
        with pytest.raises(CniError, match="portMappings: hostPort 80") as failure:
            ports.checked([web, other])
        assert failure.value.code == 7
    one, two = (PortMapping(host_port=80, container_port=n, host_ip=f"10.0.0.{n}") for n in (1, 2))
    assert ports.checked([one, two]) == (one, two)


@pytest.mark.parametrize(
    ("host_ip", "expected"), [("", True), ("0.0.0.0", True), ("127.0.0.1", True), ("10.0.0.1", False), ("::1", False)]
)
def test_ports_of_the_loopback_address(host_ip: str, expected: bool) -> None:
    assert ports.on_loopback([PortMapping(host_port=80, container_port=80, host_ip=host_ip)]) is expected


def test_changes_lead_from_one_table_to_the_next() -> None:
    """What the planner writes for a change is what a comparison of whole tables would write."""
    chance = random.Random(7)
    shared = {"host_link": "bridged", "bridge": "podwire-pods"}
    pods = [
        replace(
            attachment_of(f"p{n}", *mappings(n), addresses=(f"10.244.1.{n}", f"fd00::{n}")[: 1 + n % 2]),
            **(shared if n % 5 == 0 else {}),
        )
        for n in range(2, 22)
    ]
    heir = replace(pods[3], addresses=("10.244.1.99",))
    planner, before = ports.PortPlanner(), None
    for _ in range(200):
        held = chance.sample(pods, chance.choice((0, 1, 5, 18, 19, 20)))
        if chance.random() < 0.3:
            held = [heir if pod is pods[3] else pod for pod in held]
        table, change = planner.plan(held)
        expected = ports.plan(held)
        assert (table and table.canonical()) == (expected and expected.canonical())
        if change is not None:
            assert before is not None and table is not None
            assert texts(change) == texts(diff(before, table))
        before = table


def mappings(number: int) -> tuple[PortMapping, ...]:
    if number % 4 == 0:
        return (PortMapping(host_port=8000 + number, container_port=80, host_ip="10.0.0.1"),)
    return (PortMapping(host_port=8000 + number, container_port=80, protocol="tcp"),)


def texts(change: Transaction) -> list[str]:
    """The single elements of the operations."""
    return sorted(
        f"{type(operation).__name__} {operation.set.name} {key.hex()} {element}"
        for operation in change.operations
        if isinstance(operation, AddElements | DeleteElements)
        for key, element in operation.elements.items()
    )
