"""The messages between the data plane and the relay: one request, one answer, over a unix socket (pure).

A frame is a length of four bytes and a msgpack document. The socket is in the abstract namespace, so each network
namespace has its own relay and no path is needed. Both sides check that the other side runs as root.
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
    """The address of this node on which the relay listens."""
    endpoints: tuple[Target, ...]
    serving: frozenset[str] = frozenset()
    """UDP: ``address:port`` of all endpoints that still serve; existing sessions with these continue."""
    affinity_s: int = 0
    mark: int = 0
    """Packet mark of the relay's own connections; no rule redirects packets with this mark."""


class Arrange(msgspec.Struct, frozen=True, tag=True):
    """Create or change these pools; other pools stay unchanged."""

    pools: tuple[RelayPool, ...]


class Retire(msgspec.Struct, frozen=True, tag=True):
    """Retire these pools (``all_others``: all other pools): no rule leads to them, existing connections are served."""

    keys: tuple[str, ...]
    all_others: bool = msgspec.field(default=False, name="others")


class Drain(msgspec.Struct, frozen=True, tag=True):
    """Retire all pools and end with the last connection; an ``Arrange`` request cancels this."""


class Ask(msgspec.Struct, frozen=True, tag=True):
    """Ask for the state of the relay."""


class Show(msgspec.Struct, frozen=True, tag=True):
    """Ask for the pools that the relay serves."""


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
    """The pools that this request retired."""

    keys: tuple[str, ...]


class State(msgspec.Struct, frozen=True, tag=True, kw_only=True):
    """The state of the relay."""

    build: str
    """The version of the running program."""
    pid: int
    """The process id of the worker."""
    keeper: int
    """The process id of the keeper."""
    ports: dict[str, int]
    connections: int
    sessions: int


class Shown(msgspec.Struct, frozen=True, tag=True):
    """The pools that are not retired, and the port of each."""

    pools: tuple[RelayPool, ...] = ()
    ports: dict[str, int] = {}


class Renewing(msgspec.Struct, frozen=True, tag=True):
    """The relay now replaces itself and closes this connection."""


Answer = Arranged | Retired | State | Shown | Renewing

_ANY_REQUEST: msgspec.msgpack.Decoder[Request] = msgspec.msgpack.Decoder(Request)
_ANY_ANSWER: msgspec.msgpack.Decoder[Answer] = msgspec.msgpack.Decoder(Answer)


def frame(message: Request | Answer) -> bytes:
    """A message as bytes on the socket."""
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
