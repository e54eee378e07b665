"""Open vSwitch as a value: the bridges of one ovs-vswitchd, with their ports and flows, and the routes of its tunnels.

The text has one line for the switch, which is named by the directory of its sockets, and one for each object of it; a
flow is written as ovs-ofctl(8) takes and prints it (Open vSwitch 3.1)::

    ovs /run/podwire/routing/ovs
    ovs-bridge podwire-ovs-br datapath netdev
    ovs-port podwire-ovs-br podwire-ovs type tap number 1
    ovs-port podwire-ovs-br podwire-ovs-t type geneve number 2 options dst_port=6082,key=4096,remote_ip=flow
    ovs-flow podwire-ovs-br priority=100,ip,in_port=1,nw_dst=10.1.0.0/24 actions=set_field:192.0.2.12->tun_dst,output:2
    ovs-route 0.0.0.0/0 bridge podwire-ovs-u via 169.254.82.2 address 02:00:00:00:00:07 mark 112

Owner marks: bridges and ports of podwire have :data:`OWNER` in ``external_ids``, flows have the cookie :data:`COOKIE`.
The routes are those that a user has added; the database has none of them, ovs-vswitchd forgets them when it ends.
"""

import re
from collections.abc import Iterable, Iterator
from ipaddress import ip_network
from typing import Any, NamedTuple

from podwire.state import grammar
from podwire.state.address import ip_text, mac_text, network_text
from podwire.state.grammar import Grammar, Option
from podwire.state.value import Value, canonical

COOKIE = 0x706F6477697265
"""The cookie of the flows of podwire: its name in ASCII."""
OWNER = "podwire"
"""The key in ``external_ids`` of the bridges and ports of podwire."""
_FLOW = re.compile(r"(?:.*?[\s,])??priority=(\d+)(?:,(\S*?))?[\s,]+actions=(\S+)$")
_OTHER_TABLE = re.compile(r"\btable=(?!0\b)")
_COOKIE = re.compile(r"cookie=(0x[0-9a-f]+)")


class OvsFlow(Value, frozen=True):
    """A flow of table 0; ``match`` and ``actions`` are in the form that ovs-ofctl prints, an empty match is all."""

    priority: int
    match: str
    actions: str

    def __str__(self) -> str:
        return f"{self.key} actions={self.actions}"

    @property
    def key(self) -> str:
        """Priority and match, which identify a flow within its bridge."""
        return f"priority={self.priority},{self.match}" if self.match else f"priority={self.priority}"


class OvsPort(Value, frozen=True):
    """A port of a bridge and its one interface.

    ``type`` is that of the interface: ``system`` (a device that exists), ``tap``, or a tunnel. ``number`` is its number
    in flows. ``options`` are of the form ``key=value``, sorted.
    """

    name: str
    type: str
    number: int
    options: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        canonical(self, "options", tuple(sorted(self.options)))

    def line(self, bridge: str) -> str:
        """The line of the port below its bridge."""
        tokens = grammar.render(_PORT, self, {})
        options = ["options", grammar.quote(",".join(self.options))] if self.options else []
        return " ".join(["ovs-port", bridge, *tokens, *options])


class OvsBridge(Value, frozen=True):
    """A bridge; ``datapath`` is ``system`` (the kernel forwards) or ``netdev`` (ovs-vswitchd forwards).

    ``mac`` is the hardware address of its own device, empty for any. A bridge forwards by its flows alone.
    """

    name: str
    datapath: str
    mac: str = ""
    ports: tuple[OvsPort, ...] = ()
    flows: tuple[OvsFlow, ...] = ()

    def __post_init__(self) -> None:
        if self.mac:
            canonical(self, "mac", mac_text(self.mac))
        canonical(self, "ports", tuple(sorted(self.ports)))
        canonical(self, "flows", tuple(sorted(self.flows)))
        _refuse_twice(f"two ports of {self.name} have the number", (str(port.number) for port in self.ports))
        _refuse_twice(f"two flows of {self.name} have the match", (flow.key for flow in self.flows))

    def lines(self) -> Iterator[str]:
        """The text, a line at a time."""
        yield " ".join(["ovs-bridge", *grammar.render(_BRIDGE, self, {"mac": ""})])
        yield from (port.line(self.name) for port in self.ports)
        yield from (f"ovs-flow {self.name} {flow}" for flow in self.flows)


