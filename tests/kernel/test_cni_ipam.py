"""Addresses from other IPAM plugins, and podwire as the IPAM plugin of others."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.kernel.cni_node import NodeAgent, inside
from tests.kernel.plugin_chain import PluginChain
from tests.kernel.reference_plugins import PLUGINS

from podwire.cni import program

pytestmark = pytest.mark.skipif(not shutil.which("ptp", path=PLUGINS), reason="needs containernetworking-plugins")
SHIM = [sys.executable, "-I", "-S", str(Path(program.__file__).with_name("shim.py"))]


def host_local(tmp_path: Path) -> dict[str, Any]:
    ranges = [[{"subnet": "10.77.0.0/24"}], [{"subnet": "fd77::/64"}]]
    return {"type": "host-local", "ranges": ranges, "dataDir": str(tmp_path / "ipam"), "resolvConf": ""}


def static(*addresses: str) -> dict[str, Any]:
    return {"type": "static", "addresses": [{"address": text} for text in addresses], "dns": {"domain": "shop"}}


def reserved(tmp_path: Path) -> set[str]:
    """The addresses that host-local holds."""
    names = {file.name for file in (tmp_path / "ipam").glob("*/*")} if (tmp_path / "ipam").exists() else set()
    return {name for name in names if name[0].isdigit() or name.startswith("fd")}


@pytest.mark.parametrize("program_argv", [[str(program.path())], SHIM], ids=["compiled", "python"])
def test_host_local_assigns_the_addresses(
    make: Callable[..., NodeAgent], tmp_path: Path, program_argv: list[str]
) -> None:
    node = make()
    node.program = program_argv
    ipam = host_local(tmp_path)
    first, second = (node.add(name, cniVersion="1.0.0", ipam=ipam) for name in ("a", "b"))
    assert (first, second) == (["10.77.0.2", "fd77::2"], ["10.77.0.3", "fd77::3"])
    assert reserved(tmp_path) == {*first, *second}
    assert all(node.ping("a", address) for address in second)
    assert node.call("CHECK", "a", cniVersion="1.0.0", ipam=ipam) == (0, {})
    for name in ("a", "a", "b"):
        assert node.call("DEL", name, cniVersion="1.0.0", ipam=ipam) == (0, {})
    assert (reserved(tmp_path), node.links(), node.service.leases.held) == (set(), [], {})


def test_a_failed_add_gives_the_address_back(make: Callable[..., NodeAgent], tmp_path: Path) -> None:
    node = make()
    ipam = host_local(tmp_path)
    inside(node.pod("a"), "ip", "link", "add", "eth0", "type", "veth", "peer", "name", "other")
    status, error = node.call("ADD", "a", cniVersion="1.0.0", ipam=ipam)
    assert (status, error["code"]) == (1, 102)
    assert (reserved(tmp_path), node.links(), node.service.leases.held) == (set(), [], {})


def test_static_assigns_the_addresses(make: Callable[..., NodeAgent]) -> None:
    node = make()
    address = node.add("a", cniVersion="1.0.0", ipam=static("10.244.1.2/24"))
    assert address == ["10.244.1.2"]
    assert node.results["a", "eth0"]["dns"] == {"domain": "shop"}
    other = node.add("b")
    assert other == ["10.244.1.3"], "an address of the node's own range is not assigned again"
    assert node.ping("b", "10.244.1.2")
    node.pod("c")
    assert node.call("ADD", "c", cniVersion="1.0.0", ipam=static("10.244.1.3/24"))[1]["code"] == 11


@pytest.mark.parametrize(
    ("ipam", "code"),
    [
        ({"type": "missing-plugin"}, 7),
        ({"type": "../host-local"}, 7),
        ({"type": "static"}, 7),
        ({"type": "static", "addresses": [{"address": "x"}]}, 999),
    ],
)
def test_errors_of_the_other_plugin_are_passed_on(
    make: Callable[..., NodeAgent], ipam: dict[str, Any], code: int
) -> None:
    node = make()
    node.pod("a")
    status, error = node.call("ADD", "a", cniVersion="1.0.0", ipam=ipam)
    assert (status, error["code"]) == (1, code), error
    assert (node.links(), node.service.leases.held) == ([], {})


def test_dhcp_is_asked_and_its_failure_passed_on(make: Callable[..., NodeAgent]) -> None:
    """Without the daemon of the plugin: what matters is that it runs on the host, with the request."""
    node = make()
    node.pod("a")
    ipam = {"type": "dhcp", "daemonSocketPath": str(node.socket.with_name("no-dhcp.sock"))}
    status, error = node.call("ADD", "a", cniVersion="1.0.0", ipam=ipam)
    assert status == 1
    assert "no-dhcp.sock" in error["msg"] + error.get("details", "")


@pytest.mark.parametrize("kind", ["ptp", "bridge"])
@pytest.mark.parametrize("version", ["0.2.0", "0.4.0", "1.0.0"])
def test_podwire_assigns_the_addresses_of_other_plugins(
    make: Callable[..., NodeAgent], tmp_path: Path, kind: str, version: str
) -> None:
    node = make()
    routes = [{"dst": "0.0.0.0/0"}]
    ipam = {"type": "podwire-cni", "routes": routes}
    bridge = {"bridge": "br0", "isGateway": True} if kind == "bridge" else {}
    chain = PluginChain(node, {"type": kind, "ipMasq": False, "ipam": ipam, **bridge}, version=version)
    program.install(tmp_path / "plugins")
    chain.path = f"{tmp_path / 'plugins'}:{PLUGINS}"
    inside(node.place, "sysctl", "-qw", "net.ipv4.ip_forward=1")
    for name in ("a", "b"):
        chain.add(name)
    assert [item.addresses for item in node.service.leases.lent.values()] == [("10.244.1.2",), ("10.244.1.3",)]
    assert node.ping("a", "10.244.1.3") and node.ping("b", "10.244.1.1")
    assert node.add("own") == ["10.244.1.4"]
    node.stop()
    node.start()
    assert node.add("later") == ["10.244.1.5"]
    for name in ("a", "b"):
        chain.delete(name)
    assert node.service.leases.lent == {}


def test_addresses_of_vanished_pods_are_freed(make: Callable[..., NodeAgent]) -> None:
    node = make()
    environment = {
        "CNI_COMMAND": "ADD",
        "CNI_CONTAINERID": "c",
        "CNI_NETNS": str(node.pods / "gone"),
        "CNI_IFNAME": "eth0",
        "PODWIRE_CNI_SOCKET": str(node.socket),
    }
    conf = {"cniVersion": "1.1.0", "name": "n", "type": "ptp", "ipam": {"type": "podwire-cni"}}

    def call(command: str, **more: Any) -> tuple[int, dict[str, Any]]:
        done = subprocess.run(
            [str(program.path())],
            env={**os.environ, **environment, "CNI_COMMAND": command},
            input=json.dumps(conf | more).encode(),
            capture_output=True,
            check=False,
        )
        return done.returncode, json.loads(done.stdout or b"{}")

    assert call("ADD")[1]["ips"] == [{"address": "10.244.1.2/24", "gateway": "10.244.1.1"}]
    assert call("ADD")[1]["code"] == 7
    assert [call(command) for command in ("CHECK", "STATUS")] == [(0, {})] * 2
    assert call("GC", **{"cni.dev/valid-attachments": [{"containerID": "c", "ifname": "eth0"}]}) == (0, {})
    lending = node.service._pods.lending
    for expected in (1, 0):
        node.within(lambda: lending.sweep(lambda _: True))
        assert len(node.service.leases.lent) == expected
    assert call("CHECK")[1]["code"] == 3
    assert call("ADD")[0] == 0
    assert call("GC", **{"cni.dev/valid-attachments": []}) == (0, {})
    assert (call("CHECK")[1]["code"], call("DEL")) == (3, (0, {}))


FLANNEL = {"type": "flannel", "delegate": {"hairpinMode": True, "isDefaultGateway": True}}
"""The configuration that Flannel's manifest installs."""


