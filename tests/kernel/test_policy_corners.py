"""Corner cases of NetworkPolicy with real packets: fragments, path MTU, neighbours, spoofed addresses, size."""

import json
import os
import socket
import struct
import time
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest
from tests.kernel.policy_checks import DENY, OPEN, policy
from tests.kernel.policy_namespaces import ADDRESSES, OUTSIDE, RANGES, World, batch, inside, path
from tests.kernel.test_policy_packets import Planes, compilers, opened

from podwire.errors import KernelError
from podwire.kernel import netns
from podwire.model.meta import key_of
from podwire.model.policy import NetworkPolicy
from podwire.policy.compile import Compiler
from podwire.policy.dataplanes.nftables.layout import TABLE
from podwire.policy.registry import DATAPLANES
from podwire.state.nft import Table

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="needs root")

FAMILIES = (socket.AF_INET, socket.AF_INET6)
WEB, DB = ("10.180.0.1", "fd18::1"), ("10.180.0.2", "fd18::2")
PRESS, PRESS_DB = ("10.180.1.2", "fd18:1::2"), ("10.180.0.3", "fd18::3")
IP_MTU_DISCOVER, IPV6_MTU_DISCOVER, PMTUDISC_DO, IP_MTU, IPV6_MTU = 10, 23, 2, 14, 24
_HEARD_S = 0.15
_LATE_S = 0.03
"""How much later a datagram may come than one that was sent behind it."""
NFTABLES = pytest.mark.parametrize("planes", ["nftables"], indirect=True)
"""What the other data planes have tests of their own for."""


@pytest.fixture(scope="module")
def world() -> Iterator[World]:
    with World() as created:
        created.attach_pods(OPEN)
        yield created


@pytest.fixture(params=tuple(DATAPLANES))
def planes(world: World, request: pytest.FixtureRequest) -> Iterator[Planes]:
    created = opened(request.param)
    yield created
    for plane in created.values():
        plane.remove()
        plane.close()


def enforce(planes: Planes, world: World, *policies: NetworkPolicy) -> dict[str, Compiler]:
    """Loads policies into both nodes."""
    created = compilers(OPEN)
    for node, plane in planes.items():
        for item in policies:
            created[node].set_policy(key_of(item.metadata), item)
        created[node].flush()
        plane.load(created[node], world.devices(node))
    return created


def six(family: int) -> int:
    return int(family == socket.AF_INET6)


def change(planes: Planes, world: World, compiler: Compiler, **policies: NetworkPolicy | None) -> None:
    """Changes policies of the first node."""
    for name, created in policies.items():
        compiler.set_policy(f"shop/{name}", created)
    planes["n1"].update(compiler, world.devices("n1"), compiler.flush())


def socket_in(
    place: str, family: int, kind: int = socket.SOCK_DGRAM, *, port: int = 0, proto: int = 0
) -> socket.socket:
    with netns.inside(path(place)):
        created = socket.socket(family, kind, proto)
    created.settimeout(_HEARD_S)
    if port:
        created.bind(("", port))
    return created


def heard(sock: socket.socket) -> bytes:
    """The received data; empty when none came."""
    try:
        return sock.recv(1 << 16)
    except TimeoutError:
        return b""


def passes(source: str, family: int, target: tuple[str, str], place: str, port: int, size: int = 1) -> bool:
    """Whether a datagram arrives; a second one, which the target's own node sends, always does and ends the wait."""
    address, node = (target[six(family)], port), next(n for n in RANGES if target[0].startswith(RANGES[n][0][:-4]))
    with socket_in(place, family, port=port) as server, socket_in(source, family) as client:
        with socket_in(node, family) as control:
            client.sendto(b"x" * size, address)
            control.sendto(b"the end", address)
        server.settimeout(20)
        first = server.recv(1 << 16)
        server.settimeout(_LATE_S)
        return len(first if first != b"the end" else heard(server)) == size


def ports(*numbers: int) -> list[dict[str, object]]:
    return [{"port": number, "protocol": "UDP"} for number in numbers]


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize(("place", "target"), [("shop-db", DB), ("blog-web", PRESS)])
def test_fragments_get_the_verdict_of_their_datagram(
    world: World, planes: Planes, family: int, place: str, target: tuple[str, str]
) -> None:
    into = [
        policy(f"{namespace}/into", podSelector={}, ingress=[{"ports": ports(5432)}]) for namespace in ("shop", "blog")
    ]
    enforce(planes, world, *into)
    for size in (5_000, 40_000):
        assert passes("shop-web", family, target, place, 5432, size), size
        assert not passes("shop-web", family, target, place, 5433, size), size


