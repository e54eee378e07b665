"""Routes of a cloud: the real client of AWS against an emulated EC2 API, and packets by the routes that it has then."""

import asyncio
import json
import socket
import socketserver
import subprocess
import sys
import threading
from collections.abc import Iterator
from ipaddress import ip_network
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace
from tests.fakes.memory_cloud import MemoryCloud
from tests.kernel.agent_cluster import Machine, eventually, inside
from tests.kernel.emulated_cloud import (
    CLUSTER,
    ENVIRONMENT,
    REGION,
    Killed,
    Vpc,
    controlling,
    emulated,
    killed_after,
    refuse,
)
from tests.kernel.routing_nodes import SOURCE_REPLY_SERVER, Pod, source_seen

from podwire.controllers.cloudroutes.controller import CloudRoutesController
from podwire.controllers.cloudroutes.execution import SyncOutcome, carry_out
from podwire.controllers.cloudroutes.plan import CloudNode, plan
from podwire.controllers.cloudroutes.provider import AddRoute, Claim, CloudProvider, DeleteRoute, Release
from podwire.controllers.cloudroutes.providers.aws.ec2 import Ec2
from podwire.controllers.cloudroutes.providers.aws.options import AwsOptions
from podwire.controllers.cloudroutes.registry import make_provider
from podwire.controllers.cloudroutes.settings import CloudSettings
from podwire.errors import CloudError, CloudUnavailable, ConfigError
from podwire.kernel import netns, sysctl
from podwire.kube.resources import NODES
from podwire.observe.log import Log

PODS = (ip_network("10.244.0.0/16"), ip_network("fd10::/48"))


@pytest.fixture(scope="module")
def emulator() -> Iterator[Any]:
    with emulated() as ec2:
        yield ec2


@pytest.fixture
def vpc(emulator: Any) -> Vpc:
    return Vpc(emulator)


def node(provider: CloudProvider, number: int, provider_id: str) -> CloudNode:
    return CloudNode(
        name=f"node-{number}",
        instance=provider.instance(provider_id),
        addresses=(f"10.89.0.{10 + number}",),
        networks=(ip_network(f"10.244.{number}.0/24"),),
    )


def synchronize(provider: CloudProvider, *nodes: CloudNode) -> SyncOutcome:
    planned = plan(nodes, provider.read({each.instance for each in nodes}), PODS)
    return asyncio.run(carry_out(provider, planned, Log("test")))


def settle(provider: CloudProvider, *nodes: CloudNode) -> int:
    """Runs until nothing changes; returns the number of changes."""
    made = 0
    for _ in range(5):
        outcome = synchronize(provider, *nodes)
        assert not outcome.failures and not outcome.unavailable, outcome
        made += outcome.changes
        if not outcome.changes:
            return made
    raise AssertionError("the cloud's state does not settle")


@pytest.mark.parametrize("kind", ["aws", "memory"])
def test_every_cloud_keeps_the_rules_of_a_provider(emulator: Any, kind: str) -> None:
    vpc = Vpc(emulator)
    memory = MemoryCloud()
    provider: CloudProvider = vpc.provider() if kind == "aws" else memory
    ids = [vpc.run(f"10.89.0.{10 + n}") if kind == "aws" else memory.add(n, f"10.89.0.{10 + n}") for n in (1, 2)]
    first, second = (provider.instance(each) for each in ids)
    state = provider.read({first, second})
    (table,) = state.tables
    one, two = (next(e for e in state.interfaces.values() if e.instance == i) for i in (first, second))
    assert one.addresses == ("10.89.0.11",) and not (one.forwards or one.marked or one.restores)
    network = ip_network("10.244.1.0/24")
    for _ in range(2):
        provider.apply(Claim(one.id, restores=True))
        provider.apply(AddRoute(table.id, network, one.id))
    claimed = provider.read(()).interfaces[one.id]
    assert claimed.forwards and claimed.marked and claimed.restores
    for _ in range(2):
        provider.apply(AddRoute(table.id, network, two.id, replace=True))
    assert {r.network: r.target for r in provider.read(()).tables[0].routes}[network] == two.id
    for _ in range(2):
        provider.apply(DeleteRoute(table.id, network))
        provider.apply(Release(one.id, restores=True))
    after = provider.read({first, second})
    assert after == state
    with pytest.raises(CloudError):
        provider.apply(AddRoute(table.id, network, "eni-0123456789abcdef0"))
    with pytest.raises(ValueError, match="expected"):
        provider.instance("gce://project/zone/instance")


