"""The text protocol by which a WireGuard process in user space is configured. Pure.

A request is ``get=1`` or ``set=1`` with lines ``key=value`` and an empty line; an answer ends with ``errno=N`` and an
empty line. Keys are 64 hexadecimal digits. A line ``public_key`` begins a peer; lines behind it belong to the peer.
Source: "Cross-platform Userspace Implementation" of the WireGuard project.
"""

from base64 import b64encode
from collections.abc import Iterator
from typing import NamedTuple

from podwire.state.wireguard import WireGuard, WireGuardPeer, key_bytes

GET = "get=1\n\n"


class Reading(NamedTuple):
    """The answer to ``get``."""

    private_key: bytes
    """Empty while the device has none."""
    port: int
    peers: tuple[WireGuardPeer, ...]


def parse(answer: str) -> Reading:
    """The answer to ``get``; counters and times are left out.

    Raises: ValueError for a line that the protocol does not have.
    """
    private, port = b"", 0
    peers: list[dict[str, list[str]]] = []
    peer: dict[str, list[str]] = {}
    for line in answer.splitlines():
        key, equals, value = line.partition("=")
        if line and not equals:
            raise ValueError(f"not a line of a WireGuard process: {line!r}")
        match key:
            case "private_key":
                private = bytes.fromhex(value)
            case "listen_port":
                port = int(value)
            case "public_key":
                peer = {"public_key": [value]}
                peers.append(peer)
            case _:
                peer.setdefault(key, []).append(value)
    return Reading(private, port, tuple(map(_peer, peers)))


def _peer(fields: dict[str, list[str]]) -> WireGuardPeer:
    return WireGuardPeer(
        public_key=base64_key(bytes.fromhex(fields["public_key"][0])),
        endpoint=fields.get("endpoint", [""])[0],
        keepalive_s=int(fields.get("persistent_keepalive_interval", ["0"])[0]),
        allowed_ips=tuple(fields.get("allowed_ip", ())),
    )


def sessions(answer: str) -> Iterator[str]:
    """The public keys of the peers in an answer to ``get`` whose last handshake has a time."""
    public = ""
    for line in answer.splitlines():
        key, _, value = line.partition("=")
        if key == "public_key":
            public = value
        elif key == "last_handshake_time_sec" and value != "0":
            yield base64_key(bytes.fromhex(public))


def base64_key(key: bytes) -> str:
    """A key as people and Node objects write it."""
    return b64encode(key).decode()


def error_number(answer: str) -> int | None:
    """The number in the last line of an answer; None while the answer is incomplete."""
    lines = answer.split("\n")
    complete = len(lines) > 2 and lines[-1] == lines[-2] == "" and lines[-3].startswith("errno=")
    return int(lines[-3].removeprefix("errno=")) if complete else None


def request(present: WireGuard, desired: WireGuard, private_key: bytes) -> str:
    """The request that makes a device as desired; empty when it is so.

    Peers are added before others are removed, so that a network that changes its peer always has one.
    """
    lines = [*_device_lines(present, desired, private_key), *_peer_lines(present, desired)]
    return "".join(f"{line}\n" for line in ("set=1", *lines, "")) if lines else ""


def _device_lines(present: WireGuard, desired: WireGuard, private_key: bytes) -> Iterator[str]:
    if present.public_key != desired.public_key:
        yield f"private_key={private_key.hex()}"
    if present.port != desired.port:
        yield f"listen_port={desired.port}"


def peer_changes(present: WireGuard, desired: WireGuard) -> Iterator[tuple[str, WireGuardPeer | None, WireGuardPeer]]:
    """Key, desired peer and present peer of each difference; the desired one is None for a peer to remove."""
    before = {peer.public_key: peer for peer in present.peers}
    for peer in desired.peers:
        known = before.pop(peer.public_key, None)
        if peer != known:
            yield peer.public_key, peer, known or WireGuardPeer(peer.public_key)
    yield from ((key, None, known) for key, known in before.items())


def _peer_lines(present: WireGuard, desired: WireGuard) -> Iterator[str]:
    for key, peer, known in peer_changes(present, desired):
        yield f"public_key={key_bytes(key).hex()}"
        if peer is None:
            yield "remove=true"
            continue
        if peer.endpoint and peer.endpoint != known.endpoint:
            yield f"endpoint={peer.endpoint}"
        if set(known.allowed_ips) - set(peer.allowed_ips):
            yield "replace_allowed_ips=true"
        yield from (f"allowed_ip={network}" for network in peer.allowed_ips)
        if peer.keepalive_s != known.keepalive_s:
            yield f"persistent_keepalive_interval={peer.keepalive_s}"
