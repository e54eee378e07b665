"""The keys of server blocks: zones and ports, also as networks, which stand for their reverse zones. Pure."""

from ipaddress import ip_network

from podwire.dns.corefile.values import plain

_PORT = 53
_MOST_ZONES = 256


def parse_key(key: str) -> tuple[tuple[str, ...], int]:
    """The zones of a key such as ``.:53``, ``dns://example.org`` or ``10.0.0.0/8``, and its port.

    Raises: ValueError that says what was expected.
    """
    scheme, separator, text = key.rpartition("://")
    if separator and scheme != "dns":
        raise ValueError(f"podwire serves DNS over UDP and TCP, expected a zone, got {key!r}")
    zone, colon, port = text.rpartition(":")
    if not colon or "/" in port or (not zone.replace(":", "") and zone):
        zone, port = text, str(_PORT)
    elif not port.isdigit() or not 0 < int(port) < 65536:
        if "/" not in text:
            raise ValueError(f"expected one port for all server blocks, got {key!r}")
        zone, port = text, str(_PORT)
    return (reverse_zones(zone) if "/" in zone else (plain(zone),)), int(port)


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
