"""Sets of addresses and ports that iptables rules match, as ipset(8) has them: values, text form, parser.

The text form is that of ``ipset save``: a line ``create KUBE-CLUSTER-IP hash:ip,port family inet hashsize 1024 maxelem
65536``, then lines such as ``add KUBE-CLUSTER-IP 10.96.0.10,tcp:80``.

Elements are texts in the kernel's own form (:func:`element_text`), so equal elements are equal texts: addresses are
canonical, networks have no host bits and no length when they are one address, protocols are in lower case. The kernel
keeps elements in no order; the text form sorts them. The text form lacks ``bucketsize``, ``initval`` (both chosen by
the kernel) and counters; the parser ignores them.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from ipaddress import ip_address, ip_network
from typing import Any, Literal

import msgspec

Family = Literal["inet", "inet6"]

KINDS: dict[str, tuple[str, ...]] = {
    "hash:ip": ("ip",),
    "hash:ip,port": ("ip", "port"),
    "hash:ip,port,ip": ("ip", "port", "ip"),
    "hash:ip,port,net": ("ip", "port", "net"),
    "hash:net": ("net",),
    "hash:net,iface": ("within", "device"),
    "bitmap:port": ("number",),
}
"""The supported types, each with the fields of an element."""

NAME_MAX = 31
"""Bytes of a name: IPSET_MAXNAMELEN of linux/netfilter/ipset/ip_set.h, without the final zero."""
COMMENT_MAX = 255
DEVICE_MAX = 15

PROTOCOLS: dict[str, int] = {"icmp": 1, "tcp": 6, "udp": 17, "icmpv6": 58, "sctp": 132, "udplite": 136}
"""Protocols with a name; every other protocol is a number. ``icmp:8/0`` is type and code."""


class IpSetElement(msgspec.Struct, frozen=True, gc=False):
    """The options of an element."""

    timeout_s: int | None = None
    """Seconds until the kernel deletes the element, 0: never; None: the set's timeout, or a set without timeouts."""
    comment: str = ""
    nomatch: bool = False
    """An exception in a set of networks."""
    mark: tuple[int, int] | None = None
    """The mark that ``-j SET --map-set`` sets on a packet, and its mask; None: no mark."""

    def options(self) -> str:
        """The text behind the key, with a space before it; empty without options."""
        timeout = f" timeout {self.timeout_s}" if self.timeout_s is not None else ""
        nomatch = " nomatch" if self.nomatch else ""
        comment = f' comment "{self.comment}"' if self.comment else ""
        mark = f" skbmark 0x{self.mark[0]:x}/0x{self.mark[1]:x}" if self.mark is not None else ""
        return timeout + nomatch + comment + mark


PLAIN = IpSetElement()


