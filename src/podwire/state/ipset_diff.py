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
    """Deletes a set; a missing set is not an error; fails while a rule refers to the set."""

    name: str

    def __str__(self) -> str:
        return f"destroy {self.name}"


class Swap(NamedTuple):
    """Exchanges two sets of one type in one step; rules keep referring to the same names."""

    name: str
    other: str

    def __str__(self) -> str:
        return f"swap {self.name} {self.other}"


class Add(NamedTuple):
    """Adds an element, or changes the options of an existing one."""

    set: IpSet
    key: str

    def __str__(self) -> str:
        return self.set.added(self.key)


class Delete(NamedTuple):
    """Deletes an element; a missing element is not an error."""

    set: IpSet
    key: str

    def __str__(self) -> str:
        return f"del {self.set.name} {self.key}"


Operation = Create | Destroy | Swap | Add | Delete


def diff(present: IpSet | None, desired: IpSet) -> tuple[Operation, ...]:
    """The operations that turn one set into another, in order; empty when the sets are equal.

    A set with another declaration is replaced in one step (:func:`replacement`). In a set with the same declaration,
    elements are deleted before new ones are added, to make room; meanwhile packets see a part of each. The remaining
    time of elements is not compared.
    """
    if present is None:
        return (Create(desired), *(Add(desired, key) for key in desired.elements))
    if present.declaration != desired.declaration:
        return replacement(desired)
    deletions = tuple(Delete(desired, key) for key in present.elements if key not in desired.elements)
    new = (key for key, element in desired.elements.items() if not _same(present.elements.get(key), element))
    return (*deletions, *(Add(desired, key) for key in new))


def _same(present: IpSetElement | None, desired: IpSetElement) -> bool:
    return present is not None and _options(present) == _options(desired)


def _options(element: IpSetElement) -> tuple[object, ...]:
    return element.comment, element.nomatch, element.mark


def replacement(desired: IpSet) -> tuple[Operation, ...]:
    """The operations that replace the set of this name; packets see the old elements or the new ones, never a mixture.

    The kernel exchanges only sets of the same type and family. The temporary set of an interrupted replacement is
    deleted first.
    """
    spare = msgspec.structs.replace(desired, name=spare_name(desired.name))
    filled = (Add(spare, key) for key in spare.elements)
    destroy = Destroy(spare.name)
    return (destroy, Create(spare), *filled, Swap(desired.name, spare.name), destroy)


def spare_name(name: str) -> str:
    """The name of the temporary set that is filled before it replaces another one."""
    return f"{name[: NAME_MAX - 2]}~1" if len(name) > NAME_MAX - 2 else f"{name}~1"