class OvsRoute(Value, frozen=True):
    """A route of the outer packets of a datapath ``netdev``: out of ``bridge``, to the neighbour ``via``.

    ``mac`` is the hardware address of the neighbour; ``mark`` the mark of the packets that take the route.
    """

    network: str
    bridge: str
    via: str
    mac: str
    mark: int

    def __post_init__(self) -> None:
        canonical(self, "network", network_text(self.network))
        canonical(self, "via", ip_text(self.via))
        canonical(self, "mac", mac_text(self.mac))

    def __str__(self) -> str:
        return " ".join(["ovs-route", *grammar.render(_ROUTE, self, {})])

    @property
    def version(self) -> int:
        """The IP version."""
        return ip_network(self.network).version


class OvsSwitch(Value, frozen=True):
    """The share of podwire in one ovs-vswitchd; ``control`` is the directory of its sockets.

    ``bridges`` are in the order of their names.
    """

    control: str
    bridges: tuple[OvsBridge, ...] = ()
    routes: tuple[OvsRoute, ...] = ()

    def __post_init__(self) -> None:
        canonical(self, "bridges", tuple(sorted(self.bridges)))
        canonical(self, "routes", tuple(sorted(self.routes)))

    def __str__(self) -> str:
        return "\n".join(self.lines())

    def lines(self) -> Iterator[str]:
        """The text, a line at a time."""
        yield f"ovs {grammar.quote(self.control)}"
        for bridge in self.bridges:
            yield from bridge.lines()
        yield from map(str, self.routes)


class FlowChanges(NamedTuple):
    """The changes that give a bridge the desired flows; an added flow replaces the one with its priority and match."""

    add: tuple[OvsFlow, ...]
    delete: tuple[OvsFlow, ...]

    def commands(self) -> Iterator[str]:
        """The lines for ``ovs-ofctl --bundle add-flows``, which takes them in order.

        Deletions come first: of a flow that Open vSwitch prints in another way than it was written, they delete what
        is added again right after.
        """
        yield from (f"delete_strict cookie={COOKIE:#x}/-1,{flow.key}" for flow in self.delete)
        yield from (f"add cookie={COOKIE:#x},{flow}" for flow in self.add)


def flow_changes(present: Iterable[OvsFlow], desired: Iterable[OvsFlow]) -> FlowChanges:
    """The difference of flows; both have podwire's cookie."""
    held, planned = ({flow.key: flow for flow in flows} for flows in (present, desired))
    add = (flow for key, flow in planned.items() if held.get(key) != flow)
    delete = (flow for key, flow in held.items() if key not in planned)
    return FlowChanges(tuple(add), tuple(delete))


def parse_flow(text: str) -> OvsFlow:
    """A flow in the form of ovs-ofctl; cookie and statistics before the priority are left out.

    Raises: ValueError for another text.
    """
    match = _FLOW.match(text.strip())
    if match is None:
        raise ValueError(f"{text!r} is not a flow: expected priority=NUMBER[,MATCH] actions=ACTIONS")
    return OvsFlow(int(match[1]), match[2] or "", match[3])


def own_flows(dump: str) -> tuple[OvsFlow, ...]:
    """The flows of podwire in the answer of ``ovs-ofctl dump-flows``."""
    lines = (line for line in dump.splitlines() if "actions=" in line and not _OTHER_TABLE.search(line))
    marked = ((match, line) for line in lines if (match := _COOKIE.search(line)) is not None)
    return tuple(parse_flow(line) for match, line in marked if int(match[1], 16) == COOKIE)


