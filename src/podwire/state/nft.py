"""nftables tables as values: tables, chains, sets and maps with their elements; ``str()`` is nft's own text.

The elements of a set have as keys the bytes that the kernel holds (see ``nft_types``), so that a hundred thousand of
them need no parsing and a kernel dump compares directly; :meth:`Set.element` makes one from text, ``str()`` prints
them. Chains and sets are in the order of their names, elements in the order of their bytes. nft lists in the order of
creation, so texts are compared after :func:`podwire.state.nft_text.parse_table`.
"""

from collections.abc import Iterable, Iterator, Mapping

import msgspec

from podwire.errors import ConfigError
from podwire.state.nft_rules import Rule, Verdict, duration
from podwire.state.nft_types import data_type, length, pack, unpack, width

FAMILIES = {"inet": 1, "ip": 2, "arp": 3, "netdev": 5, "bridge": 7, "ip6": 10}
"""nft's family words and the kernel's numbers (NFPROTO_*)."""

PRIORITIES = {"raw": -300, "mangle": -150, "dstnat": -100, "filter": 0, "security": 50, "srcnat": 100}
"""Priority words as nft prints them for the families ip, ip6 and inet."""


class Element(msgspec.Struct, frozen=True, gc=False):
    """One element without its key: data or verdict of a map, inclusive end of an interval, comment, timeout."""

    data: bytes = b""
    verdict: Verdict | None = None
    end: bytes = b""
    comment: str = ""
    timeout_s: int = 0


