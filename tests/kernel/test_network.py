"""Network state in real namespaces is read, applied and healed; foreign objects stay. Oracle: ip(8) and pyroute2."""

import errno
import os
import random
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from msgspec.structs import replace

from podwire.errors import KernelExists, KernelNotFound, Unsupported
from podwire.kernel import netns, network, sysctl
from podwire.kernel.netlink import Message, Netlink
from podwire.state import grammar
from podwire.state.link import Link
from podwire.state.link_kinds import Vxlan
from podwire.state.network import NetworkState, OwnerMark, merge, parse
from podwire.state.route import Address, Fdb, FibRule, Neighbour, Route, Sysctl

OWNER = OwnerMark(113, "podwire/routing")
OTHER = OwnerMark(114, "podwire/fabric")


@pytest.fixture
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    path = Path(f"/run/pwt-kernel-{os.getpid()}/node")
    netns.create(path)
    yield path
    netns.delete(path)
    path.parent.rmdir()


@pytest.fixture
def node(place: Path) -> Iterator[Netlink]:
    with Netlink(place) as netlink:
        network.apply(
            netlink,
            NetworkState(links=(Link("lo"), Link("eth0", "bridge")), addresses=(Address("eth0", "10.89.0.11/24"),)),
            OTHER,
        ).check()
        yield netlink


def ip(node: Netlink, arguments: str, tool: str = "ip") -> str:
    with netns.inside(node.netns):
        done = subprocess.run([tool, *arguments.split()], capture_output=True, text=True, check=True)
    return done.stdout


def _encapsulated(dst: str, node: str, device: str) -> Route:
    if ":" in node:
        return Route(dst, link=device, encap="ip6", tunnel_id=4096, tunnel_dst=node, tunnel_hop_limit=64)
    return Route(dst, link=device, encap="ip", tunnel_id=4096, tunnel_dst=node, tunnel_ttl=64)


def vxlan(peers: int = 2) -> NetworkState:
    ids = range(1, peers + 1)
    device = "podwire.1"
    return NetworkState(
        links=(
            Link(
                device, "vxlan", 1450, mac="02:00:00:00:00:0a", attributes=Vxlan(1, local="10.89.0.11", device="eth0")
            ),
        ),
        addresses=(Address(device, "10.244.0.0/32"), Address(device, "fd44::/128")),
        routes=tuple(
            route
            for i in ids
            for route in (
                _encapsulated(f"10.245.{i}.0/24", f"10.89.0.{i + 11}", device),
                _encapsulated(f"fd45:0:0:{i}::/64", f"fd89::{i + 11}", device),
                Route(f"10.244.{i}.0/24", f"10.244.{i}.0", device, onlink=True, src="10.244.0.0", mtu=1400),
                Route(f"fd44:0:0:{i}::/64", f"fd44:0:0:{i}::", device, onlink=True),
            )
        ),
        neighbours=tuple(
            Neighbour(device, address, f"02:00:00:00:01:{i:02x}")
            for i in ids
            for address in (f"10.244.{i}.0", f"fd44:0:0:{i}::")
        ),
        fdb=tuple(Fdb(device, f"02:00:00:00:01:{i:02x}", f"10.89.0.{i + 11}") for i in ids),
        rules=(
            FibRule(100, src="10.244.0.0/24", table=77),
            FibRule(101, v6=True, mark=0x4000, mask=0xF000, table=78),
            FibRule(102, dst="10.1.0.0/16", ipproto="tcp", dport="80-90", table=254),
        ),
        sysctls=(Sysctl("net/ipv4/ip_forward", "1"), Sysctl(f"net/ipv4/conf/{device}/rp_filter", "0")),
    )


def test_a_gateway_moves_from_one_device_to_another(node: Netlink) -> None:
    """A node changes from plain routes to the tunnel: the old route covers the gateway of the new one."""
    pods, gateway = "fd44:0:0:3::/64", "fd44:0:0:3::1"
    bare = replace(vxlan(0), rules=(), sysctls=())
    ip(node, "address add fd89::11/64 dev eth0 nodad")
    plain = replace(bare, routes=(Route(pods, "fd89::13", "eth0"),))
    network.apply(node, plain, OWNER).check()
    by_tunnel = Route(pods, gateway, "podwire.1", onlink=True)
    refused = network.apply(node, replace(plain, routes=(by_tunnel,)), OWNER)
    assert [failure.errno for failure in refused.failed] == [errno.EINVAL]
    tunnel = replace(plain, routes=(by_tunnel, Route(f"{gateway}/128", link="podwire.1")))
    network.apply(node, tunnel, OWNER).check()
    assert network.apply(node, tunnel, OWNER) == network.Report()
    network.apply(node, plain, OWNER).check()
    assert network.apply(node, plain, OWNER) == network.Report()


