"""EgressPolicies by real packets: the source that a host outside sees, moves of the address, and what never leaves."""

import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from msgspec.structs import replace
from tests.kernel.routing_nodes import (
    ECHO_SERVER,
    SOURCE_REPLY_SERVER,
    Cluster,
    Pod,
    Talk,
    inside,
    ip_batch,
    source_seen,
)

from podwire.kernel import netns, sysctl
from podwire.kernel.features import Features
from podwire.kernel.neighbour_announcement import announce
from podwire.model.egress import EgressPolicy, EgressPolicySpec
from podwire.model.meta import Condition, ObjectMeta
from podwire.model.pod import Pod as PodObject
from podwire.model.pod import PodIP, PodSpec, PodStatus
from podwire.model.selector import LabelSelector
from podwire.routing.egress.flows import forget_connections, outdated_pods
from podwire.routing.egress.holder import EgressAssignment, assign, known_pods, rules_of
from podwire.routing.egress.plan import TABLE, held_addresses, marks_of, with_egress
from podwire.routing.nodes import peer_of
from podwire.routing.settings import RoutingSettings

ADDRESS = {4: "10.89.0.200", 6: "fd89::200"}
SECOND = {4: "10.89.0.201", 6: "fd89::201"}
WORLD = {4: "192.0.2.1", 6: "2001:db8::1"}
ROUTER = {4: "10.89.0.1", 6: "fd89::1"}
GATEWAY = {"gateway": "yes"}


class EgressCluster:
    """Three nodes, of which the second and the third may have egress addresses; pod ``a`` is on the first."""

    def __init__(self, root: Path, backend: str) -> None:
        self.net = Cluster(root, 3, families="46")
        fabric = self.net.fabric
        sysctl.write("net/ipv6/conf/all/forwarding", "1", fabric)
        ip_batch(fabric, f"address add {ROUTER[6]}/64 dev br0 nodad", f"address add {WORLD[6]}/128 dev br0 nodad")
        for node in self.net.all:
            ip_batch(node.place, f"route add default via {ROUTER[6]}")
        self.net.configure(RoutingSettings(backend=backend))
        self.net.settle()
        self.objects: dict[str, PodObject] = {}
        self.policies: dict[str, EgressPolicy] = {}
        self.dead: set[str] = set()
        self.applied: dict[str, tuple[EgressAssignment, ...]] = {}
        """The assignments that each living agent has in force, as its follower remembers them."""
        self.labels: dict[str, dict[str, str]] = {}
        self.world = Pod(fabric, WORLD[4], WORLD[6])

    def pod(self, name: str, node: int, **labels: str) -> Pod:
        pod = self.net.all[node - 1].pod(name)
        self.objects[name] = PodObject(
            metadata=ObjectMeta(name=name, namespace="shop", labels=labels or {"app": name}),
            spec=PodSpec(node_name=f"node-{node}"),
            status=PodStatus(phase="Running", pod_ips=(PodIP(ip=pod.address), PodIP(ip=pod.address6))),
        )
        return pod

    def policy(self, name: str, addresses: dict[int, str], nodes: tuple[int, ...] = (2, 3), **spec: object) -> None:
        expected = {"egress_ips": tuple(addresses.values()), "pod_selector": LabelSelector(match_labels={"app": "a"})}
        expected["node_selector"] = LabelSelector(match_labels={"gateway": f"{name}"})
        for number in (1, 2, 3):
            self.labels.setdefault(f"node-{number}", {})
        for number in nodes:
            self.labels[f"node-{number}"]["gateway"] = name
        self.policies[name] = EgressPolicy(
            metadata=ObjectMeta(name=name),
            spec=EgressPolicySpec(**(expected | spec)),  # type: ignore[arg-type]
        )

    def assignments(self) -> tuple[EgressAssignment, ...]:
        ready = (Condition(type="Ready", status="True"),)
        nodes = {
            name: replace(
                node,
                metadata=replace(node.metadata, labels=self.labels.get(name, {})),
                status=replace(node.status, conditions=ready),
            )
            for name, node in self.net.nodes.items()
        }
        rules, _ = rules_of(self.policies, {})
        return assign(rules, nodes, set(nodes) - self.dead, self.objects.values(), {"shop": {}})

    def settle(self) -> None:
        """Runs every living agent once, as it follows a change."""
        now = self.assignments()
        for node in self.net.all:
            if node.name in self.dead:
                continue
            before = self.applied.get(node.name)
            node.router.lead_out(now, self.known(node.name))
            node.reconcile()
            plan = node.router.plan
            assert plan is not None
            self.applied[node.name] = now
            if before is not None:
                addresses = {str(address) for item in now for address in item.addresses}
                forget_connections(outdated_pods(before, now), addresses, plan.inside, node.place)
            held = held_addresses(node.name, now)
            if held:
                announce("eth0", held, node.place)

    def known(self, node: str) -> frozenset[str]:
        return known_pods(node, self.objects.values(), {"shop": {}})

    def holder(self, name: str = "out") -> str:
        return next(assignment.node for assignment in self.assignments() if assignment.name == name)

    def close(self) -> None:
        self.net.close()


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Callable[[str], EgressCluster]]:
    egress_clusters: list[EgressCluster] = []

    def build(backend: str) -> EgressCluster:
        egress_clusters.append(EgressCluster(tmp_path, backend))
        return egress_clusters[-1]

    yield build
    for item in egress_clusters:
        item.close()


