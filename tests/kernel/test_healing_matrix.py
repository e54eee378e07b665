"""Every object of every backend that another program deletes or changes is back soon; the output has the times.

The cases follow from the plan of a node: one object of each kind, family and device. None is restored by a resync.
"""

import subprocess
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from tests.kernel.healing import EagerClock, checking, drift, restored, until, with_router
from tests.kernel.routing_nodes import Cluster, ClusterNode

from podwire.kernel import ethtool, netns, sysctl, udptunnel
from podwire.routing.machine import OWNER
from podwire.routing.settings import RoutingSettings
from podwire.state.address import is_v6
from podwire.state.link import Link
from podwire.state.nft import Table
from podwire.state.offload import Offload
from podwire.state.route import Route, Sysctl
from podwire.state.udptunnel import UdpTunnel
from podwire.state.value import StateValue

IN_GUEST = pytest.mark.uml
BACKENDS = ["vxlan", "hostgw", "bgp", "bridge", "wireguard", "udp", "macvlan"]
BACKENDS += [pytest.param(name, marks=IN_GUEST) for name in ("ipip", "geneve", "vlan", "ipvlan")]  # type: ignore[misc]
MAC = "02:00:00:00:00:99"
Case = tuple[str, list[str]]
"""What is damaged, and the commands: of ip(8), or with the name of another program."""


@pytest.fixture(params=BACKENDS)
def node(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[ClusterNode]:
    """The first of two nodes with a backend, in both families."""
    cluster = Cluster(tmp_path, 2, families="46", clock=EagerClock())
    try:
        cluster.configure(RoutingSettings(backend=request.param, tx_checksum="off"))
        cluster.settle()
        yield cluster.all[0]
    finally:
        cluster.close()


def of_link(link: Link) -> Iterator[Case]:
    name = link.name
    yield "device deleted", [f"link del {name}"]
    yield "device down", [f"link set {name} down"]
    yield "device with another MTU", [f"link set {name} mtu 1300"]
    yield "device with another alias", [f"link set dev {name} alias foreign"]
    yield "device renamed", [f"link set {name} down", f"link set {name} name foreign0", "link set foreign0 up"]
    if link.mac:
        yield "device with another MAC", [f"link set {name} address {MAC}"]


def of_route(route: Route) -> Iterator[Case]:
    family = "IPv6" if is_v6(route.dst) else "IPv4"
    arguments = f"{route.dst} metric {route.metric or (1024 if is_v6(route.dst) else 0)}"
    ip = f"-{family[-1]} route"
    yield f"{family} {route.kind} route deleted", [f"{ip} del {'' if route.link else route.kind} {arguments} proto 113"]
    for proto in ("static", "113"):
        yield (
            f"{family} {route.kind} route of proto {proto} instead",
            [f"{ip} replace blackhole {arguments} proto {proto}"],
        )
    if route.link:
        flush = f"{ip} flush root {route.dst}"
        yield f"{family} route deleted, added by another", [flush, f"{ip} add prohibit {arguments} proto static"]


def of_sysctl(entry: Sysctl) -> Case:
    return f"sysctl {entry.path}", [f"sysctl {entry.path}={'0' if entry.value != '0' else '1'}"]


def of_values(values: Sequence[StateValue], program_values: Sequence[StateValue]) -> Iterator[Case]:
    for offload in (value for value in values if isinstance(value, Offload)):
        yield f"checksum offload of {offload.device}", [f"offload {offload.device} on"]
    for table in (value for value in values if isinstance(value, Table)):
        yield f"table {table.name} deleted", [f"nft delete table inet {table.name}"]
        yield f"table {table.name} flushed", [f"nft flush table inet {table.name}"]
    for tunnel in (value for value in program_values if isinstance(value, UdpTunnel)):
        yield f"peers of the process of {tunnel.device}", [f"tunnel {tunnel.device} {next(tunnel.lines())}"]


def cases(node: ClusterNode) -> Iterator[Case]:
    assert node.router.plan is not None
    state = OWNER.stamp(node.router.plan.state)
    for link in state.links:
        yield from of_link(link)
    for address in {is_v6(x.cidr): x for x in state.addresses}.values():
        yield f"address {address.cidr} deleted", [f"address del {address.cidr} dev {address.link}"]
    for route in {(is_v6(x.dst), x.kind, x.link, bool(x.via)): x for x in state.routes}.values():
        yield from of_route(route)
    for entry in {is_v6(x.ip): x for x in state.neighbours}.values():
        subject, where = f"neighbour {entry.ip}", f"{entry.ip} dev {entry.link}"
        yield f"{subject} deleted", [f"neigh del {where}"]
        yield f"{subject} changed", [f"neigh replace {where} lladdr {MAC} nud permanent"]
    for fdb in state.fdb[:1]:
        where = f"{fdb.mac} dev {fdb.link} {f'dst {fdb.dst}' if fdb.dst else ''} {'master' * fdb.bridge}"
        yield "forwarding entry deleted", [f"bridge fdb del {where}"]
        if fdb.dst:
            yield "forwarding entry changed", [f"bridge fdb replace {fdb.mac} dev {fdb.link} dst 10.89.0.77"]
            yield "forwarding entries flushed", [f"bridge fdb flush dev {fdb.link}"]
    yield from map(of_sysctl, state.sysctls)
    for rule in state.rules[:1]:
        yield "rule deleted", [f"rule del priority {rule.priority} from {rule.src or 'all'}"]
    yield from of_values(node.router.applied.values, node.router.plan.program_values)
    yield "all routes deleted", ["-4 route flush proto 113", "-6 route flush proto 113"]
    yield "underlay down and up", ["link set eth0 down", "link set eth0 up", f"address replace {node.ip6}/64 dev eth0"]


def do(node: ClusterNode, commands: list[str]) -> None:
    for command in commands:
        program, _, rest = command.partition(" ")
        if program == "sysctl":
            path, _, value = rest.partition("=")
            sysctl.write(path, value, node.place)
        elif program == "offload":
            device, _, value = rest.partition(" ")
            ethtool.apply(node.place, [device], [Offload(device, value)])
        elif program == "tunnel":
            device, _, text = rest.partition(" ")
            udptunnel.ask(node.place, device, f"set\n{text}")
        elif program in ("bridge", "nft"):
            node.shows(program, *rest.split())
        else:
            with netns.inside(node.place):
                done = subprocess.run(["ip", *command.split()], capture_output=True, text=True, check=False)
            assert done.returncode == 0, f"ip {command}: {done.stderr}"


async def back(node: ClusterNode, commands: list[str]) -> None:
    """Damages the node, and returns when all is as before."""
    runs = node.router.applied.runs
    do(node, commands)
    await until(lambda: node.router.applied.runs > runs)
    await restored(node)


def test_everything_that_others_damage_is_restored(node: ClusterNode) -> None:
    backend = node.router.settings.backend
    times: list[str] = []

    async def body() -> None:
        for subject, commands in list(cases(node)):
            await until(lambda: node.router.settled)
            began = time.monotonic()
            try:
                await checking(node, lambda commands=commands: back(node, commands))  # type: ignore[misc]
            except AssertionError as failure:
                pytest.fail(f"{subject} ({'; '.join(commands)}): {failure}; {drift(node)}; {node.router.problem}")
            times.append(f"{backend:10} {subject:60} {time.monotonic() - began:5.2f} s")
        await until(lambda: node.router.settled)

    with_router(node, body)
    print("\n".join(times))
    assert len(times) > 15
