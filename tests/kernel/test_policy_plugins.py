"""Policies on pods that other CNI plugins wired, with real packets in both families.

The wirings are those of containernetworking's plugins: a device for each pod (``ptp``), a bridge, Flannel's.
"""

import os
import shutil
import socket
import struct
from collections.abc import Iterator

import msgspec
import pytest
from tests.cases.policy_table import Case
from tests.kernel.checksums import checksum
from tests.kernel.policy_namespaces import FACTS, batch, failures_of, inside, path
from tests.kernel.reference_plugins import ARRANGEMENTS, BRIDGE, PLUGINS, OtherWorld
from tests.kernel.sockets import is_answered
from tests.kernel.test_policy_packets import CASES, compilers

from podwire.errors import Unsupported
from podwire.kernel import netns, sysctl
from podwire.kernel.nft import Nft
from podwire.model.meta import key_of
from podwire.model.policy import NetworkPolicy
from podwire.policy.bridges.dataplane import BridgeIsolation
from podwire.policy.modes import open_dataplane
from podwire.policy.settings import ENCAPSULATION_PORTS
from podwire.state.nft_diff import Transaction

pytestmark = [
    pytest.mark.skipif(os.geteuid() != 0, reason="needs root"),
    pytest.mark.skipif(not shutil.which("bridge", path=PLUGINS), reason="needs containernetworking-plugins"),
]

CHOSEN = (
    "egress to networks, nodes and pods",
    "pods of the policy's namespace, of chosen namespaces, and of all",
    "ports, protocols and ranges",
    "a named port is that of the destination, whatever its number there",
    "a pod reaches its own node as any other, when so configured",
)
TABLE = [next(case for case in CASES if case.name == name) for name in CHOSEN]
OPEN = next(case for case in CASES if case.name == "without a policy everything passes")
WEB, DB, BLOG = "10.180.0.1", "10.180.0.2", "10.180.0.3"
CALLS = ("net/bridge/bridge-nf-call-iptables", "net/bridge/bridge-nf-call-ip6tables")
ON_A_BRIDGE = pytest.mark.parametrize("world", ARRANGEMENTS[:1], indirect=True)
Planes = dict[str, BridgeIsolation]