@pytest.mark.parametrize("backend", ["vxlan", "hostgw", "ovs", "bgp", "bridge"])
def test_pods_leave_with_the_egress_address(make: Callable[[str], EgressCluster], backend: str) -> None:
    cluster = make(backend)
    pods = [cluster.pod("a", 1), cluster.pod("b", 2, app="a"), cluster.pod("c", 3, app="a")]
    other = cluster.pod("other", 1)
    cluster.policy("out", ADDRESS)
    cluster.settle()
    with cluster.world.running(SOURCE_REPLY_SERVER), pods[2].running(SOURCE_REPLY_SERVER):
        for pod in pods:
            assert [source_seen(pod.place, WORLD[v]) for v in (4, 6)] == [ADDRESS[4], ADDRESS[6]]
        assert source_seen(other.place, WORLD[4]) == cluster.net.all[0].ip
        assert source_seen(pods[0].place, pods[2].address) == pods[0].address
        assert source_seen(pods[0].place, pods[2].address6) == pods[0].address6
        assert source_seen(cluster.net.all[1].place, WORLD[6]) == cluster.net.all[1].ip6


class Datagrams:
    """A pod that sends first packets all the time, and a receiver outside that notes their sources."""

    def __init__(self, pod: Pod, world: Pod) -> None:
        self.sources: list[str] = []
        self._pod, self._end = pod, threading.Event()
        with netns.inside(world.place):
            self._receiver = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self._receiver.bind(("", 9000))
        self._receiver.settimeout(0.1)
        self._threads = [threading.Thread(target=self._send), threading.Thread(target=self._receive)]

    def __enter__(self) -> "Datagrams":
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._end.set()
        for thread in self._threads:
            thread.join()
        self._receiver.close()

    def _send(self) -> None:
        while not self._end.is_set():
            with netns.inside(self._pod.place):
                sender = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
            with sender, suppress(OSError):
                sender.sendto(b"x", (WORLD[4], 9000))
            time.sleep(0.005)

    def _receive(self) -> None:
        while not self._end.is_set():
            with suppress(TimeoutError):
                self.sources.append(self._receiver.recvfrom(10)[1][0])

    def more(self) -> set[str]:
        """The sources of at least ten further packets."""
        began, deadline = len(self.sources), time.monotonic() + 30
        while len(self.sources) < began + 10:
            assert time.monotonic() < deadline, "no packet arrives"
            time.sleep(0.01)
        return set(self.sources[began:])


def objects_of(cluster: EgressCluster) -> list[str]:
    """Rules, routes, addresses and tables of all nodes, as ip(8) and nft(8) show them."""
    shown = []
    for node in cluster.net.all:
        for arguments in (
            "ip rule",
            "ip -6 rule",
            "ip route show table all proto 113",
            "ip -6 route show table all proto 113",
            "ip -o address show dev eth0",
            "nft list tables",
            "nft list table inet podwire-masquerade",
        ):
            shown.append(f"{node.name} {arguments}\n{inside(node.place, *arguments.split())}")
    return shown