_BRIDGE = Grammar("ovs-bridge", "name", (Option("datapath", "datapath"), Option("address", "mac")))
_PORT = Grammar("ovs-port", "name", (Option("type", "type"), Option("number", "number", "number")))
_PORT_LINE = Grammar(_PORT.noun, _PORT.positional, (*_PORT.options, Option("options", "options")))
_ROUTE = Grammar(
    "ovs-route",
    "network",
    (
        Option("bridge", "bridge"),
        Option("via", "via"),
        Option("address", "mac"),
        Option("mark", "mark", "number"),
    ),
)


class _Draft:
    """A switch whose lines are being read."""

    def __init__(self, control: str) -> None:
        self._control = control
        self._bridges: dict[str, dict[str, Any]] = {}
        self._ports: dict[str, list[OvsPort]] = {}
        self._flows: dict[str, list[OvsFlow]] = {}
        self._routes: list[OvsRoute] = []

    def add(self, line: str, noun: str, tokens: list[str]) -> None:
        """Reads one line, whose tokens are ``noun`` and ``tokens``.

        Raises: ValueError.
        """
        if noun == _BRIDGE.noun:
            fields = _fields(_BRIDGE, tokens, line, "datapath")
            self._bridges[fields["name"]] = fields
            self._ports[fields["name"]], self._flows[fields["name"]] = [], []
        elif noun == _ROUTE.noun:
            self._routes.append(OvsRoute(**_fields(_ROUTE, tokens, line, "bridge", "via", "mac", "mark")))
        elif noun not in (_PORT.noun, "ovs-flow"):
            raise ValueError(f"{line!r} begins with {noun!r}: expected ovs-bridge, ovs-port, ovs-flow or ovs-route")
        elif not tokens or tokens[0] not in self._bridges:
            raise ValueError(f"{line!r} is below no line `ovs-bridge NAME` of its bridge")
        elif noun == _PORT.noun:
            fields = _fields(_PORT_LINE, tokens[1:], line, "type", "number")
            options = fields.pop("options", "")
            self._ports[tokens[0]].append(OvsPort(**fields, options=tuple(options.split(",")) if options else ()))
        else:
            self._flows[tokens[0]].append(parse_flow(" ".join(tokens[1:])))

    def switch(self) -> OvsSwitch:
        """The switch of all lines."""
        bridges = tuple(
            OvsBridge(**fields, ports=tuple(self._ports[name]), flows=tuple(self._flows[name]))
            for name, fields in self._bridges.items()
        )
        return OvsSwitch(self._control, bridges, tuple(self._routes))


def parse(lines: Iterable[str]) -> tuple[OvsSwitch, ...]:
    """The switches of a text, in its order.

    Raises: ValueError naming the wrong word, or the bridge that a line names and no line above declares.
    """
    drafts: list[_Draft] = []
    for line in lines:
        noun, *tokens = grammar.split(line) or [""]
        if noun == "ovs":
            if len(tokens) != 1:
                raise ValueError(f"{line!r} needs one word, the directory of the sockets")
            drafts.append(_Draft(tokens[0]))
        elif not drafts:
            raise ValueError(f"{line!r} is below no line `ovs DIRECTORY`")
        else:
            drafts[-1].add(line, noun, tokens)
    return tuple(draft.switch() for draft in drafts)


def _fields(form: Grammar, tokens: list[str], line: str, *needed: str) -> dict[str, Any]:
    fields = grammar.parse(form, tokens)
    for option in form.options:
        if option.field in needed and option.field not in fields:
            raise ValueError(f"{line!r} needs the word {option.word!r}")
    return fields


def _refuse_twice(problem: str, texts: Iterable[str]) -> None:
    known: set[str] = set()
    for text in texts:
        if text in known:
            raise ValueError(f"{problem} {text}")
        known.add(text)
