"""nftables rules as data: operands, statements, rules; ``str()`` gives what ``nft list table`` prints.

An *operand* yields a value in registers: a packet field, ``numgen``, a concatenation, a masked value, the answer of a
map. A *statement* matches, or acts on the packet. Literal values are kept as canonical text (``10.0.0.0/8``,
``established,related``); their type is that of the operand they are compared with, as in nft's own syntax. Kernel
expressions that no statement here can express become :class:`Opaque`, which equals no desired rule and so is replaced.

Only forms that nft 1.0.6 can list are supported.
"""

from collections.abc import Iterable

import msgspec

from podwire.state.nft_fields import field_type
from podwire.state.nft_types import DataType, data_type


class LiteralValue(msgspec.Struct, frozen=True, gc=False):
    """A literal: an address, prefix, range, number, name, or several flags joined by commas."""

    text: str

    def __str__(self) -> str:
        return self.text


class Field(msgspec.Struct, frozen=True, gc=False):
    """A packet or connection field, see ``nft_fields``."""

    name: str

    def __str__(self) -> str:
        return self.name


class Numgen(msgspec.Struct, frozen=True, gc=False):
    """A number from ``offset`` to ``offset + modulus - 1``: random, or counting up (``inc``)."""

    modulus: int
    offset: int = 0
    mode: str = "random"

    def __str__(self) -> str:
        tail = f" offset {self.offset}" if self.offset else ""
        return f"numgen {self.mode} mod {self.modulus}{tail}"


class Masked(msgspec.Struct, frozen=True, gc=False):
    """A field with bits cleared (``&``), set (``|``) or flipped (``^``)."""

    field: Field
    op: str
    value: LiteralValue

    def __str__(self) -> str:
        return f"{self.field} {self.op} {self.value}"


class Concat(msgspec.Struct, frozen=True, gc=False):
    """Several operands side by side; a masked one is possible only in the key of an update, as in nft 1.0.6."""

    parts: tuple[Field | Numgen | Masked, ...]

    def __str__(self) -> str:
        return " . ".join(str(part) for part in self.parts)


class Mapped(msgspec.Struct, frozen=True, gc=False):
    """The answer of the map called ``map`` for ``key``; without an answer the rule ends and has no effect."""

    key: "Field | Numgen | Concat"
    map: str

    def __str__(self) -> str:
        return f"{self.key} map @{self.map}"


Operand = Field | Numgen | Masked | Concat | Mapped


class SetRef(msgspec.Struct, frozen=True, gc=False):
    """A named set of the same table."""

    name: str

    def __str__(self) -> str:
        return f"@{self.name}"


class Values(msgspec.Struct, frozen=True, gc=False):
    """An anonymous set of literals, in the order printed."""

    values: tuple[str, ...]

    def __str__(self) -> str:
        return "{ " + ", ".join(self.values) + " }"


class Match(msgspec.Struct, frozen=True, gc=False):
    """The rule continues only when ``left op right``; op is ``==`` or ``!=``, or a comparison with a number."""

    left: Operand
    right: LiteralValue | SetRef | Values
    op: str = "=="

    def __str__(self) -> str:
        shown = "" if self.op == "==" and not isinstance(self.left, Masked) else f"{self.op} "
        return f"{self.left} {shown}{self.right}"


class Verdict(msgspec.Struct, frozen=True, gc=False):
    """accept, drop, continue, return, or jump and goto with a chain."""

    kind: str
    chain: str = ""

    def __str__(self) -> str:
        return f"{self.kind} {self.chain}" if self.chain else self.kind


class VerdictMap(msgspec.Struct, frozen=True, gc=False):
    """The verdict that the map called ``map`` holds for ``key``."""

    key: Field | Numgen | Concat
    map: str

    def __str__(self) -> str:
        return f"{self.key} vmap @{self.map}"


class Assign(msgspec.Struct, frozen=True, gc=False):
    """Sets ``meta mark`` or ``ct mark``, or without connection tracking an address of the packet."""

    field: Field
    value: Operand | LiteralValue

    def __str__(self) -> str:
        return f"{self.field} set {self.value}"


class Nat(msgspec.Struct, frozen=True, gc=False):
    """``dnat`` or ``snat`` to a literal address and port, or to a map's answer.

    ``ports`` says that the map's data is ``address . port``; nft prints the family then.
    """

    kind: str
    family: str
    address: LiteralValue | Mapped | None = None
    port: LiteralValue | None = None
    ports: bool = False
    flags: tuple[str, ...] = ()

    def __str__(self) -> str:
        shown = f"{self.family} " if self.ports else ""
        target = "" if self.address is None else str(self.address)
        if self.port is not None:
            target = f"[{target}]" if ":" in target else target
            target += f":{self.port}"
        return " ".join((f"{self.kind} {shown}to {target}", *self.flags))


class Masquerade(msgspec.Struct, frozen=True, gc=False):
    """Masquerade: the source becomes the address of the outgoing interface; flags: random, fully-random, persistent."""

    flags: tuple[str, ...] = ()

    def __str__(self) -> str:
        return " ".join(("masquerade", *self.flags))


