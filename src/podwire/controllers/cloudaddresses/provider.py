"""The interface of a cloud that gives addresses to pods, and its values: interfaces, instances, changes (pure).

Only interfaces that podwire made carry its mark, and only these are changed, used for pods, or deleted; the first
interface of an instance is never touched. An interface belongs to one instance from its creation on, also while it is
not attached: the mark names the instance.
"""

from collections.abc import Collection, Mapping
from typing import Any, NamedTuple, Protocol

import msgspec

from podwire.controllers.cloudroutes.settings import CloudSettings

PREFIX_LENGTHS = {4: 28, 6: 80}
"""Lengths of the prefixes that clouds give to interfaces, by IP version; AWS and Alibaba Cloud have the same."""


class Instance(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    """An instance: its subnet and security groups, the numbers of its interfaces, and the room of its type.

    ``interfaces_max`` counts all interfaces, ``addresses_max`` the IPv4 addresses of one interface, its own included.
    ``addresses6_max`` counts the IPv6 addresses of one interface; 0 where its type or its subnet has no IPv6. A prefix
    counts as one address.
    """

    id: str
    subnet: str
    groups: tuple[str, ...] = ()
    indexes: tuple[int, ...] = ()
    interfaces_max: int = 0
    addresses_max: int = 0
    addresses6_max: int = 0


class InterfaceRoom(NamedTuple):
    """How many interfaces an instance type has, and how many addresses of each family an interface has."""

    interfaces: int = 0
    four: int = 0
    six: int = 0


class MarkedInterface(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    """An interface that podwire made for an instance; ``index`` is its number there, 0 while it is not attached.

    ``address`` is its own, with the prefix length of its subnet; ``pods`` are the further addresses and prefixes, and
    ``pods6`` all those of IPv6. ``gateway6`` is the router for IPv6, empty without it.
    """

    id: str
    instance: str
    mac: str
    address: str
    gateway: str
    index: int = 0
    pods: tuple[str, ...] = ()
    gateway6: str = ""
    pods6: tuple[str, ...] = ()


class AddressState(msgspec.Struct, frozen=True):
    """The instances of nodes by their names, all marked interfaces, and the networks of the whole cloud network."""

    instances: Mapping[str, Instance] = {}
    interfaces: tuple[MarkedInterface, ...] = ()
    networks: tuple[str, ...] = ()


class CreateInterface(msgspec.Struct, frozen=True, gc=False, tag=True):
    """Makes an interface for an instance, in its subnet and with its security groups."""

    instance: str
    subnet: str
    groups: tuple[str, ...]

    def __str__(self) -> str:
        return f"interface add for {self.instance} in {self.subnet}"


class AttachInterface(msgspec.Struct, frozen=True, gc=False, tag=True):
    """Attaches an interface to its instance."""

    interface: str
    instance: str
    index: int

    def __str__(self) -> str:
        return f"interface attach {self.interface} to {self.instance} as {self.index}"


class AssignAddresses(msgspec.Struct, frozen=True, gc=False, tag=True):
    """Gives an interface further addresses, or prefixes of :data:`PREFIX_LENGTHS`, of the IP version ``version``."""

    interface: str
    count: int
    version: int = 4
    prefixes: bool = False

    def __str__(self) -> str:
        family = " -6" if self.version == 6 else ""
        return f"{'prefix' if self.prefixes else 'address'}{family} add {self.count} to {self.interface}"


class DetachInterface(msgspec.Struct, frozen=True, gc=False, tag=True):
    """Detaches an interface from its instance."""

    interface: str

    def __str__(self) -> str:
        return f"interface detach {self.interface}"


class DeleteInterface(msgspec.Struct, frozen=True, gc=False, tag=True):
    """Deletes an interface that is not attached."""

    interface: str

    def __str__(self) -> str:
        return f"interface del {self.interface}"


AddressChange = CreateInterface | AttachInterface | AssignAddresses | DetachInterface | DeleteInterface


class AddressProvider(Protocol):
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

    def read(self, instances: Collection[str]) -> AddressState:
        """The instances, and all marked interfaces.

        Raises: CloudUnavailable; CloudError.
        """
        ...

    def apply(self, change: AddressChange) -> None:
        """Makes one change.

        Raises: CloudUnavailable when the cloud cannot be asked now; CloudError when it refuses this change.
        """
        ...