@pytest.mark.parametrize("family", FAMILIES)
def test_path_mtu_messages_reach_an_isolated_pod(world: World, planes: Planes, family: int) -> None:
    out = policy("shop/out", podSelector={}, policyTypes=["Ingress", "Egress"], egress=[{"ports": ports(7)}])
    into = policy("blog/into", podSelector={}, policyTypes=["Ingress", "Egress"], ingress=[{"ports": ports(7)}])
    enforce(planes, world, out, into)
    level, discover, known = (
        (socket.IPPROTO_IPV6, IPV6_MTU_DISCOVER, IPV6_MTU) if six(family) else (socket.SOL_IP, IP_MTU_DISCOVER, IP_MTU)
    )
    batch("n2", ["link set blog-web mtu 1300"])
    try:
        with socket_in("shop-web", family) as sock:
            sock.setsockopt(level, discover, PMTUDISC_DO)
            sock.connect((PRESS[six(family)], 7))
            assert sock.getsockopt(level, known) == 1500
            sock.send(b"x" * 1400)
            deadline = time.monotonic() + 30
            while sock.getsockopt(level, known) != 1300:
                assert time.monotonic() < deadline, "the error did not come"
                time.sleep(0.02)
        inside("shop-web", "ip", *(("-6",) if six(family) else ()), "route", "flush", "cache")
    finally:
        batch("n2", ["link set blog-web mtu 1500"])


def mac_of(name: str) -> str:
    """The address of a pod's device."""
    return str(json.loads(inside(name, "ip", "-j", "link", "show", "eth0"))[0]["address"])


def test_neighbour_discovery_works_under_any_policy(world: World, planes: Planes) -> None:
    """IPv6 neighbour discovery uses packets; isolation in both directions does not affect it."""
    everything = policy("shop/all", podSelector={}, policyTypes=["Ingress", "Egress"])
    created = compilers(OPEN)["n1"]
    created.set_own_node_egress(reaches=False)
    created.set_policy("shop/all", everything)
    created.flush()
    planes["n1"].load(created, world.devices("n1"))
    mac = mac_of("shop-web")
    batch("n1", ["neigh delete fd18::1 dev shop-web", "address add fe80::99/64 dev shop-web nodad"])
    batch("shop-web", ["neigh delete fe80::99 dev eth0"])
    try:
        with socket_in("n1", socket.AF_INET6) as node, socket_in("shop-web", socket.AF_INET6, port=9) as pod:
            node.sendto(b"x", ("fd18::1", 9))
            pod.settimeout(20)
            assert heard(pod) == b"x", "the node finds the pod"
        with socket_in("shop-web", socket.AF_INET6) as pod:
            pod.sendto(b"x", ("2001:db8::9", 9))
        deadline = time.monotonic() + 30
        while "lladdr" not in inside("shop-web", "ip", "-6", "neigh", "show", "fe80::99"):
            assert time.monotonic() < deadline, "the pod does not find its way out"
            time.sleep(0.02)
    finally:
        batch("n1", [f"neigh replace fd18::1 lladdr {mac} dev shop-web", "address delete fe80::99/64 dev shop-web"])
        batch("shop-web", ["neigh replace fe80::99 lladdr 02:00:00:00:00:01 dev eth0"])


@pytest.mark.parametrize("family", FAMILIES)
def test_packets_with_a_borrowed_address_are_dropped(world: World, planes: Planes, family: int) -> None:
    enforce(planes, world)
    address, bits = WEB[six(family)], (32, 128)[six(family)]
    batch("blog-db", [f"address add {address}/{bits} dev eth0{' nodad' if six(family) else ''}"])
    targets = {
        "shop-db": DB,
        "blog-web": PRESS,
        "n1": ADDRESSES["n1"],
        "n2": ADDRESSES["n2"],
        "outside": OUTSIDE,
    }
    try:
        for place, target in targets.items():
            with socket_in(place, family, port=5432) as server, socket_in("blog-db", family) as thief:
                thief.bind((address, 0))
                thief.sendto(b"x", (target[six(family)], 5432))
                assert not heard(server), place
        assert passes("shop-web", family, DB, "shop-db", 5432), "the owner is not in the way of it"
    finally:
        batch("blog-db", [f"address delete {address}/{bits} dev eth0"])


