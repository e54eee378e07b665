"""Tunnels of the routing backend udp as values: a device, its UDP address, and the peers with their networks.

The text has a line for a tunnel and one for each of its peers::

    udp podwire-udp listen 192.0.2.11:8285
    udp-peer podwire-udp 192.0.2.12:8285 networks 10.244.1.0/24,192.0.2.12/32

:func:`difference` compares two texts without parsing them.
"""

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence

from podwire.state import grammar
from podwire.state.address import ip_text, network_text
from podwire.state.grammar import Grammar, Option
from podwire.state.value import Value, canonical


def endpoint_address(text: str) -> tuple[str, int]:
    """Address and port of ``192.0.2.12:8285`` or ``[fd89::12]:8285``.

    Raises: ValueError for another text.
    """
    address, _, port = text.rpartition(":")
    if not port.isdecimal() or not 0 < int(port) <= 0xFFFF or (":" in address) != address.startswith("["):
        raise ValueError(f"{text!r} is not ADDRESS:PORT")
    return ip_text(address.removeprefix("[").removesuffix("]")), int(port)


class UdpPeer(Value, frozen=True):
    """A peer of a tunnel; ``endpoint`` is ADDRESS:PORT.

    ``networks`` are those to which packets go to the peer, and the only sources of the packets that it sends; sorted.
    """

    endpoint: str
    networks: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        endpoint_address(self.endpoint)
        canonical(self, "networks", tuple(sorted(map(network_text, self.networks))))

    def line(self, device: str) -> str:
        """The peer's line below its tunnel."""
        tokens = ["udp-peer", device, self.endpoint]
        return " ".join([*tokens, "networks", ",".join(self.networks)] if self.networks else tokens)


class UdpTunnel(Value, frozen=True):
    """A tunnel; ``listen`` is the ADDRESS:PORT from which it sends and on which it receives.

    ``peers`` are in the order of their endpoints. Two peers have different endpoints, and no network in common.
    """

    device: str
    listen: str
    peers: tuple[UdpPeer, ...] = ()

    def __post_init__(self) -> None:
        endpoint_address(self.listen)
        canonical(self, "peers", tuple(sorted(self.peers)))
        _refuse_twice("endpoint", [peer.endpoint for peer in self.peers])
        _refuse_twice("network", [network for peer in self.peers for network in peer.networks])

    def __str__(self) -> str:
        return "\n".join(self.lines())

    def lines(self) -> Iterator[str]:
        """The text, a line at a time."""
        yield f"udp {self.device} listen {self.listen}"
        yield from (peer.line(self.device) for peer in self.peers)


def difference(old: str, new: str) -> tuple[str, ...] | None:
    """The lines in which the texts of a tunnel differ, with ``-`` before those of ``old`` and ``+`` before the others.

    None: the tunnels themselves differ, not only their peers.
    """
    before, after = old.splitlines(), new.splitlines()
    if before[:1] != after[:1]:
        return None
    gone, come = set(before), set(after)
    return (*(f"-{line}" for line in before if line not in come), *(f"+{line}" for line in after if line not in gone))


class PeerChange(Value, frozen=True):
    """Peers that a tunnel has no more, and those that are new."""

    gone: tuple[UdpPeer, ...]
    new: tuple[UdpPeer, ...]

    def of(self, tunnel: UdpTunnel) -> UdpTunnel:
        """The tunnel after the change.

        Raises: ValueError when the tunnel lacks a peer that is gone, or two peers have the same endpoint or network.
        """
        peers = list(tunnel.peers)
        for peer in self.gone:
            place = bisect_left(peers, peer)
            if peers[place : place + 1] != [peer]:
                raise ValueError(f"{tunnel.device} has no peer {peer.endpoint} with these networks")
            del peers[place]
        return UdpTunnel(tunnel.device, tunnel.listen, (*peers, *self.new))


def parse_difference(device: str, lines: Iterable[str]) -> PeerChange:
    """The change of the peers of a tunnel that the lines of :func:`difference` describe.

    Raises: ValueError naming the wrong line.
    """
    peers: dict[str, list[UdpPeer]] = {"-": [], "+": []}
    for line in lines:
        noun, *tokens = grammar.split(line[1:]) or [""]
        if line[:1] not in peers or noun != _PEER.noun or tokens[:1] != [device]:
            raise ValueError(f"{line!r} is not a changed line `{_PEER.noun} {device}`")
        peers[line[0]].append(_parse_peer(tokens[1:]))
    return PeerChange(tuple(peers["-"]), tuple(peers["+"]))


def _refuse_twice(property_name: str, texts: Sequence[str]) -> None:
    known: set[str] = set()
    if len(set(texts)) == len(texts):
        return
    for text in texts:
        if text in known:
            raise ValueError(f"two peers have the {property_name} {text}")
        known.add(text)


_DEVICE = Grammar("udp", "device", (Option("listen", "listen"),))
_PEER = Grammar("udp-peer", "endpoint", (Option("networks", "networks"),))


def parse(lines: Iterable[str]) -> tuple[UdpTunnel, ...]:
    """The tunnels of a text, in its order.

    Raises: ValueError naming the wrong word, or the device that a peer's line names and no line declares.
    """
    listens: dict[str, str] = {}
    peers: dict[str, list[UdpPeer]] = {}
    for line in lines:
        noun, *tokens = grammar.split(line) or [""]
        if noun == _DEVICE.noun:
            fields = grammar.parse(_DEVICE, tokens)
            if "listen" not in fields:
                raise ValueError(f"{line!r} needs the word 'listen'")
            listens[fields["device"]] = fields["listen"]
            peers[fields["device"]] = []
        elif noun == _PEER.noun and tokens and tokens[0] in listens:
            peers[tokens[0]].append(_parse_peer(tokens[1:]))
        else:
            raise ValueError(f"{line!r} is below no line `udp DEVICE`")
    return tuple(UdpTunnel(device, listen, tuple(peers[device])) for device, listen in listens.items())


def _parse_peer(tokens: list[str]) -> UdpPeer:
    fields = grammar.parse(_PEER, tokens)
    networks = fields.get("networks", "")
    return UdpPeer(fields["endpoint"], tuple(networks.split(",")) if networks else ())