def test_a_state_is_applied_once(node: Netlink) -> None:
    report = network.apply(node, vxlan(), OWNER).check()
    assert len(report.applied) == len(list(vxlan().objects()))
    assert network.apply(node, vxlan(), OWNER) == network.Report()
    assert not network.plan(node, vxlan(), OWNER)
    assert sysctl.read("net/ipv4/conf/podwire.1/rp_filter", node.netns) == "0"


def test_ip_shows_what_was_applied(node: Netlink) -> None:
    network.apply(node, vxlan(1), OWNER).check()
    assert "10.244.1.0/24 via 10.244.1.0 dev podwire.1 proto 113 src 10.244.0.0 onlink mtu 1400" in " ".join(
        ip(node, "route show").split()
    )
    assert "fd44:0:0:1::/64 via fd44:0:0:1:: dev podwire.1 proto 113 metric 1024 onlink" in ip(node, "-6 route show")
    outer = "src 0.0.0.0 dst 10.89.0.12 ttl 64 tos 0 dev podwire.1 proto 113"
    assert f"10.245.1.0/24 encap ip id 4096 {outer}" in " ".join(ip(node, "route show").split())
    assert "10.244.1.0 dev podwire.1 lladdr 02:00:00:00:01:01 PERMANENT proto 113" in " ".join(
        ip(node, "neighbour show").split()
    )
    assert "02:00:00:00:01:01 dev podwire.1 dst 10.89.0.12 self permanent" in ip(node, "fdb show", "bridge")
    assert "100:\tfrom 10.244.0.0/24 lookup 77 proto 113" in ip(node, "rule show")
    assert "to 10.1.0.0/16 ipproto tcp dport 80-90 lookup main proto 113" in ip(node, "rule show")
    assert "fwmark 0x4000/0xf000 lookup 78" in ip(node, "-6 rule show")
    details = ip(node, "-d link show podwire.1")
    assert "vxlan id 1 local 10.89.0.11 dev eth0" in details
    assert "nolearning" in details
    assert "alias podwire/routing" in details
    addresses = ip(node, "address show podwire.1")
    assert "inet6 fd44::/128 scope global nodad" in addresses or "inet6 fd44::/128 scope global" in addresses


def test_the_printed_commands_make_the_same_state(node: Netlink) -> None:
    """The text of a difference is a script: after ip(8) has run it, no difference is left."""
    want = replace(vxlan(), sysctls=())
    for command in str(network.plan(node, want, OWNER)).splitlines():
        tool, *arguments = grammar.split(command)
        if "address" in arguments and "proto" in arguments:  # ip(8) knows it from 6.3 on
            at = arguments.index("proto")
            del arguments[at : at + 2]
        with netns.inside(node.netns):
            subprocess.run([tool, *arguments], check=True)
    assert str(network.plan(node, want, OWNER)) == ""


def test_pyroute2_reads_the_same_state(node: Netlink) -> None:
    pyroute2 = pytest.importorskip("pyroute2")
    network.apply(node, vxlan(), OWNER).check()
    with netns.inside(node.netns), pyroute2.IPRoute() as oracle:
        routes = [x for x in oracle.get_routes(family=2) if x["proto"] == 113]
        links = {x.get_attr("IFLA_IFNAME"): x["index"] for x in oracle.get_links()}
        neighbours = {
            x.get_attr("NDA_DST") for x in oracle.get_neighbours(ifindex=links["podwire.1"]) if x["state"] & 128
        }
    ours = OWNER.share(network.read(node))
    assert {f"{x.get_attr('RTA_DST')}/{x['dst_len']}" for x in routes} == {
        x.dst for x in ours.routes if ":" not in x.dst
    }
    assert neighbours >= {x.ip for x in ours.neighbours if ":" not in x.ip}
    assert {x.name: x.index for x in network.read_links(node)} == links


@pytest.mark.parametrize(
    "damage",
    [
        "ip link del podwire.1",
        "ip link set podwire.1 down",
        "ip link set podwire.1 mtu 1300 alias foreign",
        "ip link set podwire.1 address 02:00:00:00:00:ff",
        "ip route flush proto 113",
        "ip -6 route flush proto 113",
        "ip neighbour flush dev podwire.1 nud permanent",
        "bridge fdb del 02:00:00:00:01:01 dev podwire.1 dst 10.89.0.12",
        "ip address flush dev podwire.1",
        "ip rule del priority 100",
        "ip route replace 10.244.1.0/24 via 10.89.0.99 proto 113",
        "ip neighbour replace 10.244.1.0 lladdr 02:00:00:00:09:09 dev podwire.1",
    ],
)
def test_damage_is_repaired(node: Netlink, damage: str) -> None:
    network.apply(node, vxlan(), OWNER).check()
    tool, _, arguments = damage.partition(" ")
    ip(node, arguments, tool)
    owner = replace(OWNER, links=("podwire.1",))
    assert network.plan(node, vxlan(), owner)
    network.apply(node, vxlan(), owner).check()
    assert not network.plan(node, vxlan(), owner)