@pytest.fixture(scope="module", params=ARRANGEMENTS[:2])
def world(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[OtherWorld]:
    with OtherWorld(request.param, str(tmp_path_factory.mktemp("ipam"))) as other_world:
        other_world.attach_pods(OPEN)
        yield other_world


@pytest.fixture
def mode() -> str:
    """The data plane with the table for bridges."""
    return "nftables"


@pytest.fixture
def planes(world: OtherWorld, mode: str) -> Iterator[Planes]:
    created = {}
    for node, facts in FACTS.items():
        reported = msgspec.structs.replace(
            facts,
            bridges=() if world.arrangement == "ptp" else (BRIDGE,),
            cluster_ranges=("10.180.0.0/16", "fd18::/31"),
            encapsulation_ports=ENCAPSULATION_PORTS,
        )
        inner = open_dataplane(mode, reported, path(node))
        plane = BridgeIsolation(inner, path(node))
        plane.attached = lambda node=node: world.attachments(node)  # type: ignore[misc]
        created[node] = plane
    yield created
    for plane in created.values():
        plane.remove()
        plane.close()


def load(world: OtherWorld, planes: Planes, case: Case, *policies: NetworkPolicy) -> None:
    for node, compiler in compilers(case).items():
        for policy in policies:
            compiler.set_policy(key_of(policy.metadata), policy)
        compiler.flush()
        planes[node].load(compiler, world.devices(node))


@pytest.mark.parametrize("case", TABLE, ids=lambda case: case.name)
@pytest.mark.parametrize("world", ARRANGEMENTS, indirect=True)
def test_packet_table(world: OtherWorld, planes: Planes, case: Case) -> None:
    load(world, planes, case)
    assert not failures_of(case)
    assert not any(planes["n1"].heal())


@ON_A_BRIDGE
@pytest.mark.parametrize("mode", ["iptables"])
@pytest.mark.parametrize("case", TABLE[:2], ids=lambda case: case.name)
def test_packet_table_with_iptables(world: OtherWorld, planes: Planes, case: Case) -> None:
    load(world, planes, case)
    assert not failures_of(case)


def policy(name: str, **spec: object) -> NetworkPolicy:
    namespace, _, short = name.partition("/")
    return msgspec.convert({"metadata": {"name": short, "namespace": namespace}, "spec": spec}, NetworkPolicy)


DENY = policy("shop/deny", podSelector={"matchLabels": {"app": "db"}}, policyTypes=["Ingress"])


LATE_S = 10.0
"""How long to wait for what is to come."""


def reaches(name: str, address: str, port: int = 9, *, patience_s: float = 0.2) -> bool:
    """Whether a datagram gets an answer; a refusal counts as an answer."""
    return is_answered(path(name), address, port, patience_s)


def forge(name: str, source: str, target: str) -> None:
    """Sends a datagram with the given source address."""
    family = socket.AF_INET6 if ":" in target else socket.AF_INET
    ends = socket.inet_pton(family, source) + socket.inet_pton(family, target)
    body = struct.pack("!HHHH", 40_000, 9, 8, 0)
    body = body[:6] + struct.pack("!H", checksum(ends + struct.pack("!II", len(body), socket.IPPROTO_UDP) + body))
    if family == socket.AF_INET6:
        head = struct.pack("!IHBB", 6 << 28, len(body), socket.IPPROTO_UDP, 64)
    else:
        head = struct.pack("!BBHHHBBH", 0x45, 0, 20 + len(body), 0, 0, 64, socket.IPPROTO_UDP, 0)
    with netns.inside(path(name)), socket.socket(family, socket.SOCK_RAW, socket.IPPROTO_RAW) as sock:
        sock.sendto(head + ends + body, (target, 0))


def received(name: str) -> int:
    """The number of datagrams that reached a pod's kernel, in both families."""
    four = [line.split() for line in inside(name, "cat", "/proc/net/snmp").splitlines() if line.startswith("Udp:")]
    counts = dict(zip(four[0], four[1], strict=True))
    six = dict(line.split() for line in inside(name, "cat", "/proc/net/snmp6").splitlines())
    return sum(int(item) for item in (counts["NoPorts"], counts["InDatagrams"], six["Udp6NoPorts"]))


def test_packets_with_another_pods_source_are_dropped(world: OtherWorld, planes: Planes) -> None:
    """Neither past a policy of the other pod, nor with an address that no pod has."""
    only = {"from": [{"podSelector": {"matchLabels": {"app": "web"}}}]}
    allow = policy("shop/allow", podSelector={"matchLabels": {"app": "db"}}, ingress=[only])
    load(world, planes, OPEN, allow)
    assert reaches("shop-web", DB, patience_s=LATE_S)
    assert reaches("shop-web", "fd18::2", patience_s=LATE_S)
    assert not reaches("blog-db", DB)
    before = received("shop-db")
    for borrowed, target in ((WEB, DB), ("10.180.0.77", DB), ("192.0.2.7", DB), ("fd18::1", "fd18::2")):
        forge("blog-db", borrowed, target)
    forge("shop-web", WEB, DB)
    forge("shop-web", "fd18::1", "fd18::2")
    assert reaches("shop-web", DB, patience_s=LATE_S), "so that all have arrived"
    assert received("shop-db") == before + 3
    if world.arrangement != "ptp":
        inside("n1", "nft", "delete", "table", "bridge", "podwire-policy")
        forge("blog-db", WEB, DB)
        assert reaches("shop-web", DB, patience_s=LATE_S)
        assert received("shop-db") == before + 5, "it is that table which keeps them apart"
        assert any(planes["n1"].heal())


@ON_A_BRIDGE
def test_a_bridge_drops_packets_with_a_false_source(world: OtherWorld, planes: Planes) -> None:
    """ARP and neighbour advertisements for another pod's address go no further than the port."""
    load(world, planes, OPEN)
    batch("blog-db", [f"neigh replace {DB} lladdr ff:ff:ff:ff:ff:ff dev eth0"])
    batch("shop-db", ["neigh flush dev eth0"])
    mac = bytes.fromhex("020000000bad")
    claim = struct.pack("!HHBBH6s4s6s4s", 1, 0x0800, 6, 4, 1, mac, *map(packed, (WEB,)), bytes(6), *map(packed, (DB,)))
    with netns.inside(path("blog-db")), socket.socket(socket.AF_PACKET, socket.SOCK_RAW) as sock:
        sock.bind(("eth0", 0x0806))
        sock.send(b"\xff" * 6 + mac + b"\x08\x06" + claim)
    assert reaches("shop-web", DB, patience_s=LATE_S)
    assert "02:00:00:00:0b:ad" not in inside("shop-db", "ip", "neigh")
    inside("blog-db", "ip", "neigh", "flush", "dev", "eth0")
    assert "drop" in (dropped := inside("n1", "nft", "list", "table", "bridge", "podwire-policy"))
    assert "arp saddr ip @pods4 counter packets 1 " in dropped


def packed(address: str) -> bytes:
    return socket.inet_aton(address)


def test_an_unknown_pod_can_neither_send_nor_receive(world: OtherWorld, planes: Planes) -> None:
    load(world, planes, OPEN)
    world.attach("shop/new", "n1", ("10.180.0.9", "fd18::9"))
    new = world.attached.pop("shop/new")
    try:
        before = received("shop-db")
        for target in (DB, "fd18::2"):
            assert not reaches("shop-new", target)
        assert received("shop-db") == before
        assert not reaches("shop-web", "10.180.0.9")
    finally:
        world.attached["shop/new"] = new
        world.detach("shop/new")


@pytest.fixture
def unseen(world: OtherWorld) -> Iterator[None]:
    """A node whose bridges hide packets from the IP hooks (bridge-nf-call-iptables is 0)."""
    for item in CALLS:
        sysctl.write(item, "0", path("n1"))
    yield
    for item in CALLS:
        sysctl.write(item, "1", path("n1"))


@ON_A_BRIDGE
def test_invisible_packets_of_selected_pods_are_reported_and_dropped(
    world: OtherWorld, planes: Planes, unseen: None
) -> None:
    load(world, planes, OPEN, DENY)
    reported = planes["n1"].problem
    assert reported.startswith(
        "cni0: bridge-nf-call-iptables is 0 and bridge-nf-call-ip6tables is 0; pods that policies"
    )
    before = received("shop-db")
    for target in (DB, "fd18::2"):
        assert not reaches("shop-web", target)
    assert received("shop-db") == before
    assert reaches("shop-web", BLOG, patience_s=LATE_S), "nothing selects it"
    assert reaches("shop-web", "fd18::3", patience_s=LATE_S)
    assert reaches("shop-db", "10.180.1.1", patience_s=LATE_S), "the way off the bridge is seen"
    for item in CALLS:
        sysctl.write(item, "1", path("n1"))
    assert planes["n1"].look()
    load(world, planes, OPEN, DENY)
    assert not planes["n1"].problem
    assert not reaches("shop-web", DB)
    assert reaches("shop-db", BLOG, patience_s=LATE_S), "answers come back where connections are known"
    assert reaches("shop-db", "fd18::3", patience_s=LATE_S)


@ON_A_BRIDGE
def test_unknown_bridge_port_is_shut_where_packets_are_invisible(
    world: OtherWorld, planes: Planes, unseen: None
) -> None:
    load(world, planes, OPEN)
    world.attach("shop/new", "n1", ("10.180.0.9", "fd18::9"))
    new = world.attached.pop("shop/new")
    try:
        assert planes["n1"].look()
        load(world, planes, OPEN)
        assert not planes["n1"].look()
        before = received("blog-db")
        for target in (BLOG, "fd18::3"):
            assert not reaches("shop-new", target)
        assert received("blog-db") == before
        assert reaches("shop-web", BLOG, patience_s=LATE_S)
    finally:
        world.attached["shop/new"] = new
        world.detach("shop/new")


@ON_A_BRIDGE
def test_router_advertisements_of_pods_are_dropped(world: OtherWorld, planes: Planes, unseen: None) -> None:
    load(world, planes, OPEN)
    before = inside("shop-db", "ip", "-6", "route")
    advert = struct.pack("!BBHBBHII", 134, 0, 0, 64, 0, 1800, 0, 0)
    with netns.inside(path("blog-db")):
        sock = socket.socket(socket.AF_INET6, socket.SOCK_RAW, socket.IPPROTO_ICMPV6)
    with sock:
        sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_MULTICAST_HOPS, 255)
        with netns.inside(path("blog-db")):
            sock.sendto(advert, ("ff02::1%eth0", 0))
    assert reaches("shop-web", "fd18::2", patience_s=LATE_S)
    assert inside("shop-db", "ip", "-6", "route") == before


