"""A routing backend that only tests register: a device, a child process with a file, a guard rule, a kind of state.

Packets to a peer leave by a device of the backend's own, straight to the hardware address that the peer has announced.
The child process answers at a UDP port with the content of its file; the guard lets only nodes ask. The underlay gets
a queueing discipline, which is a kind of kernel state that only tests register.
"""

import sys
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
from tests.fakes.qdisc_kind import Qdisc

from podwire.routing.backend import Backend, BackendOptions, BackendPlan, check_range
from podwire.routing.nodes import ClusterView, LocalNode, Peer
from podwire.routing.registry import BACKENDS
from podwire.routing.tables import guard_udp_port
from podwire.runtime.program import Child
from podwire.runtime.registry import Registry
from podwire.state.link import Link
from podwire.state.network import NetworkState
from podwire.state.route import Neighbour, Route, Sysctl

DEVICE = "podwire-toy"
GUARD = "podwire-routing-toy"

REGISTRY: Registry[type[Backend]] = Registry(
    BACKENDS.kind, BACKENDS.field, {**BACKENDS, "toy": "tests.fakes.toy_backend:ToyBackend"}
)
"""The registry of the product with one more line."""

_RESPONDER = """
import socket, sys
responder = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
responder.bind(("", int(sys.argv[1])))
while True:
    _, sender = responder.recvfrom(100)
    with open(sys.argv[2], "rb") as file:
        responder.sendto(file.read(), sender)
"""


class ToyPort(msgspec.Struct, frozen=True, rename="camel", forbid_unknown_fields=True):
    """The UDP port of the child process."""

    port: int = 4777


class ToyOptions(BackendOptions, frozen=True):
    """The options below ``routing.toy``."""

    toy: ToyPort = ToyPort()

    def check(self, source: str) -> None:
        """Checks the range of the port.

        Raises: ConfigError naming the field.
        """
        check_range(source, "routing.toy.port", self.toy.port, 1, 65535)


class ToyBackend:
    """Sends by a device of its own to the hardware addresses that peers announce."""

    name = "toy"
    feature = "macvlan"
    options = ToyOptions
    tables = (GUARD,)
    announced = True
    crosses_routers = False

    def __init__(self, options: ToyOptions) -> None:
        self._port = options.toy.port

    @property
    def udp_ports(self) -> tuple[int, ...]:
        """The port of the child process."""
        return (self._port,)

    def announce(self, me: LocalNode) -> Mapping[str, Any]:
        """The hardware address of the device."""
        return {"toy": {"mac": _mac(me.addresses[0].packed)}}

    def plan(self, me: LocalNode, peers: Sequence[Peer], cluster: ClusterView) -> BackendPlan:
        """The device, a neighbour and a route per peer, the guard, and the child process."""
        routes, neighbours = [], []
        for peer in peers:
            gateway = str(peer.addresses[0])
            mac = peer.facts.details["toy"]["mac"] if peer.facts is not None else ""
            neighbours.append(Neighbour(link=DEVICE, ip=gateway, mac=mac))
            routes += [Route(dst=str(cidr), via=gateway, link=DEVICE, onlink=True) for cidr in peer.pod_cidrs]
        device = Link(
            DEVICE, "macvlan", mac=_mac(me.addresses[0].packed), device=me.underlay.link, mode="bridge",
            alias="podwire/routing toy",
        )  # fmt: skip
        text = f"{me.name} reaches {' '.join(sorted(peer.name for peer in peers))}"
        file = f"{me.run_dir}/toy.txt"
        responder = Child(
            name="toy",
            argv=(sys.executable, "-c", _RESPONDER, str(self._port), file),
            files={file: text.encode()},
            on_file_change="ignore",
        )
        return BackendPlan(
            network=NetworkState(
                links=(device,),
                routes=tuple(routes),
                neighbours=tuple(neighbours),
                sysctls=(Sysctl(path=f"net/ipv4/conf/{DEVICE}/rp_filter", value="2"),),
            ),
            values=(guard_udp_port(GUARD, self._port, me, cluster), Qdisc(me.underlay.link, 900)),
            children=(responder,),
        )

    def reaches(self, me: LocalNode, peer: Peer) -> str:
        """Whether the peer has announced the hardware address of its device."""
        if peer.facts is None or "toy" not in peer.facts.details:
            return f"node {peer.name} does not receive toy yet"
        return ""

    def overhead(self, me: LocalNode) -> int:
        """Nothing is added to a packet."""
        return 0


def _mac(address: bytes) -> str:
    return ":".join(f"{byte:02x}" for byte in (0x02, 0x77, *address[-4:]))
