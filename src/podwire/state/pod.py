"""How a pod is wired to its node, and the state that this means on both ends.

The pod's only neighbour is a gateway that exists nowhere: 169.254.1.1 (and fe80::1), whose hardware address is
that of the host end of the veth pair, known by a permanent neighbour entry; the host in turn knows the pod's.
So there is no ARP, no proxy_arp, no bridge, no duplicate address detection, and the node routes between its
pods with ``forwarding`` set on these devices alone (IPv6 needs it on all). The pod has its address with full
length and two routes: to the gateway on the link, and everything through the gateway.

Names and numbers are derived, not random: what a wiring says is what a second look must find.
"""

import hashlib
import zlib

from podwire.state.address import ip_text, is_v6, mac_text
from podwire.state.link import Link, Value, canonical
from podwire.state.network import NetworkState
from podwire.state.route import Address, Neighbour, Route

GATEWAY4 = "169.254.1.1"
"""The IPv4 next hop of every pod: link-local, so it can clash with no real one."""

GATEWAY6 = "fe80::1"
"""The IPv6 next hop of every pod."""

HOST_MAC = "ee:ee:ee:ee:ee:ee"
"""The address of every host end; each is a segment of its own, so one serves for all."""

CNI_PROTOCOL = 112
"""The owner mark of pod routes and neighbours."""

_FIRST_INDEX = 1 << 16
_INDEXES = (1 << 30) - _FIRST_INDEX


class PodWiring(Value, frozen=True):
    """One pod's attachment.

    ``link`` is the host end's name, ``netns`` the path of the pod's namespace, ``interface`` the name in there;
    ``addresses`` are at most one of each family, without length. ``mac`` is the pod end's, empty for the derived
    one. ``mtu`` is the device's on both ends, ``route_mtu`` that of the pod's default route, 0 for the kernel's.
    ``spoof_check`` makes the node drop what does not come from the pod's own IPv4 address (rp_filter).
    """

    link: str
    netns: str
    addresses: tuple[str, ...]
    interface: str = "eth0"
    alias: str = ""
    mac: str = ""
    host_mac: str = HOST_MAC
    mtu: int = 0
    route_mtu: int = 0
    proto: int = CNI_PROTOCOL
    spoof_check: bool = True

    def __post_init__(self) -> None:
        canonical(self, "addresses", tuple(ip_text(x.partition("/")[0]) for x in self.addresses))
        canonical(self, "mac", mac_text(self.mac) or derived_mac(f"{self.link} {self.interface}"))
        canonical(self, "host_mac", mac_text(self.host_mac))


def derived_mac(seed: str) -> str:
    """A locally administered address that depends on nothing but ``seed``."""
    digest = hashlib.sha1(seed.encode(), usedforsecurity=False).digest()
    return bytes(((digest[0] & 0xFC) | 0x02, *digest[1:6])).hex(":")


def derived_index(name: str, attempt: int = 0) -> int:
    """A device number to ask for, the same on both ends: from 2**16 on, where namespaces hold none by themselves.

    Asking saves the round trip that would learn it; a clash (one in ten million) is answered with EBUSY and
    the next attempt gives another one.
    """
    return _FIRST_INDEX + (zlib.crc32(f"{name} {attempt}".encode()) % _INDEXES)


def host_state(wiring: PodWiring) -> NetworkState:
    """What the node holds for the pod: its end, the neighbours, a route to each address."""
    name, proto = wiring.link, wiring.proto
    return NetworkState(
        links=(Link(name, "veth", wiring.mtu, mac=wiring.host_mac, alias=wiring.alias),),
        routes=tuple(Route(f"{x}/{_length(x)}", link=name, proto=proto) for x in wiring.addresses),
        neighbours=tuple(Neighbour(name, x, wiring.mac, proto=proto) for x in wiring.addresses),
    )


def pod_state(wiring: PodWiring) -> NetworkState:
    """What the pod's namespace holds: loopback, its end, its addresses, the gateway, the default routes."""
    name, proto = wiring.interface, wiring.proto
    families = sorted({is_v6(x) for x in wiring.addresses})
    gateways = [GATEWAY6 if v6 else GATEWAY4 for v6 in families]
    to_gateway = (Route(f"{GATEWAY4}/32", link=name, proto=proto),) if False in families else ()
    through = tuple(
        Route("::/0" if is_v6(x) else "default", x, name, onlink=True, mtu=wiring.route_mtu, proto=proto)
        for x in gateways
    )
    return NetworkState(
        links=(Link("lo"), Link(name, "veth", wiring.mtu, mac=wiring.mac)),
        addresses=tuple(Address(name, f"{x}/{_length(x)}", proto=proto) for x in wiring.addresses),
        routes=to_gateway + through,
        neighbours=tuple(Neighbour(name, x, wiring.host_mac, proto=proto) for x in gateways),
    )


def _length(address: str) -> int:
    return 128 if is_v6(address) else 32
