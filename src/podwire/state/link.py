"""Network devices as values.

A :class:`Link` says what a device should be. Fields left at their default mean "whatever it is": a comparison
looks only at what was asked for. ``kind`` empty is a device that somebody else made (``lo``, a physical card,
a veth end that its other namespace created): it is adjusted, never created or deleted.
"""

from typing import Any

import msgspec

from podwire.state import grammar
from podwire.state.address import ip_text, mac_text
from podwire.state.grammar import Grammar, Option

NAME_MAX = 15
"""Longest device name in bytes (IFNAMSIZ - 1, linux/if.h)."""


class Value(msgspec.Struct, frozen=True, gc=False, omit_defaults=True, order=True):
    """The settings that all state values share: frozen, compared by field, trees without cycles."""


def canonical(value: Value, field: str, form: str | int | tuple[str, ...]) -> None:
    """Replaces a field by its canonical form, from ``__post_init__`` alone."""
    if getattr(value, field) != form:
        msgspec.structs.force_setattr(value, field, form)


class Vxlan(Value, frozen=True):
    """What is special about a vxlan device (RFC 7348).

    ``vni`` is 0..2**24-1; ``port`` the UDP destination port (8472 is Linux' own and flannel's, 4789 IANA's);
    ``local`` the outer source address; ``device`` the underlay device, empty for any; ``ttl`` 0 inherits.
    """

    vni: int
    port: int = 8472
    local: str = ""
    device: str = ""
    learning: bool = False
    ttl: int = 0

    def __post_init__(self) -> None:
        if self.local:
            canonical(self, "local", ip_text(self.local))


class Link(Value, frozen=True):
    """A network device.

    ``mtu`` in bytes, 0 for the kernel's choice. ``master`` is the bridge it is a port of. ``peer`` is the other
    end's name when ``kind`` is ``veth``, ``peer_netns`` the path of the namespace to create that end in (used
    on creation only, it cannot be read back). ``device`` is the lower device and ``mode`` the mode of macvlan
    and ipvlan; for ``tun`` the mode is ``tun`` or ``tap``. ``index`` is asked for on creation, and always filled in
    when read. ``group`` is the device group number. ``hairpin`` lets a bridge port send frames back out.
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
    vxlan: Vxlan | None = None
    device: str = ""
    mode: str = ""
    index: int = 0
    group: int = 0
    hairpin: bool = False

    def __post_init__(self) -> None:
        if not 0 < len(self.name) <= NAME_MAX or "/" in self.name or " " in self.name:
            raise ValueError(f"{self.name!r} is not a device name: 1 to {NAME_MAX} bytes without / and space")
        if self.mac:
            canonical(self, "mac", mac_text(self.mac))
        if (self.kind == "vxlan") != (self.vxlan is not None):
            raise ValueError(f"link {self.name}: kind vxlan and the vxlan field go together")

    def __str__(self) -> str:
        words = ["link", *grammar.render(LINK, self, DEFAULTS)]
        if self.kind:
            words += ["type", self.kind]
            if self.kind in KINDS:
                source = self.vxlan or self
                words += grammar.render(KINDS[self.kind], source, KIND_DEFAULTS)
        return " ".join(words)


LINK = Grammar(
    "link",
    "name",
    (
        Option("index", "index", "number"),
        Option("mtu", "mtu", "number"),
        Option("address", "mac"),
        Option("master", "master"),
        Option("hairpin", "hairpin", "flag"),
        Option("group", "group", "number"),
        Option("alias", "alias"),
        Option("up", "up", "switch", "down"),
    ),
)

KINDS: dict[str, Grammar] = {
    "vxlan": Grammar(
        "type vxlan",
        "",
        (
            Option("id", "vni", "number"),
            Option("local", "local"),
            Option("dev", "device"),
            Option("dstport", "port", "number"),
            Option("ttl", "ttl", "number"),
            Option("learning", "learning", "switch", "nolearning"),
        ),
    ),
    "veth": Grammar("type veth", "", (Option("peer", "peer"), Option("netns", "peer_netns"))),
    "macvlan": Grammar("type macvlan", "", (Option("link", "device"), Option("mode", "mode"))),
    "ipvlan": Grammar("type ipvlan", "", (Option("link", "device"), Option("mode", "mode"))),
    "tun": Grammar("type tun", "", (Option("mode", "mode"),)),
}
"""The words after ``type KIND``; a kind that is not here has none."""

DEFAULTS: dict[str, Any] = {"index": 0, "mtu": 0, "mac": "", "master": "", "group": 0, "alias": ""}
KIND_DEFAULTS: dict[str, Any] = {"local": "", "device": "", "ttl": 0, "peer": "", "peer_netns": "", "mode": ""}


def parse(words: list[str]) -> Link:
    """The link that the words after ``link`` describe.

    Raises: ValueError naming the word that is wrong.
    """
    if "type" not in words:
        return Link(**grammar.parse(LINK, words))
    at = words.index("type")
    fields = grammar.parse(LINK, words[:at])
    kind, rest = (words[at + 1], words[at + 2 :]) if len(words) > at + 1 else ("", [])
    if not kind:
        raise ValueError("a word is missing after 'type'")
    own = grammar.parse(KINDS.get(kind, Grammar(f"type {kind}", "", ())), rest)
    if kind == "vxlan":
        if "vni" not in own:
            raise ValueError("type vxlan needs an id")
        return Link(kind=kind, vxlan=Vxlan(**own), **fields)
    return Link(kind=kind, **fields, **own)