class IpSet(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    """One set."""

    name: str
    kind: str
    """A key of ``KINDS``."""
    family: Family = "inet"
    """The family of its addresses; ignored for ``bitmap:port``."""
    hashsize: int = 1024
    """Initial buckets, a power of two; the kernel adds buckets as needed."""
    maxelem: int = 65536
    """The largest number of elements; the kernel refuses more."""
    timeout_s: int | None = None
    """Timeout of elements without their own, 0: never; None: elements have no timeouts."""
    comment: bool = False
    """Whether elements may have comments."""
    marks: bool = False
    """Whether elements may have marks."""
    ports: tuple[int, int] = (0, 65535)
    """First and last of ``bitmap:port``."""
    elements: Mapping[str, IpSetElement] = {}

    @property
    def declaration(self) -> tuple[object, ...]:
        """The fields that must be equal for one set to become another by changes of elements alone."""
        if self.kind == "bitmap:port":
            return self.kind, self.ports, self.timeout_s, self.comment, self.marks
        return self.kind, self.family, self.maxelem, self.timeout_s, self.comment, self.marks

    def __str__(self) -> str:
        return "\n".join(self.lines())

    def lines(self) -> Iterator[str]:
        """The text, a line at a time."""
        yield self.created()
        for key in sorted(self.elements):
            yield self.added(key)

    def created(self) -> str:
        """The line that creates the set."""
        if self.kind == "bitmap:port":
            shape = f"range {self.ports[0]}-{self.ports[1]}"
        else:
            shape = f"family {self.family} hashsize {self.hashsize} maxelem {self.maxelem}"
        timeout = f" timeout {self.timeout_s}" if self.timeout_s is not None else ""
        flags = (" comment" if self.comment else "") + (" skbinfo" if self.marks else "")
        return f"create {self.name} {self.kind} {shape}{timeout}{flags}"

    def added(self, key: str) -> str:
        """The line that adds one of its elements."""
        return f"add {self.name} {key}{self.elements[key].options()}"

    def check(self) -> None:
        """Checks the set.

        Raises: ValueError naming the value that the kernel would refuse.
        """
        if not 0 < len(self.name.encode()) <= NAME_MAX or self.name.split() != [self.name]:
            raise ValueError(f"set {self.name!r}: a name is one word of up to {NAME_MAX} bytes")
        if self.kind not in KINDS:
            raise ValueError(f"set {self.name}: unknown type {self.kind!r}: expected one of {', '.join(KINDS)}")
        for key, element in self.elements.items():
            self._check_element(key, element)

    def _check_element(self, key: str, element: IpSetElement) -> None:
        where = f"set {self.name}: element {key!r}"
        try:
            canonical = element_text(self.kind, key)
        except ValueError as failure:
            raise ValueError(f"{where}: {failure}") from failure
        if canonical != key:
            raise ValueError(f"{where}: the canonical form is {canonical!r}")
        if element.comment and not self.comment:
            raise ValueError(f"{where}: the set is declared without comments")
        if set(element.comment) & set('"\n') or len(element.comment.encode()) > COMMENT_MAX:
            raise ValueError(f"{where}: a comment is a line of up to {COMMENT_MAX} bytes without double quotes")
        if element.timeout_s is not None and self.timeout_s is None:
            raise ValueError(f"{where}: the set is declared without timeouts")
        if element.nomatch and "net" not in KINDS[self.kind]:
            raise ValueError(f"{where}: only sets of networks have elements with nomatch")
        if element.mark is not None and not self.marks:
            raise ValueError(f"{where}: the set is declared without marks")


def plain(keys: Iterable[str]) -> dict[str, IpSetElement]:
    """Elements without options."""
    return dict.fromkeys(keys, PLAIN)


def element_text(kind: str, text: str) -> str:
    """The canonical form of an element.

    Raises: ValueError.
    """
    parts = KINDS[kind]
    components = text.split(",")
    if len(components) != len(parts):
        raise ValueError(f"expected {len(parts)} comma-separated fields in an element of type {kind}, not {text!r}")
    return ",".join(_PARTS[part](word) for part, word in zip(parts, components, strict=True))


def _network(value: str) -> str:
    network = ip_network(value)
    if not network.prefixlen:
        raise ValueError("the kernel refuses a network of prefix length 0: write two networks of prefix length 1")
    return str(network.network_address) if network.prefixlen == network.max_prefixlen else str(network)


def _port(value: str) -> str:
    protocol, separator, port = value.partition(":")
    name = protocol.lower() if separator else "tcp"
    known = PROTOCOLS.get(name)
    if known is None and not (name.isdecimal() and 0 < int(name) < 256):
        raise ValueError(f"unknown protocol {protocol!r}: expected a number or one of {', '.join(PROTOCOLS)}")
    text = port if separator else value
    if name.startswith("icmp"):
        kind, _, code = text.partition("/")
        return f"{name}:{_within(kind, 255)}/{_within(code, 255)}"
    return f"{name}:{_within(text, 65535)}"


def _within(word: str, maximum: int) -> int:
    if not word.isdecimal() or int(word) > maximum:
        raise ValueError(f"{word!r} is not a number from 0 to {maximum}")
    return int(word)


def _device(word: str) -> str:
    if not 0 < len(word.encode()) <= DEVICE_MAX or word.split() != [word]:
        raise ValueError(f"{word!r} is not the name of a device")
    return word


def _within_network(word: str) -> str:
    network = ip_network(word)
    return str(network.network_address) if network.prefixlen == network.max_prefixlen else str(network)


_PARTS: dict[str, Callable[[str], str]] = {
    "ip": lambda word: str(ip_address(word)),
    "net": _network,
    "port": _port,
    "number": lambda word: str(_within(word, 65535)),
    "within": _within_network,
    "device": _device,
}


_WORD = re.compile(r'"([^"]*)"|(\S+)')
"""ipset(8) has quoted words, but no escape character inside them."""


def parse(lines: Iterable[str]) -> tuple[IpSet, ...]:
    """The sets in a text form, such as the output of ``ipset save``.

    Raises: ValueError naming the wrong line.
    """
    sets: dict[str, IpSet] = {}
    elements: dict[str, dict[str, IpSetElement]] = {}
    for line in lines:
        tokens = [plain or quoted for quoted, plain in _WORD.findall(line)]
        if not tokens:
            continue
        try:
            verb, name, kind_or_element, *arguments = tokens
            if verb == "create":
                sets[name] = _parse_created(name, kind_or_element, arguments)
                elements[name] = {}
            elif verb == "add":
                elements[name][element_text(sets[name].kind, kind_or_element)] = _parse_element(arguments)
            else:
                raise ValueError(f"unknown command {verb!r}: expected create or add")
        except KeyError as failure:
            raise ValueError(f"{line!r}: set {failure} was not created") from failure
        except ValueError as failure:
            raise ValueError(f"{line!r}: {failure}") from failure
    return tuple(msgspec.structs.replace(ipset, elements=elements[name]) for name, ipset in sets.items())


_FLAGS: dict[str, dict[str, Any]] = {"comment": {"comment": True}, "skbinfo": {"marks": True}, "counters": {}}
_PASSED_OVER = ("bucketsize", "initval", "packets", "bytes")


def _options(tokens: list[str], flags: tuple[str, ...]) -> Iterator[tuple[str, str]]:
    """Pairs of an option and its value; flags have none."""
    remaining = iter(tokens)
    for word in remaining:
        if word in flags:
            yield word, ""
            continue
        value = next(remaining, None)
        if value is None:
            raise ValueError(f"expected a value after {word!r}")
        if word not in _PASSED_OVER:
            yield word, value


def _parse_created(name: str, kind: str, tokens: list[str]) -> IpSet:
    if kind not in KINDS:
        raise ValueError(f"unknown type {kind!r}: expected one of {', '.join(KINDS)}")
    fields: dict[str, Any] = {}
    for word, value in _options(tokens, tuple(_FLAGS)):
        if word == "family":
            if value not in ("inet", "inet6"):
                raise ValueError(f"unknown family {value!r}: expected inet or inet6")
            fields["family"] = value
        elif word in ("hashsize", "maxelem"):
            fields[word] = _within(value, 0xFFFFFFFF)
        elif word == "timeout":
            fields["timeout_s"] = _within(value, 0xFFFFFFFF)
        elif word == "range":
            first, _, last = value.partition("-")
            fields["ports"] = (_within(first, 65535), _within(last, 65535))
        elif word in _FLAGS:
            fields |= _FLAGS[word]
        else:
            raise ValueError(f"unknown option {word!r}")
    return IpSet(name=name, kind=kind, **fields)


def _mark(text: str) -> tuple[int, int]:
    value, _, mask = text.partition("/")
    try:
        return int(value, 16), int(mask or "0xffffffff", 16)
    except ValueError as failure:
        raise ValueError(f"{text!r} is not a mark, such as 0x10/0xff") from failure


def _parse_element(tokens: list[str]) -> IpSetElement:
    fields: dict[str, Any] = {}
    for word, value in _options(tokens, ("nomatch",)):
        if word == "timeout":
            fields["timeout_s"] = _within(value, 0xFFFFFFFF)
        elif word == "nomatch":
            fields["nomatch"] = True
        elif word == "comment":
            fields["comment"] = value
        elif word == "skbmark":
            fields["mark"] = _mark(value)
        else:
            raise ValueError(f"unknown option {word!r}")
    return IpSetElement(**fields) if fields else PLAIN
