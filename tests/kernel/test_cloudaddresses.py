"""Addresses of a cloud's interfaces for pods: the real client of AWS against an emulated API, and real packets.

The router of the VPC is a namespace that passes a packet only from the interface that has its source address.
"""

import asyncio
import itertools
import json
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from ipaddress import ip_address, ip_interface
from pathlib import Path
from typing import Any, Literal

import pytest
from msgspec.structs import replace
from tests.fakes.alibaba_cloud import KEY, SECRET, AlibabaCloud, served
from tests.kernel.agent_cluster import Machine, eventually
from tests.kernel.emulated_cloud import Killed, Vpc, controlling, emulated, killed_after, refuse
from tests.kernel.routing_nodes import SOURCE_REPLY_SERVER, Cluster, ClusterNode, Pod, inside, ip_batch, source_seen

from podwire.cluster.cloudinterfaces import NodeInterfaces, PodInterface, read_interfaces
from podwire.controllers.cloudaddresses.controller import CloudAddressesController
from podwire.controllers.cloudaddresses.plan import AddressTargets, NodeDemand, plan
from podwire.controllers.cloudaddresses.provider import AddressProvider
from podwire.controllers.cloudroutes.execution import SyncOutcome, carry_out
from podwire.controllers.cloudroutes.providers.alibaba.addresses import AlibabaAddresses
from podwire.controllers.cloudroutes.providers.alibaba.options import AlibabaOptions
from podwire.controllers.cloudroutes.settings import CloudSettings
from podwire.errors import CloudUnavailable
from podwire.kernel import sysctl
from podwire.kube.resources import NODES
from podwire.observe.log import Log
from podwire.routing.backends.cloudroutes.backend import CloudOptions, CloudSection
from podwire.routing.settings import RoutingSettings

TARGETS = AddressTargets(warm=2)


@pytest.fixture(scope="module")
def emulator() -> Iterator[Any]:
    with emulated() as ec2:
        yield ec2


@pytest.fixture
def vpc(emulator: Any) -> Vpc:
    return Vpc(emulator)


def synchronize(
    provider: AddressProvider, *demands: NodeDemand, targets: AddressTargets = TARGETS
) -> tuple[SyncOutcome, dict[str, NodeInterfaces]]:
    planned = plan(demands, provider.read({each.instance for each in demands}), targets)
    return asyncio.run(carry_out(provider, planned, Log("test"))), dict(planned.have)


def settle(
    provider: AddressProvider, *demands: NodeDemand, targets: AddressTargets = TARGETS
) -> dict[str, NodeInterfaces]:
    """Runs until nothing changes; returns what the nodes have then."""
    for _ in range(9):
        outcome, have = synchronize(provider, *demands, targets=targets)
        assert not outcome.failures and not outcome.unavailable, outcome
        if not outcome.changes:
            return have
    raise AssertionError("the cloud's state does not settle")


def demand(provider: AddressProvider, vpc: Vpc | AlibabaCloud, number: int, pods: int = 0) -> NodeDemand:
    provider_id = vpc.run(f"10.89.0.{10 + number}")
    return NodeDemand(name=f"node-{number}", instance=provider.instance(provider_id), pods=pods)


def interfaces(vpc: Vpc) -> list[dict[str, Any]]:
    """The interfaces of the VPC that are not the first ones of instances."""
    chosen = [{"Name": "vpc-id", "Values": [vpc.id]}]
    documents = vpc.ec2.describe_network_interfaces(Filters=chosen)["NetworkInterfaces"]
    return [each for each in documents if each["PrivateIpAddress"] not in vpc.instances.values()]


def test_a_node_gets_interfaces_until_its_pods_have_addresses(vpc: Vpc) -> None:
    provider = vpc.addresses()
    node = demand(provider, vpc, 1, pods=1)
    (first,) = settle(provider, node)["node-1"].interfaces
    assert (first.index, len(first.pods), first.gateway) == (1, 3, "10.89.0.1"), "a t3.small has 4 addresses for each"
    have = settle(provider, replace(node, pods=4))["node-1"]
    assert [each.index for each in have.interfaces] == [1, 2] and have.networks == ("10.89.0.0/16",)
    assert sum(len(each.pods) for each in have.interfaces) == 6 and have.interfaces[0] == first
    outcome, _ = synchronize(provider, replace(node, pods=7))
    assert outcome.problems["node-1"].endswith("its type has 3 interfaces with 4 addresses")
    assert settle(provider, replace(node, pods=0))["node-1"] == have, "addresses stay"