def test_packets_from_the_node_without_source_address_reach_pods(world: World, planes: Planes) -> None:
    """A node sends such multicast reports on a pod's link before its own address is checked; no pod sends them."""
    enforce(planes, world, DENY)
    with netns.inside(path("shop-db")):
        hears = socket.socket(socket.AF_PACKET, socket.SOCK_DGRAM, socket.htons(0x86DD))
    hears.settimeout(_HEARD_S)
    report = struct.pack("!BBHHH", 143, 0, 0, 0, 0)
    header = (
        struct.pack("!IHBB", 6 << 28, len(report), 58, 1) + bytes(16) + socket.inet_pton(socket.AF_INET6, "ff02::16")
    )
    with hears, socket_in("n1", socket.AF_INET6, socket.SOCK_RAW, proto=socket.IPPROTO_RAW) as sends:
        with netns.inside(path("n1")):
            link = socket.if_nametoindex(world.devices("n1")["shop/db"])
        sends.sendto(header + report, ("ff02::16", 0, 0, link))
        while (result := heard(hears)) and result != header + report:
            pass
    assert result == header + report


def test_pod_cannot_take_an_address_by_arp(world: World, planes: Planes) -> None:
    enforce(planes, world)
    mac = bytes.fromhex(mac_of("blog-db").replace(":", ""))
    with netns.inside(path("blog-db")):
        raw = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0)
    with raw:
        raw.bind(("eth0", 0x0806))
        claimed = socket.inet_aton(WEB[0])
        for operation in (1, 2):
            arp = struct.pack("!HHBBH", 1, 0x0800, 6, 4, operation) + mac + claimed + b"\xff" * 6 + claimed
            raw.send(b"\xff" * 6 + mac + struct.pack("!H", 0x0806) + arp)
    batch("blog-db", [f"address add {WEB[0]}/32 dev eth0"])
    try:
        with socket_in("blog-db", socket.AF_INET, port=5432) as thief:
            assert passes("outside", socket.AF_INET, WEB, "shop-web", 5432)
            assert passes("shop-db", socket.AF_INET, WEB, "shop-web", 5432)
            assert not heard(thief)
    finally:
        batch("blog-db", [f"address delete {WEB[0]}/32 dev eth0"])


def replaced(world: World, old: str, new: str) -> None:
    """A pod and its device go, and another pod gets the address."""
    batch("n1", [f"link delete {old.replace('/', '-')}"])
    world.detach(old)
    world.attach(new, "n1", WEB)


@pytest.mark.parametrize("order", ["the old one goes first", "the new one comes first", "the old one has ended"])
def test_a_pod_with_a_reused_address_inherits_nothing(world: World, planes: Planes, order: str) -> None:
    into = policy(
        "shop/into",
        podSelector={"matchLabels": {"app": "db"}},
        ingress=[{"from": [{"podSelector": {"matchLabels": {"app": "web"}}}]}],
    )
    guard = policy("blog/guard", podSelector={"matchLabels": {"app": "db"}}, policyTypes=["Ingress"])
    created = enforce(planes, world, into, guard)["n1"]
    old = next(pod for pod in OPEN.world.pods if key_of(pod.metadata) == "shop/web")
    new = msgspec.structs.replace(
        old,
        metadata=msgspec.structs.replace(
            old.metadata, namespace="blog", name="new", labels={"app": "db"}, creation_timestamp="2026-02-01T00:00:00Z"
        ),
    )
    assert passes("shop-web", socket.AF_INET, DB, "shop-db", 5432), "the old pod may"
    replaced(world, "shop/web", "blog/new")

    def tell(*changes: tuple[str, object]) -> None:
        for key, pod in changes:
            created.set_pod(key, pod)  # type: ignore[arg-type]
            delta = created.flush()
            delta.pods.setdefault(key, created.pods.get(key))
            planes["n1"].update(created, world.devices("n1"), delta)

    try:
        gone: tuple[str, object] = ("shop/web", None)
        if order == "the old one has ended":
            status = msgspec.structs.replace(old.status, phase="Succeeded")
            gone = ("shop/web", msgspec.structs.replace(old, status=status))
        tell(*([("blog/new", new), gone] if order == "the new one comes first" else [gone, ("blog/new", new)]))
        for family in FAMILIES:
            assert not passes("blog-new", family, DB, "shop-db", 5432), "what the old pod was allowed"
            assert not passes("outside", family, WEB, "blog-new", 5432), "its own policy stands for the address"
            assert passes("blog-new", family, PRESS, "blog-web", 5432)
    finally:
        replaced(world, "blog/new", "shop/web")


