"""Which firewalls of other programs drop packets to ports of the node that podwire needs (pure).

Pods reach the node's own DNS server, and other nodes its tunnels, at the hook input. Podwire opens nothing there: what
a node accepts is for its administrator to decide. A firewall that refuses what it does not know is reported unless one
of its rules seems to accept the packets, by its port, or by its source or device when it names no port. The packets are
not tracked (``notrack``), so a rule about tracked connections alone does not accept them. The rules of other programs
are not run: a rule that is reached only under further conditions counts as well, so a report is right and silence is
not a proof.
"""

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from ipaddress import ip_network

import msgspec

from podwire.routing.forwarding import firewalld_sources
from podwire.routing.nodes import Network
from podwire.state.firewalls import FirewallChain, ForeignChain
from podwire.state.iptables_diff import target_of

_FAMILIES = {"ip": (4,), "ip6": (6,), "inet": (4, 6)}
_SAVED_PORTS = re.compile(r"--dports? (\S+)")
_SAVED_PROTOCOL = re.compile(r"-p (\S+)")
_SAVED_SOURCE = re.compile(r"-s (\S+)")
_SAVED_STATE = re.compile(r"--(?:ct)?state (\S+)")
_LISTED_PORTS = re.compile(r"\b(udp|tcp|th) dport (\{[^}]*\}|\S+)")
_LISTED_STATE = re.compile(r"\bct state (\{[^}]*\}|\S+)")
_LISTED_SOURCE = re.compile(r"\bip6? saddr (\S+)")
_RANGE = re.compile(r"(\d+)(?:[-:](\d+))?")


class NeededPort(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    """A port of the node that must accept packets: the setting that needs it, and who sends.

    ``networks`` are the senders' when pods send, none when other nodes do. ``versions`` are the IP versions of the
    packets.
    """

    port: int
    protocols: tuple[str, ...]
    user: str
    networks: tuple[Network, ...] = ()
    versions: tuple[int, ...] = (4,)


def input_blockers(
    chains: Iterable[tuple[str, FirewallChain]], foreign: Iterable[ForeignChain], needs: Sequence[NeededPort]
) -> Iterator[str]:
    """The firewalls that seem to drop packets to needed ports, as text with advice; ``chains`` are with their families.

    Each firewall is reported once for each need.
    """
    for family, chain in chains:
        if chain.refuses:
            for need, protocols in _unmet(needs, family, _reached(chain), _saved_accepts):
                yield f"iptables' chain {chain.name} ({family}) {_drops(need, protocols)}: {_command(need, protocols)}"
    for item in foreign:
        if item.refuses_the_rest:
            for need, protocols in _unmet(needs, item.family, item.text.splitlines(), _listed_accepts):
                yield f"{item} {_drops(need, protocols)}: {_advice(item, need, protocols)}"


def _reached(chain: FirewallChain) -> list[str]:
    """The rules of a base chain, and of the chains to which they lead."""
    rules: list[str] = []
    waiting, visited = [chain.name], {chain.name}
    while waiting:
        own = chain.chains.get(waiting.pop(), ())
        rules += own
        targets = {target_of(rule) for rule in own if target_of(rule) in chain.chains} - visited
        waiting += targets
        visited |= targets
    return rules


def _unmet(
    needs: Sequence[NeededPort], family: str, rules: Sequence[str], accepts: Callable[[str, NeededPort, str], bool]
) -> Iterator[tuple[NeededPort, list[str]]]:
    """The needs of a family with the protocols that no rule accepts."""
    for need in needs:
        if not set(_FAMILIES[family]) & set(need.versions):
            continue
        if missing := [p for p in need.protocols if not any(accepts(rule, need, p) for rule in rules)]:
            yield need, missing


def _saved_accepts(rule: str, need: NeededPort, protocol: str) -> bool:
    """Whether a rule of iptables-save seems to accept packets of a protocol to a needed port."""
    if target_of(rule) != "ACCEPT" or " -i lo " in f" {rule}":
        return False
    if (given_protocol := _SAVED_PROTOCOL.search(rule)) and given_protocol[1] not in (protocol, "all"):
        return False
    if (state := _SAVED_STATE.search(rule)) and "UNTRACKED" not in state[1]:
        return False
    if ports := _SAVED_PORTS.search(rule):
        return _includes(ports[1], need.port)
    source = _SAVED_SOURCE.search(rule)
    return source is None or _concerns(source[1], need.networks)


def _listed_accepts(line: str, need: NeededPort, protocol: str) -> bool:
    """Whether a line of nft's list seems to accept packets of a protocol to a needed port."""
    if not _leads_on(line) or 'iifname "lo"' in line:
        return False
    if (state := _LISTED_STATE.search(line)) and "untracked" not in state[1]:
        return False
    if ports := [text for kind, text in _LISTED_PORTS.findall(line) if kind in (protocol, "th")]:
        return any(text.startswith("@") or _includes(text, need.port) for text in ports)
    if " dport " in line or "icmp" in line:
        return False
    source = _LISTED_SOURCE.search(line)
    return (source is not None or "iifname" in line) and (source is None or _concerns(source[1], need.networks))


def _leads_on(line: str) -> bool:
    """Whether a line is a rule that accepts packets, or leads them to other rules by their source or port."""
    tokens = line.split()
    return "accept" in tokens or (("jump" in tokens or "goto" in tokens) and " dport " in line)


def _includes(text: str, port: int) -> bool:
    """Whether a list of ports and ranges includes a port; a list that begins with ``!`` does not."""
    bounds = ((int(low), int(high or low)) for low, high in _RANGE.findall(text))
    return not text.startswith("!") and any(low <= port <= high for low, high in bounds)


def _concerns(source: str, networks: Collection[Network]) -> bool:
    """Whether a source may be that of the senders; any source may be that of a node."""
    try:
        network = ip_network(source, strict=False)
    except ValueError:
        return True  # A set or a range: its content is not known here.
    return not networks or any(network.version == own.version and network.overlaps(own) for own in networks)


def _drops(need: NeededPort, protocols: Sequence[str]) -> str:
    senders = "pods" if need.networks else "other nodes"
    return f"drops packets of {senders} to {' and '.join(protocols)} port {need.port}, which {need.user} needs"


def _command(need: NeededPort, protocols: Sequence[str]) -> str:
    sources = [f" -s {network}" for network in need.networks] or [""]
    rules = [f"INPUT{source} -p {name} --dport {need.port} -j ACCEPT" for source in sources for name in protocols]
    return f"accept them, with iptables -I {rules[0]} for example"


def _advice(chain: ForeignChain, need: NeededPort, protocols: Sequence[str]) -> str:
    if chain.table != "firewalld":
        return "accept them there"
    if need.networks:
        return firewalld_sources(need.networks)
    ports = " ".join(f"--add-port={need.port}/{name}" for name in protocols)
    return f"firewall-cmd --permanent {ports}; firewall-cmd --reload"