def test_unwanted_objects_are_deleted(node: Netlink) -> None:
    network.apply(node, vxlan(3), OWNER).check()
    report = network.apply(node, vxlan(1), OWNER).check()
    assert {step.verb for step in report.applied} == {"delete"}
    assert len(report.applied) == 14
    network.remove(node, OWNER).check()
    assert OWNER.share(network.read(node)) == NetworkState()


def test_foreign_objects_stay(node: Netlink) -> None:
    foreign = merge(
        (
            parse("""\
link docker0 up type bridge
address 172.17.0.1/16 dev docker0
route 10.1.0.0/16 via 10.89.0.9 dev eth0 proto 4
neighbour 10.89.0.9 lladdr 02:00:00:00:00:09 dev eth0
rule 5 from 10.9.0.0/16 table 9 proto 3
"""),
        )
    )
    network.add(node, foreign).check()
    before = network.read(node)
    network.apply(node, vxlan(), OWNER).check()
    network.remove(node, OWNER).check()
    assert network.read(node) == before


def test_a_foreign_route_in_the_way_is_reported_and_kept(node: Netlink) -> None:
    ip(node, "route add 10.244.1.0/24 via 10.89.0.77 proto static")
    report = network.apply(node, vxlan(), OWNER)
    (failure,) = report.failed
    assert isinstance(failure, KernelExists)
    assert "10.244.1.0/24" in failure.subject
    assert "via 10.89.0.77" in ip(node, "route show 10.244.1.0/24")
    assert "10.244.2.0/24" in ip(node, "route show proto 113")
    with pytest.raises(KernelExists):
        report.check()


def test_a_foreign_device_in_the_way_is_reported_and_kept(node: Netlink) -> None:
    ip(node, "link add podwire.1 type bridge")
    report = network.apply(node, vxlan(), OWNER)
    assert isinstance(report.failed[0], KernelExists)
    assert network.read_link(node, "podwire.1").kind == "bridge"


def test_a_tunnel_turns_into_a_route_without_a_gap(node: Netlink) -> None:
    """The route is never missing: a reader that polls all the time sees the old or the new one."""
    network.apply(node, vxlan(1), OWNER).check()
    direct = NetworkState(routes=(Route("10.244.1.0/24", "10.89.0.12", "eth0"),))
    with netns.inside(node.netns):
        watcher = subprocess.Popen(["ip", "monitor", "route"], stdout=subprocess.PIPE, text=True)
    try:
        time.sleep(0.3)
        network.apply(node, direct, OWNER).check()
        time.sleep(0.3)
    finally:
        watcher.terminate()
    out = watcher.communicate()[0]
    assert not [line for line in out.splitlines() if line.startswith("Deleted 10.244.1.0/24")]
    assert ip(node, "route show 10.244.1.0/24").split()[1:5] == ["via", "10.89.0.12", "dev", "eth0"] or (
        "10.244.1.0/24 via 10.89.0.12 dev eth0" in ip(node, "route show proto 113")
    )
    assert not network.read(node).link("podwire.1")


def test_failures_name_their_object_and_the_reason(node: Netlink) -> None:
    want = NetworkState(
        routes=(Route("10.1.0.0/16", "10.89.0.12", "eth0"), Route("10.2.0.0/16", "192.0.2.1", "eth0")),
        neighbours=(Neighbour("eth9", "10.0.0.1", "02:00:00:00:00:01"),),
        sysctls=(Sysctl("net/ipv4/no_such_thing", "1"), Sysctl("net/ipv4/ip_forward", "much")),
    )
    report = network.apply(node, want, OWNER)
    output = sorted(str(failure) for failure in report.failed)
    assert len(output) == 4
    assert any("add neighbour 10.0.0.1" in text and "no device eth9" in text for text in output)
    assert any("route 10.2.0.0/16" in text and "Nexthop has invalid gateway" in text for text in output)
    assert any("no_such_thing" in text for text in output)
    assert any("ip_forward = much" in text and "Invalid argument" in text for text in output)
    assert [str(step.value) for step in report.applied] == ["route 10.1.0.0/16 via 10.89.0.12 dev eth0 proto 113"]


def test_every_failed_message_of_a_batch_is_reported(node: Netlink) -> None:
    indexes = {x.name: x.index for x in network.read_links(node)}
    routes = [
        Route(f"10.{i // 250}.{i % 250}.0/24", "10.89.0.12" if i % 3 else "192.0.2.1", "eth0") for i in range(1200)
    ]
    messages = [Message(24, 0x400, network.encode(route, indexes), "add", route) for route in routes]
    failures = node.batch(messages)
    assert sorted(failures) == [i for i in range(1200) if i % 3 == 0]
    assert all(failures[i].subject == str(routes[i]) for i in failures)
    assert len(network.read(node).routes) == 800


