"""WireGuard devices as values: key, UDP port, and the peers with the addresses that each of them may use.

The text has a line for a device and one for each of its peers::

    wireguard podwire-wg port 51820 key KEY private-key-file FILE control SOCKET
    wireguard-peer podwire-wg KEY endpoint 192.0.2.12:51820 keepalive 25 allowed-ips 10.244.1.0/24

Keys are public keys in base64 (44 characters). A private key is in no value and no text; the value names its file.
"""

from base64 import b64decode
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from msgspec.structs import replace

from podwire.state import grammar
from podwire.state.address import network_text
from podwire.state.grammar import Grammar, Option
from podwire.state.value import Value, canonical

KEY_BYTES = 32


def key_bytes(text: str) -> bytes:
    """The 32 bytes of a key in base64.

    Raises: ValueError for another text.
    """
    try:
        key = b64decode(text, validate=True)
    except ValueError as failure:
        raise ValueError(f"{text!r} is not a WireGuard key in base64") from failure
    if len(key) != KEY_BYTES:
        raise ValueError(f"{text!r} is not a WireGuard key: {len(key)} bytes, expected {KEY_BYTES}")
    return key


class WireGuardPeer(Value, frozen=True):
    """A peer of a device.

    ``endpoint`` is ADDRESS:PORT, empty while none is known. ``keepalive_s`` is the time in seconds between empty
    packets that keep the session, 0 for none. ``allowed_ips`` are the networks from which the peer may send, and
    to which packets go to the peer; sorted. A network belongs to one peer of a device.
    """

    public_key: str
    endpoint: str = ""
    keepalive_s: int = 0
    allowed_ips: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        key_bytes(self.public_key)
        canonical(self, "allowed_ips", tuple(sorted(map(network_text, self.allowed_ips))))

    def line(self, device: str) -> str:
        """The peer's line below its device."""
        tokens = ["wireguard-peer", device, *grammar.render(_PEER, self, {"endpoint": "", "keepalive_s": 0})]
        return " ".join([*tokens, "allowed-ips", ",".join(self.allowed_ips)] if self.allowed_ips else tokens)


class WireGuard(Value, frozen=True):
    """A device; ``port`` is the UDP port, ``public_key`` empty while the device has no key.

    ``private_key_file`` is the file with the private key, ``control`` the socket of the process that runs the device,
    empty for a device of the kernel.
    ``peers`` are in the order of their keys.
    """

    device: str
    port: int
    public_key: str = ""
    private_key_file: str = ""
    control: str = ""
    peers: tuple[WireGuardPeer, ...] = ()

    def __post_init__(self) -> None:
        if self.public_key:
            key_bytes(self.public_key)
        canonical(self, "peers", tuple(sorted(self.peers)))

    def __str__(self) -> str:
        return "\n".join(self.lines())

    def lines(self) -> Iterator[str]:
        """The text, a line at a time."""
        yield " ".join(["wireguard", *grammar.render(_DEVICE, self, _DEFAULTS)])
        yield from (peer.line(self.device) for peer in self.peers)


class WireGuardMark(NamedTuple):
    """Selects a device: the socket of its process (empty: the kernel's), and the file to which its key is compared."""

    device: str
    control: str
    private_key_file: str


_DEVICE = Grammar(
    "wireguard",
    "device",
    (
        Option("port", "port", "number"),
        Option("key", "public_key"),
        Option("private-key-file", "private_key_file"),
        Option("control", "control"),
    ),
)
_DEFAULTS = {"public_key": "", "private_key_file": "", "control": ""}
_PEER_OPTIONS = (Option("endpoint", "endpoint"), Option("keepalive", "keepalive_s", "number"))
_PEER = Grammar("wireguard-peer", "public_key", _PEER_OPTIONS)
_PEER_LINE = Grammar(_PEER.noun, _PEER.positional, (*_PEER.options, Option("allowed-ips", "allowed_ips")))


def parse(lines: Iterable[str]) -> tuple[WireGuard, ...]:
    """The devices of a text, in its order.

    Raises: ValueError naming the wrong word, or the device that a peer's line names and no line declares.
    """
    devices: dict[str, WireGuard] = {}
    for line in lines:
        noun, *tokens = grammar.split(line)
        if noun == _DEVICE.noun:
            fields = grammar.parse(_DEVICE, tokens)
            if "port" not in fields:
                raise ValueError(f"{line!r} needs the word 'port'")
            devices[fields["device"]] = WireGuard(**fields)
            continue
        known = devices.get(tokens[0] if tokens else "")
        if known is None:
            raise ValueError(f"{line!r} is below no line `wireguard DEVICE`")
        devices[known.device] = replace(known, peers=(*known.peers, _parse_peer(tokens[1:])))
    return tuple(devices.values())


def _parse_peer(tokens: list[str]) -> WireGuardPeer:
    fields = grammar.parse(_PEER_LINE, tokens)
    networks = fields.pop("allowed_ips", "")
    return WireGuardPeer(**fields, allowed_ips=tuple(networks.split(",")) if networks else ())
