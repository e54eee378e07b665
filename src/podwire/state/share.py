"""What each part of podwire wants of a kernel, as one document that prints and parses back.

A :class:`Share` is what one part (``cni``, ``routing``, ``proxy``, ``fabric``) states for one network namespace:
objects of ip(8), nftables tables, tables of iptables, sets of ipset(8) and virtual servers of IPVS, and the mark by
which its objects are known. A document is shares one after the
other; its last line is ``end``, so that a text that breaks off is never taken for a whole one::

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
from typing import Any

import msgspec

from podwire.errors import ConfigError
from podwire.state import grammar, ipset, iptables, ipvs, network
from podwire.state.grammar import Grammar, Option
from podwire.state.ipset import IpSet
from podwire.state.iptables import Ruleset
from podwire.state.ipvs import VirtualServer
from podwire.state.network import NetworkState, Owner
from podwire.state.nft import FAMILIES, Table
from podwire.state.nft_text import parse_table

END = "end"


class Share(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    """One part's whole share of one namespace.

    ``protocol`` and ``alias`` are its :class:`~podwire.state.network.Owner`; protocol 0 stands for a part that has
    tables alone. ``netns`` is the path of the namespace, empty for the node's own; ``pod`` the pod that lives in it.
    ``absent`` are the tables (family, name) that belong to the part and should not be there. ``note`` says why the
    share is not known now; nothing can be compared then.
    """

    part: str
    protocol: int = 0
    alias: str = ""
    netns: str = ""
    pod: str = ""
    note: str = ""
    state: NetworkState = NetworkState()
    tables: tuple[Table, ...] = ()
    rulesets: tuple[Ruleset, ...] = ()
    """Tables of iptables: podwire's chains in them, and the jumps there."""
    sets: tuple[IpSet, ...] = ()
    servers: tuple[VirtualServer, ...] = ()
    absent: tuple[tuple[str, str], ...] = ()

    def __str__(self) -> str:
        return "\n".join(self.lines())

    @property
    def owner(self) -> Owner | None:
        """The mark of its objects; None where it has none."""
        return Owner(route_protocol=self.protocol, alias_prefix=self.alias) if self.protocol else None

    @property
    def title(self) -> str:
        """The part, and the pod if it is about one."""
        return f"{self.part} {self.pod}" if self.pod else self.part

    def lines(self) -> Iterator[str]:
        """The text, a line at a time."""
        yield " ".join(["part", *grammar.render(_PART, self, _DEFAULTS)])
        yield from map(str, self.state.objects())
        for table in self.tables:
            yield from table.lines()
        for ruleset in self.rulesets:
            yield from ruleset.lines()
        for one in self.sets:
            yield from one.lines()
        for server in self.servers:
            yield from server.lines()
        for family, name in self.absent:
            yield f"no table {family} {name}"

    def located(self) -> Iterator[tuple[str, str]]:
        """Each object and each line of a table with where it belongs: ``proxy: table ip podwire-proxy``."""
        yield from ((self.title, str(value)) for value in self.state.objects())
        for table in self.tables:
            where = f"{self.title}: table {table.family} {table.name}"
            yield from ((where, line.strip()) for line in table.lines() if line)
        for ruleset in self.rulesets:
            where = f"{self.title}: {ruleset.title}"
            yield from ((where, line) for line in ruleset.lines() if line[0] in ":-")
        for one in self.sets:
            yield from ((f"{self.title}: set {one.name}", line) for line in one.lines())
        yield from ((f"{self.title}: ipvs", line) for server in self.servers for line in server.lines())


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

    Raises: ConfigError naming the part, or that the text breaks off.
    """
    found: list[Share] = []
    body: list[str] = []
    head: Share | None = None
    for line in lines:
        line = line.rstrip("\n")
        if line == END:
            return [*found, *_finished(head, body, source)]
        if line.startswith("part "):
            found += _finished(head, body, source)
            head, body = _parse_head(line, source), []
        else:
            body.append(line)
    raise ConfigError(source, "", f"the text breaks off: its last line is not {END!r}")


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
    pile = _Pile(where)
    for line in body:
        pile.put(line)
    if pile.inside:
        raise ConfigError(where, pile.inside[0], "no line `}` or `COMMIT` ends the table")
    state = network.parse("\n".join(pile.objects), where)
    try:
        sets, servers = ipset.parse(pile.sets), ipvs.parse(pile.servers)
    except ValueError as failure:
        raise ConfigError(where, "", str(failure)) from failure
    return [
        msgspec.structs.replace(
            head,
            state=state,
            tables=tuple(pile.tables),
            rulesets=tuple(pile.rulesets),
            sets=sets,
            servers=servers,
            absent=tuple(pile.absent),
        )
    ]


class _Pile:
    """The lines of a share, sorted by what they are about."""

    def __init__(self, where: str) -> None:
        self.where = where
        self.objects: list[str] = []
        self.sets: list[str] = []
        self.servers: list[str] = []
        self.tables: list[Table] = []
        self.rulesets: list[Ruleset] = []
        self.absent: list[tuple[str, str]] = []
        self.inside: list[str] = []
        """Lines of a table that has not ended yet."""

    def put(self, line: str) -> None:
        """Takes the next line."""
        if self.inside:
            self._put_inside(line)
        elif line.startswith(("table ", "*")):
            self.inside = [line]
        elif line.startswith("no table "):
            self.absent.append(_parse_absent(line, self.where))
        elif line.startswith(("create ", "add ")):
            self.sets.append(line)
        elif line.startswith(("-A ", "-a ")):
            self.servers.append(line)
        else:
            self.objects.append(line)

    def _put_inside(self, line: str) -> None:
        self.inside.append(line)
        if line == "}":
            self.tables.append(_parse_table(self.inside, self.where))
            self.inside = []
        elif line == "COMMIT":
            self.rulesets.append(_parse_ruleset(self.inside, self.where))
            self.inside = []


def _parse_table(lines: list[str], where: str) -> Table:
    words = lines[0].split()
    if len(words) != 4 or words[1] not in FAMILIES or words[3] != "{":
        raise ConfigError(where, lines[0], "a table begins: table FAMILY NAME {")
    return parse_table("\n".join(lines))


def _parse_ruleset(lines: list[str], where: str) -> Ruleset:
    try:
        return iptables.parse(lines)
    except ValueError as failure:
        raise ConfigError(where, lines[0], str(failure)) from failure


def _parse_absent(line: str, where: str) -> tuple[str, str]:
    words = line.split()
    if len(words) != 4 or words[2] not in FAMILIES:
        raise ConfigError(where, line, f"expected: no table FAMILY NAME, the family one of {', '.join(FAMILIES)}")
    return words[2], words[3]
