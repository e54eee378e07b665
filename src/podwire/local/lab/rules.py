"""The nftables table of cut links and losses (pure).

It is the table ``podwire-lab`` of the family ``bridge`` in the namespace ``switch``. Both ends of a link keep their
carrier, as behind a switch that fails further on.
"""

from podwire.errors import ConfigError
from podwire.local.lab.conditions import LabConditions, port_of
from podwire.local.topology import Topology
from podwire.state.nft import AbsentTable, Chain, Table
from podwire.state.nft_text import parse_rule

FAMILY = "bridge"
TABLE = "podwire-lab"

_PRIORITY = -400
"""The priority of the chain: before all other chains of the family."""
_PARTS = 10_000


def table(topology: Topology, nodes: int, conditions: LabConditions) -> Table | AbsentTable:
    """The table of a cluster of ``nodes`` nodes; conditions of stations that are gone are left out."""
    rules: list[str] = []
    for station, link in conditions.links.items():
        try:
            port = port_of(topology, nodes, station, TABLE)
        except ConfigError:
            continue
        if link.cut:
            rules += _both_ways(port, "", f"cut {station}")
        elif link.loss_percent:
            parts = min(max(round(link.loss_percent * _PARTS / 100), 1), _PARTS)
            lost = "" if parts == _PARTS else f"numgen random mod {_PARTS} < {parts} "
            rules += _both_ways(port, lost, f"loss of {station}")
    for node, other in conditions.pairs:
        try:
            ports = [port_of(topology, nodes, station, TABLE) for station in (node, other)]
        except ConfigError:
            continue
        for incoming, outgoing in (ports, ports[::-1]):
            text = f'iifname "{incoming}" oifname "{outgoing}" counter drop comment "cut {node} from {other}"'
            rules.append(text)
    if not rules:
        return AbsentTable(FAMILY, TABLE)
    chain = Chain(name="links", type="filter", hook="forward", priority=_PRIORITY, rules=tuple(map(parse_rule, rules)))
    return Table(family=FAMILY, name=TABLE, comment="podwire: conditions of links", chains=(chain,))


def _both_ways(port: str, condition: str, comment: str) -> list[str]:
    return [f'{side} "{port}" {condition}counter drop comment "{comment}"' for side in ("iifname", "oifname")]
