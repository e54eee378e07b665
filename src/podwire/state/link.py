"""Network devices as values.

A :class:`Link` has the desired settings of a device. A field with its default means any value: a comparison looks only
at the fields that are set. An empty ``kind`` is a device that another program made (``lo``, a physical card, a veth end
that its other namespace created): it is adjusted, never created or deleted.
"""

from typing import Any

from msgspec.structs import replace

from podwire.state import grammar
from podwire.state.address import mac_text
from podwire.state.grammar import Grammar, Option
from podwire.state.link_kinds import Attributes, kind_of
from podwire.state.value import Value, canonical

NAME_MAX = 15
"""Longest device name in bytes (IFNAMSIZ - 1, linux/if.h)."""


class Link(Value, frozen=True):
    """A network device.

    ``mtu`` in bytes, 0 for the kernel's choice. ``master`` is the bridge of which it is a port. ``peer`` is the name of
    the other end when ``kind`` is ``veth``, ``peer_netns`` the path of the namespace in which that end is created (it
    cannot be read back). ``device`` is the lower device and ``mode`` the mode of macvlan and ipvlan; for ``tun`` the
    mode is ``tun`` or ``tap``. ``index`` is requested at the creation, and always set when read. ``group`` is the
    device group number. ``hairpin`` lets a bridge port send frames back to their port; a ``locked`` port drops frames
    unless a forwarding entry says that their source is behind it. ``attributes`` are the options that only its kind has
    (``link_kinds``).
    """

    name: str
    kind: str = ""
    mtu: int = 0
    up: bool = True
    mac: str = ""
    alias: str = ""
    master: str = ""
    peer: str = ""
    peer_netns: str = ""
    attributes: Attributes | None = None
    device: str = ""
    mode: str = ""
    index: int = 0
    group: int = 0
    hairpin: bool = False
    locked: bool = False

    def __post_init__(self) -> None:
        if not 0 < len(self.name) <= NAME_MAX or "/" in self.name or " " in self.name:
            raise ValueError(f"{self.name!r} is not a device name: expected 1 to {NAME_MAX} bytes without / and space")
        if self.mac:
            canonical(self, "mac", mac_text(self.mac))
        attributes = kind_of(self.kind).attributes
        if (type(self.attributes) if self.attributes is not None else None) is not attributes:
            expected = f"attributes of type {attributes.__name__}" if attributes else "no attributes"
            raise ValueError(f"link {self.name}: a device of kind {self.kind!r} has {expected}")

    def __str__(self) -> str:
        tokens = ["link", *grammar.render(LINK, self, DEFAULTS)]
        if self.kind:
            tokens += ["type", self.kind]
            tokens += kind_of(self.kind).render(self.attributes or self)
        return " ".join(tokens)

    @property
    def lower(self) -> str:
        """The lower device: the underlay of a tunnel, the card of a macvlan; empty when it has none."""
        field = kind_of(self.kind).lower
        return str(getattr(self.attributes, field)) if field else self.device

    def over(self, lower: str) -> "Link":
        """The same device with another lower device."""
        field = kind_of(self.kind).lower
        if not field or self.attributes is None:
            return replace(self, device=lower)
        return replace(self, attributes=replace(self.attributes, **{field: lower}))


LINK = Grammar(
    "link",
    "name",
    (
        Option("index", "index", "number"),
        Option("mtu", "mtu", "number"),
        Option("address", "mac"),
        Option("master", "master"),
        Option("hairpin", "hairpin", "flag"),
        Option("locked", "locked", "flag"),
        Option("group", "group", "number"),
        Option("alias", "alias"),
        Option("up", "up", "switch", "down"),
    ),
)

DEFAULTS: dict[str, Any] = {"index": 0, "mtu": 0, "mac": "", "master": "", "group": 0, "alias": ""}


def parse(tokens: list[str]) -> Link:
    """The link that the words after ``link`` describe.

    Raises: ValueError naming the wrong word.
    """
    at = grammar.find(LINK, tokens, "type")
    if at is None:
        return Link(**grammar.parse(LINK, tokens))
    fields = grammar.parse(LINK, tokens[:at])
    kind, remaining = (tokens[at + 1], tokens[at + 2 :]) if len(tokens) > at + 1 else ("", [])
    if not kind:
        raise ValueError("expected a kind of device after 'type'")
    return Link(kind=kind, **fields, **kind_of(kind).parse(kind, remaining))
