"""Operations on sets of ipset(8), each a line of ``ipset restore``, and those that turn one set into another."""

from typing import NamedTuple

import msgspec

from podwire.state.ipset import NAME_MAX, IpSet, IpSetElement


class Create(NamedTuple):
    """Creates an empty set; fails when a set of this name exists."""

    set: IpSet

    def __str__(self) -> str:
        return self.set.created()


class Destroy(NamedTuple):
    """Deletes a set; no error without such a set; fails while a rule refers to it."""

    name: str

    def __str__(self) -> str:
        return f"destroy {self.name}"


class Swap(NamedTuple):
    """Exchanges the elements of two sets of one type in one step; rules refer to the same names afterwards."""

    name: str
    other: str

    def __str__(self) -> str:
        return f"swap {self.name} {self.other}"


class Add(NamedTuple):
    """Adds an element, or gives an existing one these options."""

    set: IpSet
    key: str

    def __str__(self) -> str:
        return self.set.added(self.key)


class Delete(NamedTuple):
    """Deletes an element; no error without such an element."""

    set: IpSet
    key: str

    def __str__(self) -> str:
        return f"del {self.set.name} {self.key}"


Operation = Create | Destroy | Swap | Add | Delete


def diff(have: IpSet | None, want: IpSet) -> tuple[Operation, ...]:
    """The operations that turn one set into another, in order; empty when the sets are equal.

    A set with another declaration is replaced in one step (:func:`replacement`). In a set with the same declaration,
    elements are deleted before new ones are added, so that there is room for the new ones; meanwhile packets see a
    part of each. The time that an element has left is not compared.
    """
    if have is None:
        return (Create(want), *(Add(want, key) for key in want.elements))
    if have.declaration != want.declaration:
        return replacement(want)
    gone = tuple(Delete(want, key) for key in have.elements if key not in want.elements)
    new = (key for key, element in want.elements.items() if not _same(have.elements.get(key), element))
    return (*gone, *(Add(want, key) for key in new))


def _same(have: IpSetElement | None, want: IpSetElement) -> bool:
    return have is not None and _options(have) == _options(want)


def _options(element: IpSetElement) -> tuple[object, ...]:
    return element.comment, element.nomatch, element.mark


def replacement(want: IpSet) -> tuple[Operation, ...]:
    """The operations that replace the set of this name; packets see the old elements or the new ones, never a mixture.

    The kernel exchanges only sets of the same type and family. What an interrupted replacement left is deleted first.
    """
    spare = msgspec.structs.replace(want, name=spare_name(want.name))
    filled = (Add(spare, key) for key in spare.elements)
    gone = Destroy(spare.name)
    return (gone, Create(spare), *filled, Swap(want.name, spare.name), gone)


def spare_name(name: str) -> str:
    """The name of the temporary set that is filled before it replaces another one."""
    return f"{name[: NAME_MAX - 2]}~1" if len(name) > NAME_MAX - 2 else f"{name}~1"