def test_a_kill_between_two_calls_leaves_no_interface_behind(vpc: Vpc) -> None:
    provider = vpc.addresses()
    node = demand(provider, vpc, 1, pods=3)
    for calls in range(7):
        for demands in ((node,), ()):
            try:
                with killed_after(provider, calls):
                    settle(provider, *demands)
            except Killed:
                settle(provider, *demands)
            assert sorted(len(each["PrivateIpAddresses"]) for each in interfaces(vpc)) == ([3, 4] if demands else [])
    first = vpc.interface("10.89.0.11")
    assert len(first["PrivateIpAddresses"]) == 1 and first["SourceDestCheck"] and not first["TagSet"]


def test_interfaces_of_others_are_not_touched(vpc: Vpc) -> None:
    provider = vpc.addresses()
    made = vpc.ec2.create_network_interface(SubnetId=vpc.subnet, Description="of somebody")["NetworkInterface"]
    settle(provider)
    assert [each["NetworkInterfaceId"] for each in interfaces(vpc)] == [made["NetworkInterfaceId"]]


def test_an_api_that_refuses_changes_nothing(vpc: Vpc) -> None:
    provider = vpc.addresses()
    node = demand(provider, vpc, 1, pods=1)
    have = settle(provider, node)
    with refuse(provider, "CreateNetworkInterface", "InsufficientFreeAddressesInSubnet"):
        outcome, _ = synchronize(provider, replace(node, pods=4))
    problem = "create_network_interface: InsufficientFreeAddressesInSubnet: refused by a test"
    assert outcome.problems == {"node-1": problem} and not outcome.unavailable
    with refuse(provider, "DescribeInstances", "RequestLimitExceeded"), pytest.raises(CloudUnavailable):
        synchronize(provider, node)
    assert settle(provider, node) == have


def link_local(mac: str) -> str:
    """The address that a device makes of its hardware address (RFC 4291, appendix A)."""
    octets = bytes.fromhex(mac.replace(":", ""))
    return str(ip_address(b"\xfe\x80" + bytes(6) + bytes([octets[0] ^ 2]) + octets[1:3] + b"\xff\xfe" + octets[3:]))


def attach(fabric: Path, node: Path, have: NodeInterfaces) -> None:
    """Gives a node the devices of its interfaces, and the router of the VPC the way to their addresses."""
    for interface in have.interfaces:
        end, device = f"{node.name}e{interface.index}", f"ens{interface.index}"
        hop = str(ip_interface(interface.address).ip) if interface.address else link_local(interface.mac)
        if interface.address:
            new = f"link add {end} type veth peer name {device} address {interface.mac} netns {node}"
            ip_batch(fabric, new, f"link set {end} up", f"route add {hop}/32 dev {end}")
            sysctl.write(f"net/ipv4/conf/{end}/rp_filter", "1", fabric)
        else:
            ip_batch(fabric, f"address add {interface.gateway}/128 dev {end} nodad")
        ip_batch(
            fabric,
            f"neigh add {hop} lladdr {interface.mac} dev {end} nud permanent",
            *(f"route add {pods} via {hop} dev {end} onlink" for pods in interface.pods),
        )


@pytest.fixture
def cluster(tmp_path: Path, vpc: Vpc) -> Iterator[Cluster]:
    """Two nodes whose pods have addresses of two interfaces each, in a VPC that checks sources."""
    made = Cluster(tmp_path, 2)
    try:
        prepare(made, vpc, vpc.addresses())
        yield made
    finally:
        made.close()


@pytest.fixture
def terway(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Cluster]:
    """The same by the provider of Alibaba Cloud, against a server of the test, in the layout of Terway."""
    monkeypatch.setenv("ALIBABA_CLOUD_ACCESS_KEY_ID", KEY)
    monkeypatch.setenv("ALIBABA_CLOUD_ACCESS_KEY_SECRET", SECRET)
    monkeypatch.setattr("podwire.controllers.cloudroutes.providers.alibaba.addresses._POLL_S", 0.01)
    cloud, made = AlibabaCloud(), Cluster(tmp_path, 2)
    try:
        with served(cloud) as address:
            options = AlibabaOptions(region="cn-hangzhou", ecs_endpoint=address, vpc_endpoint=address)
            inside(made.fabric, "ip", "address", "add", "10.89.0.253/32", "dev", "br0")  # the router of the vSwitch
            prepare(made, cloud, AlibabaAddresses(CloudSettings(provider="alibaba", cluster="demo"), options), "terway")
        yield made
    finally:
        made.close()


def prepare(
    made: Cluster,
    vpc: Vpc | AlibabaCloud,
    provider: AddressProvider,
    layout: Literal["aws", "terway"] = "aws",
    targets: AddressTargets = TARGETS,
) -> None:
    """Lets the nodes have the interfaces that the controller got for them."""
    sysctl.write("net/ipv4/conf/br0/rp_filter", "1", made.fabric)
    sysctl.write("net/ipv4/conf/br0/proxy_arp", "1", made.fabric)  # A VPC answers for all of its addresses.
    have = settle(provider, *(demand(provider, vpc, node.number, pods=4) for node in made.all), targets=targets)
    for node in made.all:
        attach(made.fabric, node.place, have[node.name])
        node.annotations = have[node.name].annotation()
        made.nodes[node.name] = node.object()
        node.leases.serve(have[node.name].pod_networks, whole=True)
    options = {"cloudroutes": CloudOptions(cloudroutes=CloudSection(pods="interfaces", layout=layout))}
    made.configure(RoutingSettings(backend="cloudroutes", options=options))
    made.settle()


