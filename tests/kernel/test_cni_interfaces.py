"""Several interfaces of one pod: two of podwire, and podwire beside a plugin that made the default route."""

import json
import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.kernel.cni_node import NodeAgent, inside
from tests.kernel.reference_plugins import PLUGINS

from podwire.cni.wiring import WiringFacts

needs_plugins = pytest.mark.skipif(not shutil.which("bridge", path=PLUGINS), reason="needs containernetworking-plugins")
BOTH = ("10.244.1.0/24", "fd00:1::/64")


def second(node: NodeAgent, name: str, **more: object) -> list[str]:
    status, result = node.call("ADD", name, ifname="net1", **more)
    assert status == 0, result
    return [ip["address"].partition("/")[0] for ip in result["ips"]]


def test_both_interfaces_of_a_pod_carry_traffic(make: Callable[..., NodeAgent]) -> None:
    node = make(*BOTH)
    first, other = node.add("web"), node.add("client")
    further = second(node, "web")
    assert not set(first) & set(further)
    for address in (*first, *further):
        assert node.ping("client", address)
    for address in other:
        assert node.ping("web", address)
    for name in ("eth0", "net1"):
        assert node.call("CHECK", "web", ifname=name) == (0, {})
    third = node.call("ADD", "web", ifname="net2")[1]
    assert node.ping("client", third["ips"][0]["address"].partition("/")[0])
    assert "routes" not in third, "the default routes are those of eth0"


def test_interfaces_of_a_pod_are_deleted_one_by_one(make: Callable[..., NodeAgent]) -> None:
    node = make(*BOTH)
    first = node.add("web")
    node.add("client")
    second(node, "web")
    assert node.call("DEL", "web", ifname="net1") == (0, {})
    rules = inside(node.pods / "web", "ip", "rule").stdout + inside(node.pods / "web", "ip", "-6", "rule").stdout
    assert "11200" not in rules
    assert all(node.ping("client", address) for address in first)
    further = second(node, "web")
    assert node.call("DEL", "web") == (0, {})
    assert all(node.ping("client", address) for address in further)
    assert node.call("DEL", "web", ifname="net1") == (0, {})
    assert len(node.links()) == 1


def test_interfaces_survive_a_restart_and_a_new_mtu(make: Callable[..., NodeAgent]) -> None:
    node = make(*BOTH)
    node.add("client")
    addresses = [*node.add("web"), *second(node, "web")]
    node.stop()
    node.start()
    node.within(lambda: node.service.set_node(WiringFacts(mtu=1400, cidrs=node.cidrs)))
    assert all(node.ping("client", address) for address in addresses)
    for name in ("eth0", "net1"):
        shown = json.loads(inside(node.pods / "web", "ip", "-j", "link", "show", name).stdout)
        assert shown[0]["mtu"] == 1400
        assert node.call("CHECK", "web", ifname=name) == (0, {})


def bridge(node: NodeAgent, command: str, name: str, directory: Path) -> dict[str, object]:
    """Runs the reference plugin bridge for ``eth0`` of a pod, with a default route of both families."""
    ranges = [[{"subnet": "10.9.0.0/24"}], [{"subnet": "fd09::/64"}]]
    routes = [{"dst": "0.0.0.0/0"}, {"dst": "::/0"}]
    ipam = {"type": "host-local", "ranges": ranges, "routes": routes, "dataDir": str(directory / "ipam")}
    conf = {"cniVersion": "1.0.0", "name": "b", "type": "bridge", "bridge": "br0", "isGateway": True, "ipam": ipam}
    environment = {
        "CNI_COMMAND": command,
        "CNI_CONTAINERID": f"c-{name}",
        "CNI_NETNS": str(node.pods / name),
        "CNI_IFNAME": "eth0",
        "CNI_PATH": PLUGINS,
        "PATH": os.environ["PATH"],
    }
    done = subprocess.run(
        ["nsenter", f"--net={node.place}", f"{PLUGINS}/bridge"],
        env=environment,
        input=json.dumps(conf).encode(),
        capture_output=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout
    return dict(json.loads(done.stdout)) if done.stdout else {}


@needs_plugins
def test_a_secondary_network_leaves_the_default_route_alone(make: Callable[..., NodeAgent], tmp_path: Path) -> None:
    node = make(*BOTH)
    inside(node.place, "sysctl", "-qw", "net.ipv6.conf.all.forwarding=1", "net.ipv6.conf.default.accept_dad=0")
    inside(node.pod("web"), "sysctl", "-qw", "net.ipv6.conf.default.accept_dad=0")
    bridge(node, "ADD", "web", tmp_path)
    node.add("client")
    further = second(node, "web")
    for family, gateway in (("-4", "10.9.0.1"), ("-6", "fd09::1")):
        routes = json.loads(inside(node.pods / "web", "ip", family, "-j", "route", "show", "default").stdout)
        assert [(route["gateway"], route["dev"]) for route in routes] == [(gateway, "eth0")]
    assert all(node.ping("client", address) for address in further)
    assert node.ping("web", "10.9.0.1")
    assert node.call("CHECK", "web", ifname="net1") == (0, {})
    assert node.call("DEL", "web", ifname="net1") == (0, {})
    assert node.ping("web", "10.9.0.1")
    bridge(node, "DEL", "web", tmp_path)


@needs_plugins
def test_an_interface_that_exists_beside_a_default_route_is_refused(
    make: Callable[..., NodeAgent], tmp_path: Path
) -> None:
    node = make()
    inside(node.pod("web"), "sysctl", "-qw", "net.ipv6.conf.default.accept_dad=0")
    bridge(node, "ADD", "web", tmp_path)
    status, error = node.call("ADD", "web")
    assert (status, error["code"]) == (1, 102)
    assert node.service.leases.held == {}
    assert node.call("DEL", "web") == (0, {})
    assert node.ping("web", "10.9.0.1"), "the interface of the other plugin stays"
    bridge(node, "DEL", "web", tmp_path)
