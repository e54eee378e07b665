"""Operations on sets of ipset(8), and what makes one set of another; each is a line of ``ipset restore``."""

from typing import NamedTuple

import msgspec

from podwire.state.ipset import NAME_MAX, Element, IpSet


class Create(NamedTuple):
    """Makes an empty set; fails when one of the name is there."""

    set: IpSet

    def __str__(self) -> str:
        return self.set.created()


class Destroy(NamedTuple):
    """Takes a set away, none is no error; fails while a rule refers to it."""

    name: str

    def __str__(self) -> str:
        return f"destroy {self.name}"


class Swap(NamedTuple):
    """Exchanges what two sets of one type hold, at once for packets: rules go on with the name."""

    name: str
    other: str

    def __str__(self) -> str:
        return f"swap {self.name} {self.other}"


class Add(NamedTuple):
    """Adds an element; one that is there already takes over the options."""

    set: IpSet
    key: str

    def __str__(self) -> str:
        return self.set.added(self.key)


class Delete(NamedTuple):
    """Takes an element away; none is no error."""

    set: IpSet
    key: str

    def __str__(self) -> str:
        return f"del {self.set.name} {self.key}"


Operation = Create | Destroy | Swap | Add | Delete


def diff(have: IpSet | None, want: IpSet) -> tuple[Operation, ...]:
    """What makes one set of another, in order; empty when nothing is to be done.

    A set that is declared otherwise is replaced at once (:func:`replacement`). Elements of an equal one are taken away
    before others are added, so that there is room for them; packets meanwhile see either. How long an element has
    left is not compared.
    """
    if have is None:
        return (Create(want), *(Add(want, key) for key in want.elements))
    if have.declaration != want.declaration:
        return replacement(want)
    gone = tuple(Delete(want, key) for key in have.elements if key not in want.elements)
    new = (key for key, element in want.elements.items() if not _same(have.elements.get(key), element))
    return (*gone, *(Add(want, key) for key in new))


def _same(have: Element | None, want: Element) -> bool:
    return have is not None and _said(have) == _said(want)


def _said(element: Element) -> tuple[object, ...]:
    return element.comment, element.nomatch, element.mark


def replacement(want: IpSet) -> tuple[Operation, ...]:
    """What puts a set in the place of the one of its name; packets see the old elements or the new ones, no mixture.

    The kernel exchanges sets of the same type and family alone. What an interrupted one left is taken away first.
    """
    spare = msgspec.structs.replace(want, name=spare_name(want.name))
    filled = (Add(spare, key) for key in spare.elements)
    gone = Destroy(spare.name)
    return (gone, Create(spare), *filled, Swap(want.name, spare.name), gone)


def spare_name(name: str) -> str:
    """The name under which the successor of a set is filled."""
    return f"{name[: NAME_MAX - 2]}~1" if len(name) > NAME_MAX - 2 else f"{name}~1"
