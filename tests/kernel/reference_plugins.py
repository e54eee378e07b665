"""Pods wired by the plugins of containernetworking: ``ptp``, ``bridge``, and ``bridge`` as Flannel configures it.

Flannel's own plugin writes a configuration for ``bridge`` and ``host-local`` out of what its daemon found and hands
over to them; between nodes lies a vxlan device, and each node has routes, neighbours and forwarding entries for the
others. Both are made here the same way.
"""

import json
import subprocess
from typing import Any

from tests.kernel.marked_namespaces import run
from tests.kernel.policy_namespaces import ADDRESSES, RANGES, World, batch, device, inside, path

from podwire.kernel import bridges
from podwire.kernel.netlink import Netlink
from podwire.policy.attached import AttachedPod

PLUGINS = "/usr/lib/cni"
BRIDGE = "cni0"
ARRANGEMENTS = ("bridge", "ptp", "flannel")
"""In this order everywhere, so that tests of one arrangement run together."""
_TUNNELS = {"n1": ("02:00:00:0f:00:01", "02:00:00:0f:06:01"), "n2": ("02:00:00:0f:00:02", "02:00:00:0f:06:02")}


def configuration(arrangement: str, ranges: tuple[str, ...], directory: str, **more: Any) -> dict[str, Any]:
    """The configuration of the plugin that wires pods."""
    pools = [[{"subnet": interval, "gateway": gateway(interval)}] for interval in ranges]
    paths = [{"dst": "::/0" if ":" in interval else "0.0.0.0/0"} for interval in ranges]
    conf = {
        "cniVersion": "1.0.0",
        "name": f"{arrangement}-net",
        "type": "ptp" if arrangement == "ptp" else "bridge",
        "ipam": {"type": "host-local", "ranges": pools, "routes": paths, "dataDir": directory},
        **more,
    }
    bridge = {"bridge": BRIDGE, "isGateway": True, "hairpinMode": True}
    if arrangement == "flannel":
        conf["ipam"]["routes"] = []
        bridge |= {"isDefaultGateway": True, "mtu": 1450}
    return conf | ({} if arrangement == "ptp" else bridge)


def gateway(cidr: str) -> str:
    """The gateway of the pods in a range: an address that no pod of the cases has."""
    head = cidr.partition("/")[0]
    return f"{head}fe" if ":" in head else f"{head.rpartition('.')[0]}.254"


def plugin(node: str, name: str, command: str, conf: dict[str, Any], **variables: str) -> dict[str, Any]:
    """Runs a plugin in the namespace of a node, as a container runtime does; returns the result."""
    environment = {"CNI_COMMAND": command, "CNI_PATH": PLUGINS, "PATH": "/usr/sbin:/usr/bin:/sbin:/bin", **variables}
    done = subprocess.run(
        ["nsenter", f"--net={path(node)}", f"{PLUGINS}/{name}"],
        env=environment,
        input=json.dumps(conf),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return json.loads(done.stdout) if done.stdout.strip() else {}


class OtherWorld(World):
    """The cluster of the cases, with pods that other plugins wire."""

    def __init__(self, arrangement: str, directory: str) -> None:
        super().__init__()
        self.arrangement = arrangement
        self.directory = directory
        self.attached: dict[str, AttachedPod] = {}

    def __enter__(self) -> "OtherWorld":
        super().__enter__()
        for node in RANGES:
            inside(node, "sysctl", "-qw", "net.ipv6.conf.default.forwarding=1")
        if self.arrangement == "flannel":
            for node, other in (("n1", "n2"), ("n2", "n1")):
                self._tunnel(node, other)
        return self

    def _tunnel(self, node: str, other: str) -> None:
        """The state that flanneld makes: a device, and a route, neighbour and forwarding entry for each other node."""
        for family, name in enumerate(("flannel.1", "flannel-v6.1")):
            net, far = RANGES[node][family], RANGES[other][family]
            mine, theirs = net.partition("/")[0], far.partition("/")[0]
            bits = 128 if family else 32
            lines = [
                f"link add {name} address {_TUNNELS[node][family]} type vxlan id {family + 1} dev eth0"
                f" local {ADDRESSES[node][family]} dstport 8472 nolearning",
                f"address add {mine}/{bits} dev {name}" + (" nodad" if family else ""),
                f"link set {name} up",
                f"route del {far}",
                f"route add {far} via {theirs} dev {name} onlink",
                f"neigh add {theirs} lladdr {_TUNNELS[other][family]} dev {name} nud permanent",
            ]
            batch(node, lines)
            entry = f"{_TUNNELS[other][family]} dev {name} dst {ADDRESSES[other][family]}"
            inside(node, "bridge", "fdb", "add", *entry.split(), "self", "permanent")

    def _conf(self, node: str) -> dict[str, Any]:
        return configuration(self.arrangement, RANGES[node], f"{self.directory}/{node}")

    def attach(self, pod: str, node: str, addresses: tuple[str, ...], **more: Any) -> None:
        """Wires a pod with the plugin; ``more`` replaces fields of the plugin's configuration."""
        place = path(device(pod)).name
        self.pods[pod] = node
        run("ip", "netns", "add", place)
        inside(device(pod), "sysctl", "-qw", "net.ipv6.conf.default.accept_dad=0")  # ptp waits for it
        conf = self._conf(node) | more | {"runtimeConfig": {"ips": list(addresses)}, "capabilities": {"ips": True}}
        result = plugin(node, conf["type"], "ADD", conf, **self._variables(pod))
        own = next(link["name"] for link in result["interfaces"] if link["name"].startswith("veth"))
        shared = {} if self.arrangement == "ptp" else {"device": BRIDGE, "port": own}
        self.attached[pod] = AttachedPod(**({"pod": pod, "device": own, "addresses": addresses} | shared))

    def _variables(self, pod: str) -> dict[str, str]:
        name = device(pod)
        return {"CNI_CONTAINERID": f"c-{name}", "CNI_IFNAME": "eth0", "CNI_NETNS": str(path(name))}

    def detach(self, pod: str) -> None:
        conf = self._conf(self.pods[pod])
        plugin(self.pods[pod], conf["type"], "DEL", conf, **self._variables(pod))
        del self.attached[pod]
        super().detach(pod)

    def devices(self, node: str) -> dict[str, str]:
        return {attachment.pod: attachment.device for attachment in self.attachments(node)}

    def attachments(self, node: str) -> tuple[AttachedPod, ...]:
        """The devices of a node's pods that the policy data plane is told of."""
        return tuple(item for pod, item in self.attached.items() if self.pods[pod] == node)

    def ports(self, node: str) -> dict[str, str]:
        """The bridge port behind which the kernel learned each address."""
        with Netlink(path(node)) as netlink:
            wires = bridges.read_wires(netlink)
            return {address: wire.name for wire in wires for address in bridges.addresses_behind(netlink, wire)}