def test_each_family_of_a_node_has_its_route(emulator: Any) -> None:
    vpc = Vpc(emulator, ipv6=True)
    provider = vpc.provider()
    six = [ip_network(f"fd10:0:0:{number}::/64") for number in (1, 2)]
    first, second = (node(provider, n, vpc.run(f"10.89.0.{10 + n}")) for n in (1, 2))
    first, second = (
        replace(each, networks=(*each.networks, net)) for each, net in zip((first, second), six, strict=True)
    )
    settle(provider, first, second)
    expected = {str(network): each.addresses[0] for each in (first, second) for network in each.networks}
    assert vpc.routes() == expected and len(expected) == 4
    settle(provider, replace(first, networks=second.networks), replace(second, networks=first.networks))
    assert vpc.routes() == {
        network: {"10.89.0.11": "10.89.0.12"}.get(hop, "10.89.0.11") for network, hop in expected.items()
    }
    settle(provider, replace(second, networks=second.networks[:1]))
    assert vpc.routes() == {"10.244.2.0/24": "10.89.0.12"}


def test_tables_with_the_cluster_tag_are_used(vpc: Vpc) -> None:
    provider = make_provider(CloudSettings(provider="aws", cluster=CLUSTER, options={"region": REGION}))
    assert provider is not None
    assert vpc.table in [table.id for table in provider.read(()).tables]


def test_foreign_objects_stay_as_they_are(vpc: Vpc) -> None:
    provider = vpc.provider()
    mine, other = vpc.run("10.89.0.11"), vpc.run("10.89.0.99")
    stranger = vpc.interface("10.89.0.99")["NetworkInterfaceId"]
    for destination in ("10.244.200.0/24", "10.99.0.0/24"):
        vpc.ec2.create_route(RouteTableId=vpc.table, DestinationCidrBlock=destination, NetworkInterfaceId=stranger)
    before = vpc.interface("10.89.0.99"), vpc.routes()
    settle(provider, node(provider, 1, mine))
    assert vpc.routes() == before[1] | {"10.244.1.0/24": "10.89.0.11"}
    settle(provider)
    assert (vpc.interface("10.89.0.99"), vpc.routes()) == before
    assert other and vpc.interface("10.89.0.11")["SourceDestCheck"] and not vpc.marks("10.89.0.11")


def test_a_route_to_a_terminated_instance_is_removed(vpc: Vpc) -> None:
    provider = vpc.provider()
    nodes = [node(provider, n, vpc.run(f"10.89.0.{10 + n}")) for n in (1, 2)]
    settle(provider, *nodes)
    vpc.vanish("10.89.0.12")
    settle(provider, nodes[0])
    assert vpc.routes() == {"10.244.1.0/24": "10.89.0.11"}


def test_a_controller_killed_between_two_calls_leaks_nothing(vpc: Vpc) -> None:
    provider = vpc.provider()
    ids = [vpc.run("10.89.0.11"), vpc.run("10.89.0.12")]
    first, second = (node(provider, n + 1, each) for n, each in enumerate(ids))
    steps: list[tuple[CloudNode, ...]] = [(first, second), (second,), ()]
    for calls in range(7):
        for nodes in steps:
            try:
                with killed_after(provider, calls):
                    settle(provider, *nodes)
            except Killed:
                settle(provider, *nodes)
            assert vpc.routes() == {str(each.networks[0]): each.addresses[0] for each in nodes}
            for each in (first, second):
                described = vpc.interface(each.addresses[0])
                assert described["SourceDestCheck"] is (each not in nodes)
                assert bool(vpc.marks(each.addresses[0])) is (each in nodes)


def test_two_controllers_at_once_write_the_same_routes(vpc: Vpc) -> None:
    one, two = vpc.provider(), vpc.provider()
    nodes = [node(one, n, vpc.run(f"10.89.0.{10 + n}")) for n in (1, 2)]
    instances = {each.instance for each in nodes}
    plans = [plan(nodes, each.read(instances), PODS) for each in (one, two)]
    assert str(plans[0]) == str(plans[1]) != ""
    with refuse(two, "CreateRoute", "RouteAlreadyExists"):  # The emulator has no such rule.
        for provider, planned in zip((one, two), plans, strict=True):
            assert not asyncio.run(carry_out(provider, planned, Log("test"))).problems
    assert vpc.routes() == {"10.244.1.0/24": "10.89.0.11", "10.244.2.0/24": "10.89.0.12"}
    gone = [plan(nodes[:1], each.read(instances), PODS) for each in (one, two)]
    for provider, planned in zip((one, two), gone, strict=True):
        assert not asyncio.run(carry_out(provider, planned, Log("test"))).failures
    assert settle(one, nodes[0]) == 1, "the interface of the deleted node is released"


