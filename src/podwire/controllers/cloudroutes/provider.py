"""The interface of a cloud, and the values of its network: tables, routes, interfaces, and changes of them (pure).

A provider reads and applies; it decides nothing. The plan (:mod:`podwire.controllers.cloudroutes.plan`) compares the
state that was read with the routes that nodes need, and every difference is one :data:`Change`, which can be applied
again without harm. An interface of a cloud is an elastic network interface (ENI).

Owner marks: an interface to which podwire routes carries a mark with the cluster's name. A route inside the cluster's
pod networks belongs to podwire when its target carries the mark, or when its target no longer exists; clouds have no
marks on routes themselves.
"""

from collections.abc import Collection, Mapping
from ipaddress import IPv4Network, IPv6Network
from typing import Any, Protocol

import msgspec

from podwire.controllers.cloudroutes.settings import CloudSettings

Network = IPv4Network | IPv6Network


class CloudInterface(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    """An interface of an instance; ``instance`` is empty when it is attached to none.

    ``forwards`` says that the cloud passes packets with other addresses than the interface's own; ``restores`` that it
    did not before podwire changed that. ``index`` is the number of the interface at its instance.
    """

    id: str
    instance: str
    index: int = 0
    addresses: tuple[str, ...] = ()
    forwards: bool = False
    marked: bool = False
    restores: bool = False


class CloudRoute(msgspec.Struct, frozen=True, gc=False):
    """A route of a table: ``target`` is an interface, empty for a target of another kind.

    ``dead``: the target no longer exists, and the cloud drops the packets.
    """

    network: Network
    target: str = ""
    dead: bool = False


class CloudTable(msgspec.Struct, frozen=True):
    """A route table of the cloud."""

    id: str
    routes: tuple[CloudRoute, ...] = ()


class CloudState(msgspec.Struct, frozen=True):
    """The part of a cloud's network that podwire may change.

    ``interfaces`` are those of the nodes' instances, and all that carry the mark, by their names.
    """

    tables: tuple[CloudTable, ...] = ()
    interfaces: Mapping[str, CloudInterface] = {}


class Claim(msgspec.Struct, frozen=True, gc=False, tag=True):
    """Marks an interface and lets it forward; ``restores`` is written into the mark."""

    interface: str
    restores: bool

    def __str__(self) -> str:
        return f"interface {self.interface} forwards"


class Release(msgspec.Struct, frozen=True, gc=False, tag=True):
    """Undoes a claim: switches forwarding off where podwire switched it on, and removes the mark."""

    interface: str
    restores: bool

    def __str__(self) -> str:
        return f"interface {self.interface} is released" + (", forwards no more" if self.restores else "")


class AddRoute(msgspec.Struct, frozen=True, gc=False, tag=True):
    """Adds a route to an interface; ``replace``: in place of a route to another one."""

    table: str
    network: Network
    interface: str
    replace: bool = False

    def __str__(self) -> str:
        return f"route {'replace' if self.replace else 'add'} {self.network} via {self.interface} table {self.table}"


class DeleteRoute(msgspec.Struct, frozen=True, gc=False, tag=True):
    """Deletes a route."""

    table: str
    network: Network

    def __str__(self) -> str:
        return f"route del {self.network} table {self.table}"


Change = Claim | Release | AddRoute | DeleteRoute


class CloudProvider(Protocol):
    """One cloud. ``read`` and ``apply`` block until the cloud has answered; they are called in a thread."""

    name: str
    options: type[msgspec.Struct]

    def __init__(self, settings: CloudSettings, options: Any) -> None:
        """Raises: ConfigError when the cloud's client cannot be made: no package, no region, no credentials."""
        ...

    def instance(self, provider_id: str) -> str:
        """The instance of a Node by its ``spec.providerID``.

        Raises: ValueError with the expected form.
        """
        ...

    def read(self, instances: Collection[str]) -> CloudState:
        """The state of the network for these instances.

        Raises: CloudUnavailable; CloudError.
        """
        ...

    def apply(self, change: Change) -> None:
        """Makes one change; without effect when the cloud has it already.

        Raises: CloudUnavailable when the cloud cannot be asked now; CloudError when it refuses this change.
        """
        ...