class Redirect(msgspec.Struct, frozen=True, gc=False):
    """Redirect to this machine, to ``port`` or to the unchanged port."""

    port: LiteralValue | None = None

    def __str__(self) -> str:
        return "redirect" if self.port is None else f"redirect to :{self.port}"


class Reject(msgspec.Struct, frozen=True, gc=False):
    """Reject with an error message; ``how`` is empty (port unreachable) or as in nft."""

    how: str = ""

    def __str__(self) -> str:
        return f"reject with {self.how}" if self.how else "reject"


class Counter(msgspec.Struct, frozen=True, gc=False):
    """Counts packets and bytes; the numbers are not part of the desired state."""

    packets: int = 0
    bytes: int = 0

    def __str__(self) -> str:
        return f"counter packets {self.packets} bytes {self.bytes}"


class LogStatement(msgspec.Struct, frozen=True, gc=False):
    """A kernel log line, or a message to netlink group ``group`` when that is not None."""

    prefix: str = ""
    level: str = ""
    group: int | None = None

    def __str__(self) -> str:
        text = "log"
        if self.prefix:
            text += f' prefix "{self.prefix}"'
        if self.level:
            text += f" level {self.level}"
        return text if self.group is None else f"{text} group {self.group}"


class Limit(msgspec.Struct, frozen=True, gc=False):
    """Continues for at most ``rate`` packets per ``unit``; with ``over`` for the packets above the rate."""

    rate: int
    unit: str
    burst: int = 5
    over: bool = False

    def __str__(self) -> str:
        tail = "" if self.burst == 5 else f" burst {self.burst} packets"
        return f"limit rate {'over ' if self.over else ''}{self.rate}/{self.unit}{tail}"


class ConnectionCount(msgspec.Struct, frozen=True, gc=False):
    """Continues for connections above the number ``count`` that exist with one key of a set."""

    count: int

    def __str__(self) -> str:
        return f"ct count over {self.count}"


class SynProxy(msgspec.Struct, frozen=True, gc=False):
    """Answers SYN packets with cookies, and connects to the server when the client has answered (Linux 5.3)."""

    mss: int = 1460
    wscale: int = 7

    def __str__(self) -> str:
        return f"synproxy mss {self.mss} wscale {self.wscale} timestamp sack-perm"


class Update(msgspec.Struct, frozen=True, gc=False):
    """Puts ``key`` into a dynamic set (``add``, ``update``: also renews its time, ``delete``).

    With ``data``, into a dynamic map; an existing entry keeps its data. The data must fit into one register. With
    ``bound``, each element has a rate or a number of connections of its own, and the rule continues above it.
    """

    op: str
    set: str
    key: Field | Concat
    data: Field | Numgen | None = None
    timeout_s: int = 0
    bound: Limit | ConnectionCount | None = None

    def __str__(self) -> str:
        timeout = f" timeout {duration(self.timeout_s)}" if self.timeout_s else ""
        bound = "" if self.bound is None else f" {self.bound}"
        data = "" if self.data is None else f" : {self.data}"
        return f"{self.op} @{self.set} {{ {self.key}{timeout}{bound}{data} }}"


class Notrack(msgspec.Struct, frozen=True, gc=False):
    """Excludes the packet from connection tracking."""

    def __str__(self) -> str:
        return "notrack"


class Opaque(msgspec.Struct, frozen=True, gc=False):
    """Kernel expressions that this package cannot express, by name."""

    name: str

    def __str__(self) -> str:
        return f"<{self.name}>"


Statement = (
    Match
    | Verdict
    | VerdictMap
    | Assign
    | Nat
    | Masquerade
    | Redirect
    | Reject
    | Counter
    | LogStatement
    | Limit
    | Update
    | Notrack
    | SynProxy
    | Opaque
)


class Rule(msgspec.Struct, frozen=True, gc=False):
    """Statements from left to right, and a comment."""

    statements: tuple[Statement, ...]
    comment: str = ""

    def __str__(self) -> str:
        tail = f' comment "{self.comment}"' if self.comment else ""
        return " ".join(str(statement) for statement in self.statements) + tail

    @property
    def without_counts(self) -> "Rule":
        """The rule without counter values; rules are compared in this form."""
        if not any(isinstance(statement, Counter) for statement in self.statements):
            return self
        return Rule(tuple(Counter() if isinstance(s, Counter) else s for s in self.statements), self.comment)


def duration(seconds: int) -> str:
    """``3h``, ``1m30s``: seconds as nft prints them."""
    text = ""
    for unit, size in (("d", 86400), ("h", 3600), ("m", 60), ("s", 1)):
        count, seconds = divmod(seconds, size)
        text += f"{count}{unit}" if count else ""
    return text or "0s"


def operand_types(operand: Operand, map_types: Iterable[str] = ()) -> tuple[DataType, ...]:
    """The types of an operand's values; ``map_types`` are those of a map's answer."""
    if isinstance(operand, Field):
        return (field_type(operand.name).type,)
    if isinstance(operand, Numgen):
        return (data_type("slot"),)
    if isinstance(operand, Masked):
        return operand_types(operand.field)
    if isinstance(operand, Concat):
        return tuple(kind for part in operand.parts for kind in operand_types(part))
    return tuple(data_type(name) for name in map_types)