def test_a_full_table_names_the_quota(vpc: Vpc) -> None:
    provider = vpc.provider()
    nodes = [node(provider, n, vpc.run(f"10.89.0.{10 + n}")) for n in (1, 2, 3)]
    settle(provider, nodes[0])
    with refuse(provider, "CreateRoute", "RouteLimitExceeded") as asked:
        problems = synchronize(provider, *nodes).problems
    text = f"create_route: RouteLimitExceeded: table {vpc.table} is full, see the quota 'Routes per route table'"
    assert set(problems) == {"node-2", "node-3"} and problems["node-2"].startswith(text)
    assert len(asked) == 1 and vpc.routes() == {"10.244.1.0/24": "10.89.0.11"}


@pytest.mark.parametrize("code", ["RequestLimitExceeded", "UnauthorizedOperation", "ExpiredToken"])
def test_failures_of_the_api_keep_the_last_routes(vpc: Vpc, code: str) -> None:
    provider = vpc.provider()
    first, second = (node(provider, n, vpc.run(f"10.89.0.{10 + n}")) for n in (1, 2))
    settle(provider, first)
    with refuse(provider, "CreateTags", code):
        outcome = synchronize(provider, first, second)
    assert outcome.unavailable == f"create_tags: {code}: refused by a test"
    assert set(outcome.problems) == {"node-2"} and vpc.routes() == {"10.244.1.0/24": "10.89.0.11"}
    with refuse(provider, "DescribeNetworkInterfaces", code), pytest.raises(CloudUnavailable):
        synchronize(provider, second)
    assert vpc.routes() == {"10.244.1.0/24": "10.89.0.11"}


THROTTLED = (
    b"<Response><Errors><Error><Code>RequestLimitExceeded</Code><Message>slow down</Message></Error></Errors>"
    b"<RequestID>1</RequestID></Response>"
)


def test_a_throttled_call_is_repeated_and_then_reported(emulator: Any) -> None:
    asked: list[bytes] = []

    class Refusing(socketserver.StreamRequestHandler):
        def handle(self) -> None:
            asked.append(self.rfile.readline())
            length = 0
            while (line := self.rfile.readline().strip()) != b"":
                if line.lower().startswith(b"content-length:"):
                    length = int(line.partition(b":")[2])
            self.rfile.read(length)
            head = f"HTTP/1.1 503 Slow Down\r\nContent-Length: {len(THROTTLED)}\r\nConnection: close\r\n\r\n"
            self.wfile.write(head.encode() + THROTTLED)

    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), Refusing) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        port = server.server_address[1]
        client = Ec2(AwsOptions(region=REGION, endpoint=f"http://127.0.0.1:{port}"))
        with pytest.raises(CloudUnavailable) as refusal:
            client.call("describe_route_tables")
        server.shutdown()
    assert str(refusal.value) == "describe_route_tables: RequestLimitExceeded: slow down" and len(asked) == 3
    away = Ec2(AwsOptions(region=REGION, endpoint=f"http://127.0.0.1:{port}"))
    with pytest.raises(CloudUnavailable) as silence:
        list(away.pages("describe_route_tables", "RouteTables"))
    assert "Could not connect to the endpoint" in str(silence.value)


