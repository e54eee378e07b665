"""Converts the IPv4 addresses of cases to IPv6 (pure).

Cases name IPv4 addresses. The IPv6 address of a pod is a /96 prefix followed by its IPv4 address, and an
IPv6 range is 96 bits longer than the IPv4 range. So a case means the same in both families. ``0.0.0.0/0`` becomes
``::/0``. A policy gets the ranges of all checked families.
"""

from collections.abc import Collection, Mapping
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_network
from typing import Any

PREFIX = IPv6Network("fd10::/96")
"""The prefix of pods in a cluster that the runner creates itself."""


def embedded(address: str, prefix: IPv6Network = PREFIX) -> str:
    """The IPv6 address that stands for an IPv4 address."""
    return str(IPv6Address(int(prefix.network_address) | int(IPv4Address(address))))


def embedded_range(cidr: str, prefix: IPv6Network = PREFIX) -> str:
    """The IPv6 range that stands for an IPv4 range."""
    network = IPv4Network(cidr, strict=False)
    if network.prefixlen == 0:
        return "::/0"
    return str(IPv6Network((int(prefix.network_address) | int(network.network_address), 96 + network.prefixlen)))


def prefix_of(ranges: Collection[str]) -> IPv6Network | None:
    """The /96 prefix of a node whose IPv6 range embeds its IPv4 range; None when it does not, or a range is missing."""
    networks = [ip_network(text) for text in ranges]
    four = next((str(network) for network in networks if network.version == 4), None)
    six = next((network for network in networks if network.version == 6), None)
    if four is None or six is None or six.prefixlen < 96:
        return None
    prefix = IPv6Network((int(six.network_address) >> 32 << 32, 96))
    return prefix if embedded_range(four, prefix) == str(six) else None


def in_families(manifest: Mapping[str, Any], families: Collection[int], prefix: IPv6Network = PREFIX) -> dict[str, Any]:
    """A policy of either kind with its IPv4 ranges in the given families; IPv6 ranges do not change."""
    policy: dict[str, Any] = _walk(dict(manifest), families, prefix)
    return policy


def _walk(value: Any, families: Collection[int], prefix: IPv6Network) -> Any:
    if isinstance(value, dict):
        return {key: _walk_field(key, item, families, prefix) for key, item in value.items()}
    if isinstance(value, list):
        return [_walk(version, families, prefix) for item in value for version in _peers(item, families, prefix)]
    return value


def _walk_field(key: str, value: Any, families: Collection[int], prefix: IPv6Network) -> Any:
    if key == "networks" and isinstance(value, list):
        return list(dict.fromkeys(version for cidr in value for version in _versions(cidr, families, prefix)))
    return _walk(value, families, prefix)


def _peers(item: Any, families: Collection[int], prefix: IPv6Network) -> list[Any]:
    """The items that replace an item of a list: an ``ipBlock`` peer becomes one peer for each family."""
    if not isinstance(item, dict) or not isinstance(item.get("ipBlock"), dict):
        return [item]
    block = item["ipBlock"]
    if not _is_four(block.get("cidr")):
        return [item]
    peers = []
    if 4 in families:
        peers.append(item)
    if 6 in families:
        six: dict[str, Any] = {"cidr": embedded_range(block["cidr"], prefix)}
        if block.get("except"):
            six["except"] = [embedded_range(exception, prefix) for exception in block["except"] if _is_four(exception)]
        peers.append({**item, "ipBlock": six})
    return peers


def _versions(cidr: Any, families: Collection[int], prefix: IPv6Network) -> list[Any]:
    if not _is_four(cidr):
        return [cidr]
    return [cidr] * (4 in families) + [embedded_range(cidr, prefix)] * (6 in families)


def _is_four(cidr: Any) -> bool:
    try:
        IPv4Network(cidr, strict=False)
    except ValueError:
        return False
    return True