@NFTABLES
def test_names_of_the_maximum_length_are_told_apart(world: World, planes: Planes) -> None:
    names = [f"shop/{'a' * 252}{last}" for last in "bc"]
    peers = [{"podSelector": {"matchLabels": {"app": app}}} for app in ("web", "db")]
    long = [policy(names[0], podSelector={}, ingress=[{"from": [peers[0]], "ports": ports(5432)}])]
    long.append(policy(names[1], podSelector={}, ingress=[{"from": [peers[1]], "ports": ports(5433)}]))
    enforce(planes, world, *long)
    assert passes("shop-web", socket.AF_INET, DB, "shop-db", 5432)
    assert not passes("shop-web", socket.AF_INET, DB, "shop-db", 5433)
    assert passes("shop-db", socket.AF_INET, WEB, "shop-web", 5433)
    assert not passes("blog-db", socket.AF_INET, DB, "shop-db", 5432)
    assert "shop/aaaa" in inside("n1", "nft", "list", "table", "ip", TABLE)
    assert not any(planes["n1"].heal())


@NFTABLES
def test_refused_transaction_keeps_rules_in_force(world: World, planes: Planes) -> None:
    created = enforce(planes, world, DENY)["n1"]
    assert not passes("shop-web", socket.AF_INET, DB, "shop-db", 5432)
    os.seteuid(65534)  # who may not change rules is refused by the kernel itself
    try:
        with pytest.raises(KernelError):
            change(planes, world, created, deny=None)
        with pytest.raises(KernelError):
            change(planes, world, created, other=policy("shop/other", podSelector={}, policyTypes=["Egress"]))
    finally:
        os.seteuid(0)
    assert not passes("shop-web", socket.AF_INET, DB, "shop-db", 5432)
    assert passes("shop-web", socket.AF_INET, PRESS_DB, "blog-db", 5432), "nothing of the refused changes is there"
    change(planes, world, created)
    assert not passes("shop-web", socket.AF_INET, PRESS_DB, "blog-db", 5432), "the next change brings all of it"


@NFTABLES
def test_thousands_of_policies_peers_ranges_and_ports_are_enforced(world: World, planes: Planes) -> None:
    """A thousand policies on one pod; all pods of a large cluster at twenty ports; 10,000 ranges; every fourth port."""
    created = compilers(OPEN)["n1"]
    template = next(pod for pod in OPEN.world.pods if key_of(pod.metadata) == "ops/scan")
    for number in range(5_000):
        address = f"10.190.{number >> 8}.{number & 255}"
        meta = msgspec.structs.replace(template.metadata, name=f"p{number}")
        status = msgspec.structs.replace(template.status, pod_ip=address, pod_ips=())
        created.set_pod(f"ops/p{number}", msgspec.structs.replace(template, metadata=meta, status=status))
    for number in range(1_000):
        rule = {"from": [{"podSelector": {"matchLabels": {"app": f"x{number}"}}}], "ports": ports(10_000 + number)}
        created.set_policy(f"shop/p{number}", policy(f"shop/p{number}", podSelector={}, ingress=[rule]))
    everybody = {"from": [{"namespaceSelector": {}}], "ports": ports(*range(2_000, 2_020))}
    blocks: list[dict[str, Any]] = [{"ipBlock": {"cidr": f"151.{n >> 8}.{n & 255}.0/25"}} for n in range(9_999)]
    blocks.append({"ipBlock": {"cidr": "203.0.113.0/28", "except": ["203.0.113.1/32"]}})
    ranges = {"from": blocks, "ports": [{"port": 3_000, "endPort": 65_535, "protocol": "UDP"}]}
    odd = {"from": [{"podSelector": {"matchLabels": {"app": "web"}}}], "ports": ports(*range(20_001, 65_536, 4))}
    created.set_policy("shop/wide", policy("shop/wide", podSelector={}, ingress=[everybody, ranges, odd]))
    created.flush()
    planes["n1"].load(created, world.devices("n1"))
    four = socket.AF_INET
    assert passes("blog-db", four, DB, "shop-db", 2_019)
    assert not passes("blog-db", four, DB, "shop-db", 2_020)
    assert passes("shop-web", four, DB, "shop-db", 20_001)
    assert passes("shop-web", four, DB, "shop-db", 65_533)
    assert not passes("shop-web", four, DB, "shop-db", 65_534)
    assert not passes("shop-web", four, DB, "shop-db", 10_500)
    strangers = {"203.0.113.9": True, "203.0.113.1": False}
    for source, allowed in strangers.items():
        with socket_in("outside", four) as client, socket_in("shop-db", four, port=3_000) as server:
            client.bind((source, 0))
            client.sendto(b"x", (DB[0], 3_000))
            assert bool(heard(server)) == allowed, source
    held = planes["n1"].desired()[0]
    assert isinstance(held, Table)
    hosts = {declared.name: len(declared.elements) for declared in held.sets if declared.name.endswith("-hosts")}
    assert max(hosts.values()) < 5_020, "a peer is one element, whatever its ports"
    assert not any(planes["n1"].heal())
