"""The keys of server blocks: zones and ports, also as networks, which stand for their reverse zones. Pure."""

from ipaddress import ip_network
from typing import NamedTuple

from podwire.dns.corefile.values import plain

_PORTS = {"dns": 53, "tls": 853}
_MOST_ZONES = 256


class ServerKey(NamedTuple):
    """The zones of a key, the port, and whether it is served over TLS."""

    zones: tuple[str, ...]
    port: int
    encrypted: bool


def parse_key(key: str) -> ServerKey:
    """The parts of a key such as ``.:53``, ``dns://example.org``, ``tls://.`` or ``10.0.0.0/8``.

    Raises: ValueError that says what was expected.
    """
    scheme, separator, text = key.rpartition("://")
    scheme = scheme if separator else "dns"
    if scheme not in _PORTS:
        raise ValueError(f"podwire serves DNS over UDP, TCP and TLS, expected a zone, got {key!r}")
    zone, colon, port = text.rpartition(":")
    default = str(_PORTS[scheme])
    if not colon or "/" in port or (not zone.replace(":", "") and zone):
        zone, port = text, default
    elif not port.isdigit() or not 0 < int(port) < 65536:
        if "/" not in text:
            raise ValueError(f"expected one port for all server blocks, got {key!r}")
        zone, port = text, default
    return ServerKey(reverse_zones(zone) if "/" in zone else (plain(zone),), int(port), scheme == "tls")


def reverse_zones(text: str) -> tuple[str, ...]:
    """The reverse zones of a network; several when its length is between two labels.

    Raises: ValueError for what is no network.
    """
    network = ip_network(text, strict=False)
    step = 8 if network.version == 4 else 4
    length = min(-(-network.prefixlen // step) * step, network.max_prefixlen)
    if 1 << (length - network.prefixlen) > _MOST_ZONES:
        raise ValueError(f"expected a network of at most {_MOST_ZONES} reverse zones, got {text!r}")
    skipped = (network.max_prefixlen - length) // step
    pointers = (subnet.network_address.reverse_pointer for subnet in network.subnets(new_prefix=length))
    return tuple(".".join(pointer.split(".")[skipped:]) for pointer in pointers)
