"""Every object of pods on the node that another program deletes or changes is back soon; the output has the times.

The cases follow from the plan of the node: each sysctl, and one object of each other kind and family. The sweep of
vanished pods, which compares everything too, does not run.
"""

import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.kernel.cni_node import NodeAgent, inside, ping
from tests.kernel.healing import PATIENCE_S, EagerClock

from podwire.cluster.podleg import PodLeg
from podwire.cni.podsysctls import shared_sysctls
from podwire.cni.wiring import LEG, NODE_OWNER, WiringFacts
from podwire.kernel import comparison, sysctl
from podwire.state.address import is_v6
from podwire.state.drift import render
from podwire.state.link import Link
from podwire.state.network import NetworkState
from podwire.state.route import Sysctl

MAC = "02:00:00:00:00:99"
CIDRS = ("10.244.1.0/24", "fd00:244:1::/64")
NETWORKS: dict[str, tuple[str, ...]] = {"blue": ("10.245.1.0/24",)}
BLUE = {"runtimeConfig": {"io.kubernetes.cri.pod-annotations": {"podwire.io/network": "blue"}}}
Case = tuple[str, list[str]]
"""What is damaged, and the commands: of ip(8), or of bridge(8)."""


@pytest.fixture
def node(make: Callable[..., NodeAgent]) -> NodeAgent:
    """A node with pods in both families, one of which is in a network that the node no longer has."""
    node = make(*CIDRS, clock=EagerClock())
    node.within(lambda: node.service.set_node(WiringFacts(cidrs=CIDRS, networks=NETWORKS)))
    node.add("blue", **BLUE)
    node.within(lambda: node.service.set_node(WiringFacts(cidrs=CIDRS)))
    node.add("web")
    node.add("db", runtimeConfig={"portMappings": [{"hostPort": 8080, "containerPort": 80, "protocol": "tcp"}]})
    return node


def held(node: NodeAgent) -> NetworkState:
    """The state of the node's namespace that pods need."""
    (share, *_) = node.within(lambda: list(node.service.shares()))
    (state,) = (value for value in share.desired if isinstance(value, NetworkState))
    return NODE_OWNER.stamp(state)


def drift(node: NodeAgent) -> list[str]:
    return list(render(comparison.compare(node.within(lambda: list(node.service.shares())), node.place)))


def until(check: Callable[[], object], what: Callable[[], object]) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not check():
        assert time.monotonic() < deadline, what()
        time.sleep(0.01)


def of_link(link: Link) -> Iterator[Case]:
    name = link.name
    yield f"{name}: device deleted", [f"link del {name}"]
    yield f"{name}: device down", [f"link set {name} down"]
    yield f"{name}: device with another MTU", [f"link set {name} mtu 1300"]
    yield f"{name}: device with another alias", [f"link set dev {name} alias foreign"]
    yield f"{name}: device with another MAC", [f"link set {name} address {MAC}"]
    yield f"{name}: device renamed", [f"link set {name} down", f"link set {name} name foreign0"]
    if link.master:
        yield f"{name}: port taken off its bridge", [f"link set {name} nomaster"]


def cases(state: NetworkState) -> Iterator[Case]:
    for link in {x.kind: x for x in state.links}.values():
        yield from of_link(link)
    yield f"{state.links[0].name}: device deleted", [f"link del {state.links[0].name}"]
    for address in state.addresses:
        yield f"address {address.cidr} deleted", [f"address del {address.cidr} dev {address.link}"]
    for route in {is_v6(x.dst): x for x in state.routes}.values():
        ip, arguments = (
            f"-{6 if is_v6(route.dst) else 4} route",
            f"{route.dst} metric {1024 if is_v6(route.dst) else 0}",
        )
        yield f"route {route.dst} deleted", [f"{ip} del {route.dst}"]
        for proto in ("static", "112"):
            yield f"route {route.dst} of proto {proto} instead", [f"{ip} replace blackhole {arguments} proto {proto}"]
    yield "all routes deleted", ["-4 route flush proto 112", "-6 route flush proto 112"]
    for entry in {is_v6(x.ip): x for x in state.neighbours}.values():
        where = f"{entry.ip} dev {entry.link}"
        yield f"neighbour {entry.ip} deleted", [f"neigh del {where}"]
        yield f"neighbour {entry.ip} changed", [f"neigh replace {where} lladdr {MAC} nud permanent"]
    for first, second in zip(state.fdb[:1], state.fdb[1:2], strict=True):
        yield "forwarding entry deleted", [f"bridge fdb del {first.mac} dev {first.link} master"]
        yield "forwarding entry of another port", [f"bridge fdb replace {first.mac} dev {second.link} master static"]
    for rule in state.rules[:1]:
        yield "rule deleted", [f"rule del priority {rule.priority} from {rule.src}"]


def do(node: NodeAgent, commands: list[str]) -> None:
    for command in commands:
        words = command.split() if command.startswith("bridge ") else ["ip", *command.split()]
        done = inside(node.place, *words)
        assert done.returncode == 0, f"{command}: {done.stderr}"


def test_everything_of_pods_that_others_damage_is_restored(node: NodeAgent) -> None:
    until(lambda: not drift(node), lambda: drift(node))
    times: list[str] = []
    for subject, commands in list(cases(held(node))):
        do(node, commands)
        began = time.monotonic()
        until(lambda: not drift(node), lambda subject=subject: (subject, drift(node)))  # type: ignore[misc]
        times.append(f"{node.link:7} {subject:60} {time.monotonic() - began:5.2f} s")
    print("\n".join(times))
    assert len(times) > 15
    addresses = [
        address for item in node.service.leases.held.values() for address in item.addresses if item.pod == "web"
    ]
    assert all(ping(node.pods / "db", address, patience_s=10) for address in addresses)
    assert node.call("CHECK", "web") == (0, {})


def test_every_sysctl_of_pods_that_others_change_is_restored(node: NodeAgent) -> None:
    inside(node.place, "ip", "link", "add", "up0", "type", "veth", "peer", "name", "up1")
    inside(node.place, "ip", "link", "set", "up0", "up")
    leg = PodLeg("up0", 1500, ("10.244.2.0/24",))
    node.within(lambda: node.service.set_node(WiringFacts(cidrs=CIDRS, leg=leg)))
    shares = node.within(lambda: list(node.service.shares()))
    values = [
        (Path(share.netns) if share.netns else node.place, value)
        for share in shares
        for state in share.desired
        if isinstance(state, NetworkState)
        for value in state.sysctls
    ]
    attachments = list(node.service.leases.held.values())
    values += [(node.place, x) for x in shared_sysctls(attachments, WiringFacts(cidrs=CIDRS, link=node.link))]
    values = list(dict.fromkeys(values))
    names = {value.path.rpartition("/")[2] for _, value in values}
    expected = {"forwarding", "rp_filter", "send_redirects", "accept_redirects", "route_localnet", "accept_ra"}
    assert names - {"addr_gen_mode"} == expected
    for place, value in values:
        sysctl.write(value.path, other(value), place)
    until(lambda: not changed(values), lambda: changed(values))
    inside(node.pods / "web", "ip", "link", "del", LEG)
    until(lambda: not drift(node), lambda: drift(node))
    assert LEG in inside(node.pods / "web", "ip", "link").stdout


def other(value: Sysctl) -> str:
    return "1" if value.value == "0" else "0"


def changed(values: list[tuple[Path, Sysctl]]) -> list[str]:
    return [str(value) for place, value in values if sysctl.read(value.path, place) != value.value]
