"""The messages between the data plane and the relay: one request, one answer, over a unix socket (pure).

A frame is a length of four bytes and a msgpack document. The socket is in the abstract namespace, so every network
namespace has a relay of its own and none has to know a path; both sides accept root alone.
"""

import struct

import msgspec

SOCKET = "\0podwire-userspace-relay"
LENGTH = struct.Struct("!I")
Target = tuple[str, int]
"""Address and port."""


class RelayPool(msgspec.Struct, frozen=True, kw_only=True):
    """One listening port of the relay, and the endpoints behind it."""

    key: str
    """The identity of the pool: family, Service port, and which of its endpoint lists."""
    protocol: str
    """tcp or udp."""
    address: str
    """Where the relay listens: an address of this node."""
    endpoints: tuple[Target, ...]
    serving: frozenset[str] = frozenset()
    """UDP: ``address:port`` of endpoints that a session may stay with although no new one goes there."""
    affinity_s: int = 0
    mark: int = 0
    """Packet mark of the relay's own connections, which no rule of ours redirects."""


class Arrange(msgspec.Struct, frozen=True, tag=True):
    """Create or change these pools; other pools stay unchanged."""

    pools: tuple[RelayPool, ...]


class Retire(msgspec.Struct, frozen=True, tag=True):
    """Retire these pools (``others``: all other pools): no rule leads to them, existing connections are served."""

    keys: tuple[str, ...]
    others: bool = False


class Drain(msgspec.Struct, frozen=True, tag=True):
    """Retire all pools and end with the last connection; an ``Arrange`` request cancels this."""


class Ask(msgspec.Struct, frozen=True, tag=True):
    """How the relay is."""


class Show(msgspec.Struct, frozen=True, tag=True):
    """What the relay serves."""


class Renew(msgspec.Struct, frozen=True, tag=True):
    """Continue as this program; sockets and connections stay."""

    argv: tuple[str, ...]


Request = Arrange | Retire | Drain | Ask | Show | Renew


class Arranged(msgspec.Struct, frozen=True, tag=True):
    """The port of each requested pool, the keys of new or changed pools, and the problem of each failed pool."""

    ports: dict[str, int]
    changed: tuple[str, ...]
    problems: dict[str, str] = {}


class Retired(msgspec.Struct, frozen=True, tag=True):
    """The pools that are retired now and were not before."""

    keys: tuple[str, ...]


class State(msgspec.Struct, frozen=True, tag=True, kw_only=True):
    """How the relay is."""

    build: str
    """The version of the program that runs."""
    pid: int
    """The worker's."""
    keeper: int
    ports: dict[str, int]
    connections: int
    sessions: int


class Shown(msgspec.Struct, frozen=True, tag=True):
    """The pools that rules may lead to, and the port of each."""

    pools: tuple[RelayPool, ...] = ()
    ports: dict[str, int] = {}


class Renewing(msgspec.Struct, frozen=True, tag=True):
    """The relay is replaced now and closes this connection."""


Answer = Arranged | Retired | State | Shown | Renewing

_ANY_REQUEST: msgspec.msgpack.Decoder[Request] = msgspec.msgpack.Decoder(Request)
_ANY_ANSWER: msgspec.msgpack.Decoder[Answer] = msgspec.msgpack.Decoder(Answer)


def frame(message: Request | Answer) -> bytes:
    """A message as it is sent."""
    body = msgspec.msgpack.encode(message)
    return LENGTH.pack(len(body)) + body


def parse_request(body: bytes) -> Request:
    """The request in a frame.

    Raises: msgspec.MsgspecError.
    """
    return _ANY_REQUEST.decode(body)


def parse_answer(body: bytes) -> Answer:
    """The answer in a frame.

    Raises: msgspec.MsgspecError.
    """
    return _ANY_ANSWER.decode(body)