def test_what_a_client_needs_is_named(emulator: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("AWS_REGION", "AWS_DEFAULT_REGION"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(ConfigError) as nowhere:
        Ec2(AwsOptions())
    assert str(nowhere.value) == "controller: cloud.options: You must specify a region."
    with pytest.raises(ConfigError) as nonsense:
        Ec2(AwsOptions(region=REGION, endpoint="nonsense"))
    assert str(nonsense.value) == "controller: cloud.options: Invalid endpoint: nonsense"
    monkeypatch.setitem(sys.modules, "boto3", None)
    with pytest.raises(ConfigError) as lacking:
        Ec2(AwsOptions(region=REGION))
    assert str(lacking.value).endswith("pip install 'podwire[aws]'")


def test_missing_credentials_end_the_controller_with_status_2(tmp_path: Path) -> None:
    file = tmp_path / "controller.json"
    cloud = '{"provider": "aws", "cluster": "demo", "options": {"region": "eu-central-1"}}'
    file.write_text(f'{{"kubeconfig": "/nonexistent", "controller": {{"parts": ["cloudroutes"], "cloud": {cloud}}}}}')
    kubeconfig = tmp_path / "kubeconfig"
    kubeconfig.write_text(KUBECONFIG)
    environment = {k: v for k, v in ENVIRONMENT.items() if "KEY" not in k} | {
        "HOME": str(tmp_path),
        "PATH": "/usr/bin:/bin",
    }
    command = [sys.executable, "-m", "podwire.cli.main", "controller", "--config", str(file)]
    done = subprocess.run(
        [*command, "--kubeconfig", str(kubeconfig)], env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 2, done.stderr
    assert "controller: cloud.provider: no AWS credentials: expected a role" in done.stderr
    assert "Traceback" not in done.stderr


def as_router(machine: Machine, vpc: Vpc) -> None:
    """Gives the router between the nodes exactly the routes of the VPC's table."""
    inside(machine.fabric, "ip", "route", "flush", "proto", "static")
    for destination, gateway in vpc.routes().items():
        inside(machine.fabric, "ip", "route", "add", destination, "via", gateway, "proto", "static")


def condition(machine: Machine, name: str) -> str:
    conditions = machine.api("get", NODES, name)["status"].get("conditions", ())
    return next((f"{c['status']} {c['reason']}" for c in conditions if c["type"] == "NetworkUnavailable"), "")


def first_source(machine: Machine, receiver: Path, address: str, sources: tuple[str, ...]) -> str:
    """Sends a datagram from each of the addresses, from outside of the nodes; the source of the first that arrives."""
    with netns.inside(receiver):
        pod = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    pod.settimeout(20)
    with pod:
        pod.bind((address, 9))
        for source in sources:
            inside(machine.fabric, "ip", "address", "add", f"{source}/32", "dev", "lo")
            with netns.inside(machine.fabric), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as outside:
                outside.bind((source, 0))
                outside.sendto(b"x", (address, 9))
            inside(machine.fabric, "ip", "address", "del", f"{source}/32", "dev", "lo")
        return str(pod.recvfrom(10)[1][0])


@pytest.mark.slow
def test_pods_reach_pods_by_the_routes_of_the_controller(machine: Machine, vpc: Vpc) -> None:
    sysctl.write("net/ipv4/ip_forward", "1", machine.fabric)
    for device in ("all", "br0"):
        sysctl.write(f"net/ipv4/conf/{device}/send_redirects", "0", machine.fabric)
    for number in (1, 2):
        machine.add_node(number, start=False)
        file = machine.root / f"node-{number}.yaml"
        file.write_text(json.dumps(json.loads(file.read_text()) | {"routing": {"backend": "cloudroutes"}}))
        spec = {"providerID": vpc.run(f"10.89.0.{10 + number}")}
        machine.api("patch", NODES, f"node-{number}", {"spec": spec})
        machine.start_agent(f"node-{number}")
    for name in ("node-1", "node-2"):
        eventually(lambda name=name: machine.ready(name))
    addresses = {name: machine.pod(f"node-{n}", name) for n, name in ((1, "a"), (2, "b"), (1, "c"))}
    pods = {name: Pod(machine.root / "pods" / name, address) for name, address in addresses.items()}
    assert [condition(machine, f"node-{n}") for n in (1, 2)] == ["", ""], "no agent says that the cloud has routes"
    with controlling(machine, lambda environment: CloudRoutesController(environment, vpc.provider(), PODS)):
        for name in ("node-1", "node-2"):
            eventually(lambda name=name: condition(machine, name) == "False RouteCreated")
        as_router(machine, vpc)
        assert vpc.routes() == {"10.244.1.0/24": "10.89.0.11", "10.244.2.0/24": "10.89.0.12"}
        assert "10.244.2.0/24" not in inside(machine.root / "node-1", "ip", "route"), "the default route is used"
        with pods["b"].running(SOURCE_REPLY_SERVER):
            assert source_seen(pods["a"].place, addresses["b"]) == addresses["a"]
        sources = (addresses["c"], "10.244.9.9")
        assert first_source(machine, pods["a"].place, addresses["a"], sources) == "10.244.9.9"
        machine.kill("node-2")
        machine.api("delete", NODES, "node-2")
        eventually(lambda: vpc.routes() == {"10.244.1.0/24": "10.89.0.11"} and not vpc.marks("10.89.0.12"))
        assert vpc.interface("10.89.0.12")["SourceDestCheck"]


KUBECONFIG = """
apiVersion: v1
kind: Config
current-context: a
clusters: [{name: a, cluster: {server: "http://127.0.0.1:1"}}]
users: [{name: a, user: {}}]
contexts: [{name: a, context: {cluster: a, user: a}}]
"""
