"""The desired kernel state of each part of podwire, as one document that prints and parses back.

A :class:`Share` is what one part (``cni``, ``routing``, ``proxy``, ``fabric``) states for one network namespace:
values of the kinds of :mod:`podwire.state.kinds`, and the mark by which its objects are known. A document is shares
one after the other; its last line is ``end``, so that an incomplete text is recognized::

    part routing protocol 113 alias podwire/routing
    route 10.244.2.0/24 via 10.244.2.0 dev podwire-vxlan onlink proto 113
    table inet podwire-masquerade {
        ...
    }
    no table inet podwire-routing

    end

Printing goes line by line: the Services of a large cluster are some hundred thousand lines.
"""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, TypeVar

import msgspec
from msgspec.structs import force_setattr

from podwire.errors import ConfigError
from podwire.state import grammar
from podwire.state.drift import Difference
from podwire.state.grammar import Grammar, Option
from podwire.state.kinds import KINDS, Kind, kind_of_line
from podwire.state.network import OwnerMark
from podwire.state.value import StateValue

END = "end"


V = TypeVar("V", bound=StateValue)


class Share(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    """One part's whole share of one namespace.

    ``protocol`` and ``alias`` are its :class:`~podwire.state.network.OwnerMark`; protocol 0 stands for a part without
    objects of ip(8). ``netns`` is the path of the namespace, empty for the node's own; ``pod`` the pod of the
    namespace. ``desired`` are the values in the order of their kinds. ``note`` says why the share is not known yet;
    such a share cannot be compared.
    """

    part: str
    protocol: int = 0
    alias: str = ""
    netns: str = ""
    pod: str = ""
    note: str = ""
    desired: tuple[StateValue, ...] = ()

    def __post_init__(self) -> None:
        stated = [value for value in self.desired if next(iter(value.lines()), None) is not None]
        by_kind = [value for kind in KINDS.values() for value in stated if type(value) is kind.type]
        if len(by_kind) != len(stated):
            unknown = sorted({type(value).__name__ for value in stated} - {k.type.__name__ for k in KINDS.values()})
            raise ValueError(f"share {self.part}: no kind of state has values of type {', '.join(unknown)}")
        force_setattr(self, "desired", tuple(by_kind))

    def __str__(self) -> str:
        return "\n".join(self.lines())

    @property
    def owner(self) -> OwnerMark | None:
        """The mark of its objects of ip(8); None without such objects."""
        return OwnerMark(route_protocol=self.protocol, alias_prefix=self.alias) if self.protocol else None

    @property
    def title(self) -> str:
        """The part, and the pod if the share has one."""
        return f"{self.part} {self.pod}" if self.pod else self.part

    def values(self, type_: type[V]) -> tuple[V, ...]:
        """The values of one type, in their order."""
        return tuple(value for value in self.desired if isinstance(value, type_))

    def lines(self) -> Iterator[str]:
        """The text, a line at a time."""
        yield " ".join(["part", *grammar.render(_PART, self, _DEFAULTS)])
        for value in self.desired:
            yield from value.lines()

    def located(self) -> Iterator[tuple[str, str]]:
        """Each object and each line of a table with its location: ``proxy: table ip podwire-proxy``."""
        for kind in KINDS.values():
            for value in self.values(kind.type):
                for place, line in kind.located(value):
                    yield f"{self.title}: {place}" if place else self.title, line

    def mark(self, kind: Kind) -> Any:
        """The owner mark that selects the share's values of a kind in a kernel; None: it has none."""
        return kind.mark(self.owner, self.values(kind.type))

    def compare(self, kind: Kind, present: Iterable[StateValue]) -> Iterator[Difference]:
        """The differences between the kernel's values of a kind under the share's mark and the share's values."""
        return kind.compare(self.title, tuple(present), self.values(kind.type), self.mark(kind))

    def missing(self) -> Iterator[Difference]:
        """The whole share as differences, for a namespace that does not exist."""
        place = f"{self.title} (its namespace is gone)"
        yield from (Difference(place, "+", line) for value in self.desired for line in value.lines())


_PART = Grammar(
    "part",
    "part",
    (
        Option("protocol", "protocol", "number"),
        Option("alias", "alias"),
        Option("pod", "pod"),
        Option("netns", "netns"),
        Option("note", "note"),
    ),
)
_DEFAULTS: Mapping[str, Any] = {"protocol": 0, "alias": "", "pod": "", "netns": "", "note": ""}


def render(shares: Iterable[Share]) -> Iterator[str]:
    """The lines of a document, without line ends."""
    for share in shares:
        yield from share.lines()
        yield ""
    yield END


def parse(lines: Iterable[str], source: str = "state") -> list[Share]:
    """The shares of a document.

    Raises: ConfigError naming the part, or saying that the text is incomplete.
    """
    shares: list[Share] = []
    body: list[str] = []
    head: Share | None = None
    for line in lines:
        line = line.rstrip("\n")
        if line == END:
            return [*shares, *_finished(head, body, source)]
        if line.startswith("part "):
            shares += _finished(head, body, source)
            head, body = _parse_head(line, source), []
        else:
            body.append(line)
    raise ConfigError(source, "", f"the text breaks off: expected {END!r} as its last line")


def _parse_head(line: str, source: str) -> Share:
    try:
        return Share(**grammar.parse(_PART, grammar.split(line)[1:]))
    except ValueError as failure:
        raise ConfigError(source, line[:60], str(failure)) from failure


def _finished(head: Share | None, body: list[str], source: str) -> list[Share]:
    if head is None:
        if any(line.strip() for line in body):
            raise ConfigError(source, "line 1", "a document begins with a line `part ...`")
        return []
    where = f"{source}, part {head.title}"
    lines = _by_kind(body, where)
    values: list[StateValue] = []
    for name, own in lines.items():
        try:
            values += KINDS[name].parse(own, where)
        except ValueError as failure:
            raise ConfigError(where, "", str(failure)) from failure
    return [msgspec.structs.replace(head, desired=tuple(values))]


def _by_kind(body: Iterable[str], where: str) -> dict[str, list[str]]:
    """The lines of a share by the name of their kind.

    Raises: ConfigError for a block without its last line.
    """
    lines_by_kind: dict[str, list[str]] = {}
    first, end, name = "", "", ""
    for line in body:
        if not end:
            name = kind_of_line(line)
            first, end = line, KINDS[name].end
        lines_by_kind.setdefault(name, []).append(line)
        if line == end:
            end = ""
    if end:
        raise ConfigError(where, first, f"no line `{end}` ends the block that begins here")
    return lines_by_kind