@pytest.mark.slow
@pytest.mark.parametrize(("made", "tables"), [("cluster", (2, 3)), ("terway", (1001, 1002))])
def test_pods_of_all_interfaces_reach_pods_nodes_and_outside_hosts(
    made: str, tables: tuple[int, int], request: pytest.FixtureRequest
) -> None:
    cluster: Cluster = request.getfixturevalue(made)
    first, second = cluster.all
    pods = [first.pod(f"a{number}") for number in range(5)]
    far = second.pod("b")
    world, near = Pod(cluster.fabric, "192.0.2.1"), Pod(second.place, second.ip)
    rules = first.shows("ip", "rule")
    assert all(f"lookup {table} " in rules for table in tables), "pods of both interfaces"
    own = pods[0]
    with far.running(SOURCE_REPLY_SERVER), world.running(SOURCE_REPLY_SERVER), near.running(SOURCE_REPLY_SERVER):
        for pod in pods:
            assert source_seen(pod.place, far.address) == pod.address
            assert source_seen(pod.place, near.address) == pod.address
            assert source_seen(pod.place, world.address) == first.ip
        assert source_seen(first.place, far.address) == first.ip
        with own.running(SOURCE_REPLY_SERVER):
            for pod in pods[1:]:
                assert source_seen(pod.place, own.address) == pod.address, "on the same node"
            assert source_seen(first.place, own.address) == first.ip
            assert source_seen(second.place, own.address) == second.ip


@pytest.mark.slow
def test_answers_to_a_node_port_leave_by_the_first_interface(cluster: Cluster) -> None:
    first, _ = cluster.all
    for number, (name, pod) in enumerate((name, first.pod(name)) for name in ("c1", "c2", "c3", "c4")):
        rule = f"ip daddr {first.ip} tcp dport 8 dnat to {pod.address}"
        chain = f"chain c {{ type nat hook prerouting priority -100\n{rule}\n}}"
        translate = f"table ip nodeport{number} {{\n{chain}\n}}"
        command = ["nsenter", f"--net={first.place}", "nft", "-f", "-"]
        subprocess.run(command, input=translate, text=True, check=True)
        with pod.running(SOURCE_REPLY_SERVER):
            assert source_seen(cluster.fabric, first.ip) in ("10.89.0.1", "192.0.2.1"), name
        inside(first.place, "nft", "delete", "table", "ip", f"nodeport{number}")


@pytest.mark.slow
def test_an_interface_without_a_device_gives_no_addresses(cluster: Cluster) -> None:
    first, _ = cluster.all
    cluster.nodes[first.name] = first.object()
    inside(first.place, "ip", "link", "delete", "ens2")
    first.router.reconcile()
    me, problem = first.router.own.look()
    assert me is not None and not problem and first.router.own.waits_for_device
    assert first.router.plan is not None and "no device has the hardware address" in first.router.plan.degraded
    served = list(itertools.chain.from_iterable(map(list, me.pod_cidrs)))
    assert len(served) == 3, "the addresses of the other interface"
    first.reconcile()
    assert "lookup 3" not in first.shows("ip", "rule") and "lookup 2" in first.shows("ip", "rule")


@pytest.mark.slow
def test_an_agent_gives_pods_the_addresses_of_the_controller(machine: Machine, vpc: Vpc) -> None:
    sysctl.write("net/ipv4/conf/br0/proxy_arp", "1", machine.fabric)
    sysctl.write("net/ipv4/ip_forward", "1", machine.fabric)
    machine.add_node(1, start=False)
    file = machine.root / "node-1.yaml"
    routing = {"backend": "cloudroutes", "cloudroutes": {"pods": "interfaces"}}
    file.write_text(json.dumps(json.loads(file.read_text()) | {"routing": routing}))
    machine.api("patch", NODES, "node-1", {"spec": {"providerID": vpc.run("10.89.0.11")}})
    targets = AddressTargets(warm=2)
    with controlling(machine, lambda environment: CloudAddressesController(environment, vpc.addresses(), targets)):

        def announced() -> NodeInterfaces | None:
            annotations = machine.api("get", NODES, "node-1")["metadata"].get("annotations", {})
            read = read_interfaces(annotations)
            return read if read is not None and read.interfaces else None

        have = eventually(announced)
    machine.start_agent("node-1")
    log = machine.root / "node-1.log"
    eventually(lambda: "no device has the hardware address of an interface" in log.read_text())
    attach(machine.fabric, machine.root / "node-1", have)
    eventually(lambda: machine.ready("node-1"))
    pods = [Pod(machine.root / "pods" / name, machine.pod("node-1", name)) for name in ("a", "b")]
    assert {f"{pod.address}/32" for pod in pods} == set(have.interfaces[0].pods)
    inside(machine.fabric, "ip", "address", "add", "10.89.7.7/32", "dev", "lo")
    other = Pod(machine.fabric, "10.89.7.7")
    with other.running(SOURCE_REPLY_SERVER):
        assert [source_seen(pod.place, other.address) for pod in pods] == [pod.address for pod in pods]
    conditions = machine.api("get", NODES, "node-1")["status"]["conditions"]
    assert [c["reason"] for c in conditions if c["type"] == "NetworkUnavailable"] == ["PodwireIsUp"]
    assert machine.drift("node-1") == []