@pytest.mark.parametrize("backend", ["vxlan", "hostgw", "ovs"])
def test_no_packet_leaves_with_another_address_while_nodes_change(
    make: Callable[[str], EgressCluster], backend: str
) -> None:
    cluster = make(backend)
    pod = cluster.pod("a", 1)
    cluster.settle()
    before = objects_of(cluster)
    cluster.policy("out", ADDRESS)
    cluster.settle()
    first = cluster.holder()
    with Datagrams(pod, cluster.world) as datagrams:
        assert datagrams.more() == {ADDRESS[4]}
        port = first.replace("node-", "n")
        ip_batch(cluster.net.fabric, f"link set {port} down")
        cluster.dead.add(first)
        cluster.settle()
        assert cluster.holder() not in ("", first) and datagrams.more() == {ADDRESS[4]}
        cluster.dead |= {"node-2", "node-3"}
        cluster.settle()
        assert cluster.holder() == ""
        ip_batch(cluster.net.fabric, f"link set {port} up")
        cluster.dead.clear()
        cluster.settle()
        assert cluster.holder() == first and datagrams.more() == {ADDRESS[4]}
        assert set(datagrams.sources) == {ADDRESS[4]}
        cluster.policies["out"] = replace(
            cluster.policies["out"], spec=replace(cluster.policies["out"].spec, egress_ips=tuple(SECOND.values()))
        )
        cluster.settle()
        assert datagrams.more() <= {ADDRESS[4], SECOND[4]} and datagrams.more() == {SECOND[4]}
        assert set(datagrams.sources) == {ADDRESS[4], SECOND[4]}
        cluster.policies.clear()
        cluster.settle()
        assert datagrams.more() <= {SECOND[4], cluster.net.all[0].ip}
    assert objects_of(cluster) == before


@pytest.mark.parametrize("backend", ["vxlan", "hostgw"])
def test_connections_outlive_agents_and_changes_of_other_pods(
    make: Callable[[str], EgressCluster], backend: str
) -> None:
    cluster = make(backend)
    pod, other, third = cluster.pod("a", 1), cluster.pod("other", 1), cluster.pod("third", 1)
    cluster.policy("out", ADDRESS)
    cluster.settle()
    with cluster.world.running(ECHO_SERVER):
        talks = [Talk(pod, cluster.world), Talk(other, cluster.world)]
        for node in cluster.net.all:
            node.machine.close()
            settings = node.router.settings
            node.start_agent()
            node.router.configure(settings)
            cluster.applied.pop(node.name)
        cluster.settle()
        cluster.objects["third"] = replace(
            cluster.objects["third"], metadata=replace(cluster.objects["third"].metadata, labels={"app": "a"})
        )
        cluster.settle()
        rounds = [talk.rounds for talk in talks]
        deadline = time.monotonic() + 30
        while any(talk.rounds < before + 5 for talk, before in zip(talks, rounds, strict=True)):
            assert time.monotonic() < deadline, [talk.failure for talk in talks]
            time.sleep(0.01)
        assert [talk.end() for talk in talks] == [0, 0]
    with cluster.world.running(SOURCE_REPLY_SERVER):
        assert source_seen(third.place, WORLD[4]) == ADDRESS[4]


def test_connection_from_before_a_policy_does_not_keep_its_source(make: Callable[[str], EgressCluster]) -> None:
    cluster = make("vxlan")
    pod = cluster.pod("a", 1)
    node = cluster.net.all[0]
    with netns.inside(pod.place):
        sender = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    with netns.inside(cluster.world.place):
        receiver = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    with sender, receiver:
        receiver.bind(("", 9000))
        receiver.settimeout(30)
        sender.sendto(b"before", (WORLD[4], 9000))
        text, peer = receiver.recvfrom(10)
        assert (text, peer[0]) == (b"before", node.ip)
        cluster.settle()
        cluster.policy("out", ADDRESS)
        node.router.lead_out(cluster.assignments(), cluster.known(node.name))
        node.reconcile()
        sender.sendto(b"dropped", (WORLD[4], 9000))
        cluster.settle()
        sender.sendto(b"after", (WORLD[4], 9000))
        text, peer = receiver.recvfrom(10)
        assert (text, peer[0]) == (b"after", ADDRESS[4])


def test_destinations_exceptions_order_and_families(make: Callable[[str], EgressCluster]) -> None:
    cluster = make("hostgw")
    ip_batch(cluster.net.fabric, "address add 198.51.100.1/32 dev br0", "address add 203.0.113.1/32 dev br0")
    pod, node = cluster.pod("a", 1), cluster.net.all[0]
    cluster.policy("first", {4: ADDRESS[4]}, (2,), destination_cidrs=("192.0.2.0/24",))
    cluster.policy("second", {4: SECOND[4]}, (3,), excluded_cidrs=("203.0.113.0/24",))
    cluster.settle()
    with cluster.world.running(SOURCE_REPLY_SERVER):
        assert source_seen(pod.place, "192.0.2.1") == ADDRESS[4]
        assert source_seen(pod.place, "198.51.100.1") == SECOND[4]
        assert source_seen(pod.place, "203.0.113.1") == node.ip
    table = inside(node.place, "nft", "list", "table", "inet", TABLE)
    assert "EgressPolicy second: it has no IPv6 address" in table