def test_a_configuration_of_flannel_is_taken_as_it_is(make: Callable[..., NodeAgent], tmp_path: Path) -> None:
    node = make()
    folder = tmp_path / "plugins"
    folder.mkdir()
    (folder / "flannel").write_text("#!/bin/sh\nexit 1\n")
    for _ in range(2):
        node.program = [str(program.replace_foreign(folder, "flannel"))]
    assert (folder / "flannel.podwire-saved").read_text() == "#!/bin/sh\nexit 1\n"
    first, second = (node.add(name, cniVersion="0.3.1", **FLANNEL) for name in ("a", "b"))
    assert node.ping("a", second[0]) and node.ping("b", first[0])
    assert node.call("DEL", "a", cniVersion="0.3.1", **FLANNEL) == (0, {})
    assert len(node.links()) == 1


def test_pods_of_host_local_keep_their_addresses(make: Callable[..., NodeAgent], tmp_path: Path) -> None:
    node = make()
    ranges = [[{"subnet": "10.244.1.0/24"}]]
    ipam = {"type": "host-local", "ranges": ranges, "routes": [{"dst": "0.0.0.0/0"}], "dataDir": str(tmp_path / "ipam")}
    chain = PluginChain(node, {"type": "ptp", "ipam": ipam})
    inside(node.place, "sysctl", "-qw", "net.ipv4.ip_forward=1")
    chain.add("old")
    node.stop()
    for file in tmp_path.glob("ipam.db*"):
        file.unlink()
    node.host_local = tmp_path / "ipam" / "podwire"
    node.start()
    assert node.add("new") == ["10.244.1.3"], "behind the one that host-local assigned last"
    assert node.ping("old", "10.244.1.3") and node.ping("new", "10.244.1.2")
    assert [item.addresses for item in node.service.leases.lent.values()] == [("10.244.1.2",)]
    assert node.call("DEL", "old") == (0, {})
    assert node.service.leases.lent == {}
    chain.delete("old")
