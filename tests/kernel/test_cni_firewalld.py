"""podwire as the chained plugin ``firewall`` with a real firewalld: on a bus of its own, in the node's namespace."""

import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from jeepney import DBusAddress
from tests.kernel.agent_cluster import eventually
from tests.kernel.cni_node import NodeAgent, ping
from tests.kernel.test_cni_firewall import OWN, bridged, call, run

from podwire.kernel import dbus
from podwire.kernel.firewalld import NAME, FirewalldZones

pytestmark = pytest.mark.skipif(not shutil.which("firewalld"), reason="needs firewalld")
BUS = """
<!DOCTYPE busconfig PUBLIC "-//freedesktop//DTD D-Bus Bus Configuration 1.0//EN"
 "http://www.freedesktop.org/standards/dbus/1.0/busconfig.dtd">
<busconfig>
  <type>system</type>
  <listen>unix:path={socket}</listen>
  <auth>EXTERNAL</auth>
  <policy context="default">
    <allow user="*"/>
    <allow own="*"/>
    <allow send_type="method_call"/>
    <allow send_destination="*"/>
    <allow receive_sender="*"/>
  </policy>
</busconfig>
"""
SOURCE = "10.9.1.2/32"


@pytest.fixture
def bus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The address of a D-Bus daemon, which is the system bus of this process."""
    socket, file = tmp_path / "bus.sock", tmp_path / "bus.conf"
    file.write_text(BUS.format(socket=socket))
    command = ["dbus-daemon", f"--config-file={file}", "--nofork", "--nopidfile", "--print-address"]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as daemon:
        assert daemon.stdout is not None and daemon.stdout.readline()
        address = f"unix:path={socket}"
        monkeypatch.setenv("DBUS_SYSTEM_BUS_ADDRESS", address)
        try:
            yield address
        finally:
            daemon.kill()


@pytest.fixture
def node(make: Callable[..., NodeAgent], bus: str, tmp_path: Path) -> Iterator[NodeAgent]:
    """A node with two bridges, whose firewalld lets nothing through from the first one."""
    node = make("10.244.1.0/24")
    run(node, "sysctl -qw net.ipv4.ip_forward=1")
    for number in (1, 2):
        run(node, f"ip link add br{number} type bridge")
        run(node, f"ip address add 10.9.{number}.1/24 dev br{number}")
        run(node, f"ip link set br{number} up")
    settings = tmp_path / "firewalld"
    shutil.copytree("/etc/firewalld", settings)
    with ExitStack() as stack:
        log = stack.enter_context((tmp_path / "firewalld.log").open("wb"))
        command = ["firewalld", "--nofork", "--nopid", "--system-config", str(settings), "--log-target", "console"]
        # Debian's modules of firewalld are those of its own Python, without the environment of the tests.
        environment = {"DBUS_SYSTEM_BUS_ADDRESS": bus, "PATH": "/usr/sbin:/usr/bin:/sbin:/bin"}
        daemon = subprocess.Popen(
            ["nsenter", f"--net={node.place}", *command], env=environment, stdout=log, stderr=subprocess.STDOUT
        )
        stack.callback(daemon.wait)
        stack.callback(daemon.kill)
        eventually(lambda: dbus.has_owner(NAME) or daemon.poll() is not None)
        assert daemon.poll() is None, (tmp_path / "firewalld.log").read_text()
        zones = DBusAddress("/org/fedoraproject/FirewallD1", NAME, f"{NAME}.zone")
        dbus.call(zones, "addInterface", "block", "br1")
        yield node
        sys.stdout.write((tmp_path / "firewalld.log").read_text())


def test_zone_lets_pods_through_until_they_end(node: NodeAgent) -> None:
    previous = bridged(node, "a", "br1", "10.9.1.2")
    bridged(node, "c", "br2", "10.9.2.2")
    zones, conf = FirewalldZones(), {"backend": "firewalld", "prevResult": previous}
    assert zones.runs()
    assert not ping(node.pods / "a", "10.9.2.2"), "firewalld rejects what the zone of the bridge rejects"
    assert call(node, OWN, "ADD", "a", **conf)[0] == 0
    assert zones.has("trusted", SOURCE)
    assert ping(node.pods / "a", "10.9.2.2", patience_s=10)
    assert call(node, OWN, "ADD", "a", **conf)[0] == 0, "the zone has the source already"
    assert call(node, OWN, "CHECK", "a", **conf) == (0, {})
    zones.remove("trusted", SOURCE)
    status, answer = call(node, OWN, "CHECK", "a", **conf)
    assert (status, answer["code"], answer["details"]) == (1, 100, f"source {SOURCE} of zone trusted")
    assert call(node, OWN, "ADD", "a", prevResult=previous)[0] == 0, "firewalld is used where it runs"
    assert zones.has("trusted", SOURCE)
    node.stop()
    node.start()
    for _ in range(2):
        assert call(node, OWN, "DEL", "a", **conf) == (0, {})
    assert not zones.has("trusted", SOURCE)
    run(node, "conntrack -F")  # firewalld accepts what belongs to a connection.
    assert not ping(node.pods / "a", "10.9.2.2")


def test_refusals_of_firewalld_are_named(node: NodeAgent) -> None:
    previous = bridged(node, "a", "br1", "10.9.1.2")
    FirewalldZones().add("block", SOURCE)
    for zone, expected in (("nowhere", "INVALID_ZONE"), ("drop", "ZONE_CONFLICT")):
        conf: dict[str, Any] = {"backend": "firewalld", "firewalldZone": zone, "prevResult": previous}
        status, answer = call(node, OWN, "ADD", "a", **conf)
        assert (status, answer["code"]) == (1, 999)
        assert expected in answer["details"]
        assert call(node, OWN, "DEL", "a", **conf) == (0, {}), "DEL succeeds, or the pod could not be deleted"
        assert FirewalldZones().has("block", SOURCE)


def test_add_without_firewalld_names_the_bus(make: Callable[..., NodeAgent], bus: str) -> None:
    node = make("10.244.1.0/24")
    node.pod("a")
    previous = {"cniVersion": "1.0.0", "ips": [{"address": "10.9.1.2/24"}]}
    status, answer = call(node, OWN, "ADD", "a", backend="firewalld", prevResult=previous)
    assert (status, answer["code"]) == (1, 999)
    assert "org.freedesktop.DBus.Error.ServiceUnknown" in answer["details"], bus
    assert call(node, OWN, "DEL", "a", backend="firewalld") == (0, {})