@pytest.mark.parametrize("backend", ["none", "cloudroutes"])
def test_backends_that_lead_to_pods_alone_drop_with_the_reason(
    make: Callable[[str], EgressCluster], backend: str
) -> None:
    cluster = make(backend)
    pod = cluster.pod("a", 1)
    cluster.policy("out", ADDRESS)
    cluster.settle()
    with Datagrams(pod, cluster.world) as datagrams:
        deadline = time.monotonic() + 30
        while "counter packets 0" in dropping(cluster):
            assert time.monotonic() < deadline
            time.sleep(0.02)
        assert not datagrams.sources and "leads to pods alone" in dropping(cluster)


def dropping(cluster: EgressCluster) -> str:
    """The rule of the first node that drops the IPv4 packets of the policy."""
    table = inside(cluster.net.all[0].place, "nft", "list", "table", "inet", TABLE)
    return next(line for line in table.splitlines() if "ip saddr @pods4-out" in line and "drop" in line)


def test_a_pod_that_the_api_does_not_show_stays_inside(make: Callable[[str], EgressCluster]) -> None:
    cluster = make("hostgw")
    first, node = cluster.pod("first", 1), cluster.net.all[0]
    cluster.policy("out", ADDRESS)
    pod = cluster.pod("a", 1)
    shown = cluster.objects.pop("a")
    cluster.settle()
    with first.running(SOURCE_REPLY_SERVER):
        assert source_seen(pod.place, first.address) == pod.address
    with Datagrams(pod, cluster.world) as datagrams:
        deadline = time.monotonic() + 30
        while not any("packets 0 " not in line for line in not_shown(node.place)):
            assert time.monotonic() < deadline
            time.sleep(0.02)
        assert not datagrams.sources
        cluster.objects["a"] = shown
        cluster.settle()
        assert datagrams.more() == {ADDRESS[4]} and set(datagrams.sources) == {ADDRESS[4]}


def not_shown(place: Path) -> list[str]:
    """The rules that drop packets of pods that the API does not show."""
    table = inside(place, "nft", "list", "table", "inet", TABLE)
    return [line for line in table.splitlines() if "does not show the pod" in line]


@pytest.mark.uml
@pytest.mark.parametrize("backend", ["geneve", "ovs", "ipip", "vlan"])
def test_marked_packets_take_the_tunnel_to_the_egress_node(make: Callable[[str], EgressCluster], backend: str) -> None:
    """The routes of a policy alone, with marks of iptables: the kernel that has these tunnels has no nftables."""
    if not Features().lacks("nftables"):
        pytest.skip("this kernel has nftables, and with it the whole of an egress policy is tested")
    cluster = make(backend)
    pod, node = cluster.pod("a", 1), cluster.net.all[0]
    cluster.policy("out", ADDRESS, (3,))
    (item,) = cluster.assignments()
    base, (me, _) = node.router.plan, node.router.own.look()
    assert base is not None and me is not None
    peers = [peer_of(each.object()) for each in cluster.net.all[1:]]
    plan = with_egress(base, me, peers, (item,), RoutingSettings().load())
    assert node.machine.hold(plan.state) == []
    mark = str(marks_of(["node-3"])["node-3"])
    for version, word in ((4, "iptables-legacy"), (6, "ip6tables-legacy")):
        mangle = (word, "-t", "mangle")
        inside(node.place, *mangle, "-A", "PREROUTING", "-d", WORLD[version], "-j", "MARK", "--set-mark", mark)
        inside(node.place, *mangle, "-A", "POSTROUTING", "-j", "MARK", "--set-mark", "0")
        inside(cluster.net.all[2].place, *mangle, "-A", "FORWARD", "-d", WORLD[version], "-j", "ACCEPT")
    ip_batch(
        cluster.net.fabric,
        f"route add 10.244.1.0/24 via {node.ip}",
        f"route add fd00:0:0:1::/64 via {node.ip6}",
    )
    with cluster.world.running(SOURCE_REPLY_SERVER):
        assert [source_seen(pod.place, WORLD[v]) for v in (4, 6)] == [pod.address, pod.address6]
    for word in ("iptables-legacy", "ip6tables-legacy"):
        counters = inside(cluster.net.all[2].place, word, "-t", "mangle", "-vnxL", "FORWARD").splitlines()[2].split()
        assert int(counters[0]) > 0, "the packets pass the egress node"