def test_a_kind_that_the_kernel_lacks_is_named(node: Netlink) -> None:
    report = network.add(node, NetworkState((Link("x", "no-such-kind"),)))
    assert isinstance(report.failed[0], Unsupported)
    assert "Unknown device type" in str(report.failed[0])


def test_every_kind_of_device_is_created_and_read(node: Netlink) -> None:
    links = parse("""\
link a mtu 1400 up type veth peer b
link b master eth0 hairpin up type veth peer a
link m mtu 1300 address 02:00:00:00:00:01 up type macvlan link eth0 mode bridge
link t alias "podwire/routing tun" up type tun
link v6 up type vxlan id 7 local fd00::1 dstport 4789 ttl 9 learning
""")
    network.apply(node, links, OWNER).check()
    assert not network.plan(node, links, OWNER)
    read = {x.name: x for x in network.read_links(node)}
    assert (read["b"].master, read["b"].hairpin, read["b"].peer) == ("eth0", True, "a")
    assert (read["m"].device, read["m"].mode, read["t"].kind) == ("eth0", "bridge", "tun")
    changed = replace(links, links=(replace(links.links[0], mtu=1350), *links.links[1:4]))
    applied = network.apply(node, changed, OWNER).check().applied
    assert [(step.verb, isinstance(step.value, Link) and step.value.name) for step in applied] == [
        ("set", "a"),
        ("delete", "v6"),
    ]


def test_a_changed_fixed_attribute_recreates_the_device(node: Netlink) -> None:
    network.apply(node, vxlan(), OWNER).check()
    before = network.read_link(node, "podwire.1").index
    link = replace(vxlan().links[0], attributes=Vxlan(1, 4789, "10.89.0.11", "eth0"))
    want = replace(vxlan(), links=(link,))
    network.apply(node, want, OWNER).check()
    assert network.read_link(node, "podwire.1").index != before
    assert not network.plan(node, want, OWNER)


def test_many_devices_are_deleted_together(node: Netlink) -> None:
    pairs = NetworkState(tuple(Link(f"p{i}", "veth", peer=f"q{i}") for i in range(20)))
    network.apply(node, pairs, OWNER).check()
    network.remove(node, OWNER).check()
    assert {x.name for x in network.read_links(node)} == {"lo", "eth0"}


def test_a_missing_namespace_is_an_error() -> None:
    with pytest.raises(KernelNotFound):
        Netlink("/run/pwt-kernel-none")
    with pytest.raises(KernelNotFound), netns.inside("/run/pwt-kernel-none"):
        pass


def test_a_large_state_is_read_from_a_changing_table(node: Netlink) -> None:
    """Dumps that the kernel marks as interrupted are repeated, so no object that stays is ever missing."""
    stable = tuple(Route(f"10.{i // 250}.{i % 250}.0/24", "10.89.0.12", "eth0", proto=9) for i in range(2000))
    network.add(node, NetworkState(routes=stable)).check()
    done = threading.Event()

    def disturb() -> None:
        with Netlink(node.netns) as other:
            changing = NetworkState(routes=(Route("10.99.0.0/24", "10.89.0.12", "eth0"),))
            while not done.is_set():
                network.apply(other, changing, OwnerMark(8))
                network.remove(other, OwnerMark(8))

    disturber = threading.Thread(target=disturb)
    disturber.start()
    try:
        for _ in range(20):
            assert network.read(node, OwnerMark(9)).routes == NetworkState(routes=stable).routes
    finally:
        done.set()
        disturber.join()
    assert network.read(node, OwnerMark(10)).routes == ()


@pytest.mark.parametrize("seed", range(12))
def test_any_partially_applied_state_converges(node: Netlink, seed: int) -> None:
    """After ``kill -9`` between any two messages, one apply reaches the desired state, in either direction."""
    chance = random.Random(seed)
    owner = replace(OWNER, links=("podwire.1",))
    full = vxlan(6)
    network.apply(node, full, owner).check()
    steps = network.plan(node, vxlan(chance.randrange(6)) if seed % 3 else NetworkState(), owner).steps
    subset = tuple(step.value for step in steps if chance.random() < 0.5 and not isinstance(step.value, Link | Sysctl))
    indexes = {x.name: x.index for x in network.read_links(node)}
    kinds = {Address: 21, Route: 25, Neighbour: 29, Fdb: 29, FibRule: 33}
    node.batch([Message(kinds[type(x)], 0, network.encode(x, indexes), "delete", x) for x in subset])
    for want in (vxlan(chance.randrange(8)), full):
        network.apply(node, want, owner).check()
        assert not network.plan(node, want, owner)
