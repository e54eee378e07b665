"""The kinds of network devices: one row for each kind that has options of its own.

A row has the words after ``type KIND`` and the type of the value that holds them: a subclass of :class:`Attributes`, or
the :class:`~podwire.state.link.Link` itself. ``kernel.link_kinds`` has the rtnetlink encoding. A kind without options
(``bridge``, ``dummy``, ``wireguard``) needs no row.
"""

from collections.abc import Mapping
from functools import cache
from typing import Any, ClassVar, NamedTuple

from msgspec.structs import fields, replace

from podwire.state import grammar
from podwire.state.address import ip_text, is_v6
from podwire.state.grammar import Grammar, Option
from podwire.state.value import Value, canonical


class Attributes(Value, frozen=True):
    """The options of one kind of device, fixed at its creation but for those of ``adjustable``.

    Another value of a fixed option needs another device.
    """

    adjustable: ClassVar[tuple[str, ...]] = ()
    """The fields that the kernel changes while the device exists, without a lost packet."""

    def adjusts_to(self, other: "Attributes") -> bool:
        """Whether a device with these options can be given the others while it exists."""
        if type(self) is not type(other) or not self.adjustable:
            return False
        return other == replace(self, **{field: getattr(other, field) for field in self.adjustable})


class Vlan(Attributes, frozen=True):
    """The options of a vlan device (IEEE 802.1Q): ``vid`` is 0..4095, ``device`` the one that carries tagged frames."""

    vid: int
    device: str = ""


class Vxlan(Attributes, frozen=True):
    """The options of a vxlan device (RFC 7348).

    ``vni`` is 0..2**24-1; ``port`` the UDP destination port (8472 is Linux' own and flannel's, 4789 IANA's);
    ``local`` the outer source address; ``device`` the underlay device, empty for any; ``ttl`` 0 inherits.
    """

    vni: int
    port: int = 8472
    local: str = ""
    device: str = ""
    learning: bool = False
    ttl: int = 0

    adjustable: ClassVar[tuple[str, ...]] = ("local", "device")

    def __post_init__(self) -> None:
        if self.local:
            canonical(self, "local", ip_text(self.local))

    def adjusts_to(self, other: Attributes) -> bool:
        """As for all kinds; the family of the outer addresses is fixed, and an address or device cannot be removed."""
        if not super().adjusts_to(other):
            return False
        assert isinstance(other, Vxlan), "the type was compared"
        return bool(self.local and other.local) and is_v6(self.local) == is_v6(other.local) and bool(other.device)


class IpTunnel(Attributes, frozen=True):
    """The options of a device of kind ipip (RFC 2003) or sit (RFC 4213): IPv4 or IPv6 packets inside IPv4 packets.

    ``local`` is the outer source address; ``remote`` the outer destination, empty for the next hop of each route;
    ``ttl`` 0 inherits the inner packet's.
    """

    local: str = ""
    remote: str = ""
    ttl: int = 0

    def __post_init__(self) -> None:
        for field in ("local", "remote"):
            if text := getattr(self, field):
                canonical(self, field, ip_text(text))


class Geneve(Attributes, frozen=True):
    """The options of a geneve device (RFC 8926).

    ``external``: each route names the virtual network and the outer destination (its ``encap``); otherwise ``vni`` and
    ``remote`` do. ``port`` is the UDP destination port.
    """

    vni: int = 0
    remote: str = ""
    port: int = 6081
    external: bool = False

    def __post_init__(self) -> None:
        if self.remote:
            canonical(self, "remote", ip_text(self.remote))


@cache
def _defaults(struct: type[Value], always: tuple[str, ...]) -> Mapping[str, Any]:
    return {field.name: field.default for field in fields(struct) if field.name not in always}


class LinkKind(NamedTuple):
    """One kind of device."""

    options: tuple[Option, ...]
    """The words after ``type KIND``."""
    attributes: type[Attributes] | None = None
    """The type whose fields are the options; None: they are fields of the link."""
    lower: str = ""
    """The attribute that names the lower device; empty: the link's own field ``device``."""
    always: tuple[str, ...] = ()
    """Fields that are also printed when they have their default."""

    def render(self, holder: Value) -> list[str]:
        """The words of the options that differ from their defaults; ``holder`` has the fields."""
        return grammar.render(Grammar("", "", self.options), holder, _defaults(type(holder), self.always))

    def render_adjustable(self, attributes: Attributes) -> list[str]:
        """The words of the options that can be changed while the device exists."""
        options = tuple(option for option in self.options if option.field in attributes.adjustable)
        return grammar.render(Grammar("", "", options), attributes, {})

    def parse(self, kind: str, tokens: list[str]) -> dict[str, Any]:
        """The fields of the link in these words.

        Raises: ValueError naming the word that is unknown or missing.
        """
        values = grammar.parse(Grammar(f"type {kind}", "", self.options), tokens)
        if self.attributes is None:
            return values
        for field in fields(self.attributes):
            if field.required and field.name not in values:
                word = next(option.word for option in self.options if option.field == field.name)
                raise ValueError(f"type {kind} needs the word {word!r}")
        return {"attributes": self.attributes(**values)}


_IP_TUNNEL = (Option("local", "local"), Option("remote", "remote"), Option("ttl", "ttl", "number"))

KINDS: dict[str, LinkKind] = {
    "vlan": LinkKind((Option("link", "device"), Option("id", "vid", "number")), attributes=Vlan, lower="device"),
    "vxlan": LinkKind(
        (
            Option("id", "vni", "number"),
            Option("local", "local"),
            Option("dev", "device"),
            Option("dstport", "port", "number"),
            Option("ttl", "ttl", "number"),
            Option("learning", "learning", "switch", "nolearning"),
        ),
        attributes=Vxlan,
        lower="device",
        always=("port",),
    ),
    "ipip": LinkKind(_IP_TUNNEL, attributes=IpTunnel),
    "sit": LinkKind(_IP_TUNNEL, attributes=IpTunnel),
    "geneve": LinkKind(
        (
            Option("id", "vni", "number"),
            Option("remote", "remote"),
            Option("external", "external", "flag"),
            Option("dstport", "port", "number"),
        ),
        attributes=Geneve,
        always=("port",),
    ),
    "veth": LinkKind((Option("peer", "peer"), Option("netns", "peer_netns"))),
    "macvlan": LinkKind((Option("link", "device"), Option("mode", "mode"))),
    "ipvlan": LinkKind((Option("link", "device"), Option("mode", "mode"))),
    "tun": LinkKind((Option("mode", "mode"),)),
}

NO_OPTIONS = LinkKind(())
"""The row of every kind that has none in the list."""


def kind_of(name: str) -> LinkKind:
    """The row of a kind; the row without options when the list has none."""
    return KINDS.get(name, NO_OPTIONS)