@ON_A_BRIDGE
def test_missing_hooks_are_enabled_for_this_bridge_alone(world: OtherWorld, planes: Planes, unseen: None) -> None:
    planes["n1"].enable_netfilter = True
    load(world, planes, OPEN, DENY)
    assert not planes["n1"].problem
    assert not reaches("shop-web", DB)
    assert reaches("shop-db", BLOG, patience_s=LATE_S)
    assert {sysctl.read(item, path("n1")) for item in CALLS} == {"0"}
    off = "nf_call_iptables 0 nf_call_ip6tables 0"
    inside("n1", "ip", "link", "set", BRIDGE, "type", "bridge", *off.split())
    assert planes["n1"].look()


def with_pod(name: str, addresses: tuple[str, ...]) -> Case:
    """The namespaces without policies and with one more pod."""
    like = OPEN.world.pods[0]
    document = msgspec.to_builtins(like)
    document["metadata"] |= {"name": name, "labels": {"app": name}, "uid": name}
    document["status"] |= {"podIP": addresses[0], "podIPs": [{"ip": address} for address in addresses]}
    pods = (*OPEN.world.pods, msgspec.convert(document, type(like)))
    return msgspec.structs.replace(OPEN, world=msgspec.structs.replace(OPEN.world, pods=pods))