CHECK_SOURCES = """
table ip6 sources {
  chain prerouting {
    type filter hook prerouting priority raw
    iifname "node-*" ip6 saddr != fe80::/10 fib saddr . iif oif missing drop
  }
}
"""
"""A VPC passes a packet only from the interface that has its source address; Linux has rp_filter for IPv4 alone."""


@contextmanager
def dual_stack(emulator: Any, kind: str) -> Iterator[tuple[Vpc | AlibabaCloud, AddressProvider]]:
    """A cloud with a range of IPv6, and its provider."""
    if kind == "aws":
        vpc = Vpc(emulator, ipv6=True)
        yield vpc, vpc.addresses(ipv6=True)
        return
    cloud = AlibabaCloud(network6="fd89::/56")
    with served(cloud) as address, pytest.MonkeyPatch.context() as patched:
        for name, value in (("ID", KEY), ("SECRET", SECRET)):
            patched.setenv(f"ALIBABA_CLOUD_ACCESS_KEY_{name}", value)
        patched.setattr("podwire.controllers.cloudroutes.providers.alibaba.addresses._POLL_S", 0.01)
        options = AlibabaOptions(region="cn-hangzhou", ecs_endpoint=address, vpc_endpoint=address)
        settings = CloudSettings(provider="alibaba", cluster="demo", ipv6=True)
        yield cloud, AlibabaAddresses(settings, options)


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "prefixes"), [("aws", False), ("aws", True), ("terway", False)])
def test_interfaces_give_pods_addresses_of_both_families(
    tmp_path: Path, emulator: Any, kind: Literal["aws", "terway"], prefixes: bool
) -> None:
    made = Cluster(tmp_path, 2, families="46")
    targets = AddressTargets(warm=2, ipv6=True, prefixes=prefixes)
    try:
        sysctl.write("net/ipv6/conf/all/forwarding", "1", made.fabric)
        ip_batch(made.fabric, "address add fd89::1/64 dev br0 nodad", "address add 10.89.0.253/32 dev br0")
        subprocess.run(
            ["nsenter", f"--net={made.fabric}", "nft", "-f", "-"], input=CHECK_SOURCES, text=True, check=True
        )
        for node in made.all:
            inside(node.place, "ip", "-6", "route", "add", "default", "via", "fd89::1")
        with dual_stack(emulator, kind) as (cloud, provider):
            prepare(made, cloud, provider, kind, targets)
        first, second = made.all
        have = read_interfaces(first.annotations)
        assert have is not None and len(have.interfaces) == (2 if prefixes else 4)
        pods = [first.pod(f"d{number}") for number in range(5)]
        far, near = second.pod("e"), Pod(second.place, second.ip6)
        used = set()
        with far.running(SOURCE_REPLY_SERVER), near.running(SOURCE_REPLY_SERVER):
            for pod in pods:
                (index,) = (each.index for each in have.interfaces if _holds(each, pod.address6))
                used.add(index)
                before = packets(first, f"ens{index}")
                assert source_seen(pod.place, far.address6) == pod.address6
                assert packets(first, f"ens{index}") > before, "by the interface of its address"
                assert source_seen(pod.place, far.address) == pod.address
                assert source_seen(pod.place, near.address) == pod.address6
        assert used == ({1} if prefixes else {1, 2}), "pods of both interfaces"
        assert "fwmark 0x80/0x80" in first.shows("ip", "-6", "rule")
    finally:
        made.close()


def _holds(interface: PodInterface, address: str) -> bool:
    return any(ip_address(address) in network for network in interface.networks)


def packets(node: ClusterNode, device: str) -> int:
    """The packets that left by a device."""
    return int(json.loads(node.shows("ip", "-j", "-s", "link", "show", device))[0]["stats64"]["tx"]["packets"])