class Set(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    """A set, or a map when ``data`` is not empty; ``data`` is ``("verdict",)`` for a verdict map.

    ``flags``: interval, timeout, dynamic, constant. ``size`` 0 means no limit. The kernel adds and removes the elements
    of a dynamic set; they are not part of the desired state.
    """

    name: str
    key: tuple[str, ...]
    data: tuple[str, ...] = ()
    flags: tuple[str, ...] = ()
    size: int = 0
    timeout_s: int = 0
    comment: str = ""
    elements: Mapping[bytes, Element] = {}

    @property
    def verdicts(self) -> bool:
        """Whether this is a verdict map."""
        return self.data == ("verdict",)

    @property
    def dynamic(self) -> bool:
        """Whether packets add elements."""
        return "dynamic" in self.flags

    @property
    def key_length(self) -> int:
        """Bytes of a key."""
        return length(self.key)

    def without_elements(self) -> "Set":
        """The declaration of the set, without elements."""
        return msgspec.structs.replace(self, elements={})

    def element(self, key: str, value: str = "", comment: str = "", timeout_s: int = 0) -> tuple[bytes, Element]:
        """Key and element from text: ``element("10.96.0.1 . tcp . 80", "goto web")``.

        Raises: ConfigError when a text does not fit the types.
        """
        start, end = self._interval(key)
        if self.verdicts:
            kind, _, chain = value.partition(" ")
            return start, Element(verdict=Verdict(kind, chain), end=end, comment=comment, timeout_s=timeout_s)
        data = pack(self.data, _parts(value)) if self.data else b""
        return start, Element(data=data, end=end, comment=comment, timeout_s=timeout_s)

    def with_elements(self, elements: Iterable[tuple[bytes, Element]]) -> "Set":
        """This set with exactly these elements."""
        return msgspec.structs.replace(self, elements=dict(elements))

    def _interval(self, key: str) -> tuple[bytes, bytes]:
        parts = _parts(key)
        if "interval" not in self.flags:
            return pack(self.key, parts), b""
        bounds = [interval_bounds(name, part) for name, part in zip(self.key, parts, strict=True)]
        if len(bounds) == 1:
            return bounds[0]
        padded = [tuple(b.ljust(width(len(b)), b"\0") for b in pair) for pair in bounds]
        return b"".join(pair[0] for pair in padded), b"".join(pair[1] for pair in padded)

    def element_text(self, key: bytes, element: Element) -> str:
        """One element as nft prints it."""
        text = self._key_text(key, element.end)
        if element.timeout_s:
            text += f" timeout {duration(element.timeout_s)}"
        if element.comment:
            text += f' comment "{element.comment}"'
        if element.verdict is not None:
            return f"{text} : {element.verdict}"
        return f"{text} : {' . '.join(unpack(self.data, element.data))}" if self.data else text

    def _key_text(self, key: bytes, end: bytes) -> str:
        if not end or end == key:
            return " . ".join(unpack(self.key, key))
        parts, offset = [], 0
        for name in self.key:
            size = data_type(name).size
            parts.append(interval_text(name, key[offset : offset + size], end[offset : offset + size]))
            offset += width(size)
        return " . ".join(parts)

    def lines(self) -> Iterator[str]:
        """The declaration as nft prints it, elements last."""
        yield f"\t{'map' if self.data else 'set'} {self.name} {{"
        yield "\t\t" + self._type_text()
        if self.size:
            yield f"\t\tsize {self.size}"
        if self.flags:
            yield f"\t\tflags {','.join(self.flags)}"
        if self.timeout_s:
            yield f"\t\ttimeout {duration(self.timeout_s)}"
        if self.comment:
            yield f'\t\tcomment "{self.comment}"'
        before = "\t\telements = { "
        for number, key in enumerate(sorted(self.elements), 1):
            after = "," if number < len(self.elements) else " }"
            yield before + self.element_text(key, self.elements[key]) + after
            before = "\t\t\t     "
        yield "\t}"

    def _type_text(self) -> str:
        if "slot" not in self.key + self.data:
            data = f" : {' . '.join(self.data)}" if self.data else ""
            return f"type {' . '.join(self.key)}{data}"
        data = f" : {example_text(self.data)}" if self.data else ""
        return f"typeof {example_text(self.key)}{data}"


def _parts(text: str) -> tuple[str, ...]:
    return tuple(part.strip() for part in text.split(" . "))


def example_text(types: tuple[str, ...]) -> str:
    """Fields of these types, as in a ``typeof`` declaration."""
    return "verdict" if types == ("verdict",) else " . ".join(data_type(name).example for name in types)


def interval_bounds(type_name: str, text: str) -> tuple[bytes, bytes]:
    """First and last value of ``a-b``, ``address/prefix`` or a single value.

    Raises: ConfigError for other texts.
    """
    kind = data_type(type_name)
    try:
        if "/" in text:
            address, _, prefix = text.partition("/")
            host = kind.size * 8 - int(prefix)
            first = int.from_bytes(kind.parse(address), "big") >> host << host
            return first.to_bytes(kind.size, "big"), (first | ((1 << host) - 1)).to_bytes(kind.size, "big")
        if "-" in text and not type_name.startswith("icmp"):
            low, _, high = text.partition("-")
            return kind.parse(low), kind.parse(high)
        value = kind.parse(text)
    except ValueError as failure:
        raise ConfigError("nft", "", f"cannot read {text!r} as {type_name}") from failure
    return value, value


def interval_text(type_name: str, first: bytes, last: bytes) -> str:
    """The shortest text of an interval: a value, a prefix or ``a-b``."""
    kind = data_type(type_name)
    if first == last:
        return kind.render(first)
    if type_name in ("ipv4_addr", "ipv6_addr"):
        low, high = int.from_bytes(first, "big"), int.from_bytes(last, "big")
        span = high - low + 1
        if span & (span - 1) == 0 and low % span == 0:
            return f"{kind.render(first)}/{kind.size * 8 - span.bit_length() + 1}"
    return f"{kind.render(first)}-{kind.render(last)}"


class Chain(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    """A chain; with ``hook`` a base chain, which at the hook ``ingress`` sees the packets of one ``device``."""

    name: str
    type: str = ""
    hook: str = ""
    device: str = ""
    priority: int = 0
    policy: str = "accept"
    comment: str = ""
    rules: tuple[Rule, ...] = ()

    def lines(self) -> Iterator[str]:
        """The chain as nft prints it."""
        yield f"\tchain {self.name} {{"
        if self.comment:
            yield f'\t\tcomment "{self.comment}"'
        if self.hook:
            priority = priority_text(self.priority, self.hook)
            hook = f'{self.hook} device "{self.device}"' if self.device else self.hook
            yield f"\t\ttype {self.type} hook {hook} priority {priority}; policy {self.policy};"
        for rule in self.rules:
            yield f"\t\t{rule}"
        yield "\t}"


def priority_text(priority: int, hook: str) -> str:
    """The priority in nft's words: ``dstnat``, ``filter - 10``, or a number."""
    for word, base in PRIORITIES.items():
        if (word == "dstnat" and hook != "prerouting") or (word == "srcnat" and hook != "postrouting"):
            continue
        if abs(priority - base) <= 10:
            offset = priority - base
            return word if not offset else f"{word} {'+' if offset > 0 else '-'} {abs(offset)}"
    return str(priority)


class Table(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    """One table: the desired nftables state of one owner in one network namespace and family."""

    family: str
    name: str
    comment: str = ""
    chains: tuple[Chain, ...] = ()
    sets: tuple[Set, ...] = ()
    """Sets and maps."""

    def __str__(self) -> str:
        return "\n".join(self.lines())

    def lines(self) -> Iterator[str]:
        """The table as nft prints it, one element per line; a large table is never in memory as one text."""
        yield f"table {self.family} {self.name} {{"
        if self.comment:
            yield f'\tcomment "{self.comment}"'
        parts: tuple[Set | Chain, ...] = (*self.sets, *self.chains)
        for index, part in enumerate(parts):
            if index:
                yield ""
            yield from part.lines()
        yield "}"

    def canonical(self) -> "Table":
        """The same table with sets and chains in the order of their names and counters at zero."""
        chains = (
            msgspec.structs.replace(chain, rules=tuple(rule.without_counts for rule in chain.rules))
            for chain in sorted(self.chains, key=lambda chain: chain.name)
        )
        return msgspec.structs.replace(
            self, chains=tuple(chains), sets=tuple(sorted(self.sets, key=lambda declared: declared.name))
        )

    def set(self, name: str) -> Set:
        """The set or map of that name.

        Raises: KeyError when there is none.
        """
        for declared in self.sets:
            if declared.name == name:
                return declared
        raise KeyError(name)

    def chain(self, name: str) -> Chain:
        """The chain of that name.

        Raises: KeyError when there is none.
        """
        for chain in self.chains:
            if chain.name == name:
                return chain
        raise KeyError(name)


class AbsentTable(msgspec.Struct, frozen=True, gc=False):
    """A table of one owner that should not exist."""

    family: str
    name: str

    def lines(self) -> Iterator[str]:
        """The text: one line."""
        yield f"no table {self.family} {self.name}"