def test_policies_see_resolved_services_and_unmasqueraded_pods(world: OtherWorld, planes: Planes) -> None:
    """At this hook the Service address is already the endpoint's, and the plugin's masquerade comes later."""
    world.attach("shop/new", "n1", ("10.180.0.9", "fd18::9"), ipMasq=True)
    nat = "table ip t { chain c { type nat hook prerouting priority -100; ip daddr 10.96.0.7 dnat to 10.180.1.1; }; }"
    inside("n1", "nft", nat)
    case = with_pod("new", ("10.180.0.9", "fd18::9"))
    out = policy(
        "shop/out",
        podSelector={"matchLabels": {"app": "new"}},
        policyTypes=["Egress"],
        egress=[{"to": [{"ipBlock": {"cidr": "10.180.1.1/32"}}]}],
    )
    try:
        load(world, planes, case, out)
        assert reaches("shop-new", "10.96.0.7", patience_s=LATE_S)
        assert not reaches("shop-new", "10.180.1.2")
        load(world, planes, case, msgspec.structs.replace(out, spec=msgspec.structs.replace(out.spec, egress=())))
        assert not reaches("shop-new", "10.96.0.7")
    finally:
        inside("n1", "nft", "delete table ip t")
        world.detach("shop/new")


@pytest.mark.parametrize("mode", ["nftables", "iptables"])
def test_pod_reaches_itself_through_a_service_others_stay_denied(world: OtherWorld, planes: Planes) -> None:
    """On a bridge both are behind one device."""
    nat = (
        "table ip t { chain c { type nat hook prerouting priority -100;"
        f" ip daddr 10.96.0.8 dnat to {WEB}; ip daddr 10.96.0.9 dnat to {DB}; }};"
        f" chain d {{ type nat hook postrouting priority 100; ip saddr {WEB} ip daddr {WEB} masquerade; }}; }}"
    )
    inside("n1", "nft", nat)
    try:
        load(world, planes, OPEN, policy("shop/deny", podSelector={}, policyTypes=["Ingress", "Egress"]))
        assert reaches("shop-web", "10.96.0.8", patience_s=LATE_S)
        assert not reaches("shop-web", "10.96.0.9")
        assert not any(planes["n1"].heal()), "the kernel tells rules as they were written"
    finally:
        inside("n1", "nft", "delete table ip t")


class WithoutBridgeTables(Nft):
    """nftables as on a kernel without tables of the family bridge."""

    def commit(self, transaction: Transaction, generation: int = 0) -> None:
        if transaction.family == "bridge":
            raise Unsupported("table bridge", detail="commit: Operation not supported")
        super().commit(transaction, generation)


@ON_A_BRIDGE
def test_a_kernel_without_bridge_tables_is_reported(world: OtherWorld, planes: Planes) -> None:
    """Packets at the IP hooks still follow the policies; bridged packets that skip these hooks make the change fail."""
    with WithoutBridgeTables(path("n1")) as poor:
        plane, planes["n1"]._nft = planes["n1"]._nft, poor
        try:
            load(world, planes, OPEN, DENY)
            assert planes["n1"].problem == (
                "cni0: the kernel has no nftables tables of the family bridge; source addresses are not checked"
            )
            assert not reaches("shop-web", DB)
            assert reaches("shop-db", BLOG, patience_s=LATE_S)
            sysctl.write(CALLS[0], "0", path("n1"))
            with pytest.raises(Unsupported, match="cannot enforce policies between pods of one bridge: cni0"):
                load(world, planes, OPEN, DENY)
            load(world, planes, OPEN)
        finally:
            sysctl.write(CALLS[0], "1", path("n1"))
            planes["n1"]._nft = plane
