"""The conditions of the links of a fabric: cut, loss, delay, MTU (pure).

A *station* has a link to a switch of the fabric: ``node-2``, ``host`` (this machine, with the API server) or
``segment-1`` (the router's link to that segment). Conditions come from ``links`` in the cluster's configuration; the
commands of ``podwire lab`` change them until the link is healed, which brings the configured ones back.

Loss and delay act on each direction.
"""

from collections.abc import Mapping

import msgspec

from podwire.errors import ConfigError
from podwire.local.topology import HOST_PORT, Topology

HOST = "host"

_LEAST_MTU = 1280
"""Links with a smaller MTU carry no IPv6 (RFC 8200, section 5)."""
_MOST_MTU = 9_000
_MOST_DELAY_MS = 10_000.0


class LinkConditions(msgspec.Struct, frozen=True, rename="camel", forbid_unknown_fields=True, omit_defaults=True):
    """The conditions of one link."""

    cut: bool = False
    loss_percent: float = 0.0
    """The share of lost frames in each direction."""
    delay_ms: float = 0.0
    """Added to each direction."""
    mtu: int = 0
    """Bytes; 0 is the usual one."""

    @property
    def descriptions(self) -> tuple[str, ...]:
        """The conditions in words, none for a link without any."""
        texts = (
            "cut" if self.cut else "",
            f"loss {self.loss_percent:g} %" if self.loss_percent else "",
            f"delay {self.delay_ms:g} ms" if self.delay_ms else "",
            f"MTU {self.mtu}" if self.mtu else "",
        )
        return tuple(word for word in texts if word)


Links = Mapping[str, LinkConditions]
Pair = tuple[str, str]


class LabConditions(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The conditions of links by station, and the pairs of nodes that are cut from each other alone."""

    links: dict[str, LinkConditions] = {}
    pairs: tuple[Pair, ...] = ()

    def over(self, configured: Links) -> "LabConditions":
        """These changes on top of the configured conditions."""
        links = {**configured, **self.links}
        return LabConditions({name: links[name] for name in sorted(links) if links[name].descriptions}, self.pairs)

    def lines(self) -> tuple[str, ...]:
        """A line for each link and each pair with a condition."""
        links = (f"{name}: {', '.join(link.descriptions)}" for name, link in self.links.items() if link.descriptions)
        return (*links, *(f"{node} and {other}: cut from each other" for node, other in self.pairs))


def port_of(topology: Topology, nodes: int, station: str, source: str, path: str = "") -> str:
    """The port of a station in the namespace ``switch``.

    Raises: ConfigError when a cluster of ``nodes`` nodes has no such station.
    """
    if station == HOST:
        return HOST_PORT
    kind, _, number = station.partition("-")
    if number.isdecimal() and str(int(number)) == number:
        if kind == "node" and 1 <= int(number) <= nodes:
            return topology.node(int(number)).port
        if kind == "segment" and topology.segment_count > 1 and int(number) < topology.segment_count:
            return f"router-{number}"
    known = f"{HOST}, node-1 to node-{nodes}" if nodes > 1 else f"{HOST}, node-1"
    if topology.segment_count > 1:
        known += f", segment-0 to segment-{topology.segment_count - 1}"
    raise ConfigError(source, path, f"{station!r} is not a station; expected one of {known}")


def check_links(links: Links, source: str, path: str = "links") -> None:
    """Checks the values of conditions.

    Raises: ConfigError with the field path.
    """
    for name, link in links.items():
        if not 0 <= link.loss_percent <= 100:
            raise ConfigError(source, f"{path}.{name}.lossPercent", f"{link.loss_percent:g}: expected 0 to 100")
        if not 0 <= link.delay_ms <= _MOST_DELAY_MS:
            raise ConfigError(source, f"{path}.{name}.delayMs", f"{link.delay_ms:g}: expected 0 to {_MOST_DELAY_MS:g}")
        if link.mtu and not _LEAST_MTU <= link.mtu <= _MOST_MTU:
            raise ConfigError(source, f"{path}.{name}.mtu", f"{link.mtu}: expected {_LEAST_MTU} to {_MOST_MTU}")


def check_pair(topology: Topology, pair: Pair, source: str) -> None:
    """Checks that two nodes can be cut from each other: frames between segments carry the router's addresses.

    Raises: ConfigError.
    """
    node, other = pair
    if node == other:
        raise ConfigError(source, "", f"expected two nodes, not {node!r} twice")
    for station in pair:
        if not station.startswith("node-"):
            raise ConfigError(source, "", f"{station!r} is not a node; only nodes can be cut from each other")
    segments = [topology.node(int(station.partition("-")[2])).segment.number for station in pair]
    if segments[0] != segments[1]:
        problem = (
            f"{node} is on segment-{segments[0]} and {other} on segment-{segments[1]}; two nodes can be cut from each "
            f"other on one segment; cut segment-{segments[1]} to separate the segments"
        )
        raise ConfigError(source, "", problem)


def mtus(conditions: LabConditions) -> dict[str, int]:
    """The MTU of each link that has one of its own, by station."""
    return {name: link.mtu for name, link in conditions.links.items() if link.mtu}
