"""A cloud in memory whose interfaces have addresses for pods."""

from collections.abc import Collection
from typing import Any

import msgspec
from msgspec.structs import replace

from podwire.controllers.cloudaddresses.provider import (
    AddressChange,
    AddressState,
    AssignAddresses,
    AttachInterface,
    CreateInterface,
    DetachInterface,
    Instance,
    MarkedInterface,
)
from podwire.controllers.cloudroutes.settings import CloudSettings
from podwire.errors import CloudError, CloudUnavailable


class AddressOptions(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """None."""


class MemoryAddresses:
    """Instances ``m-1``, ``m-2``, ... with room for two further interfaces of three addresses each."""

    name = "memory"
    options: type[msgspec.Struct] = AddressOptions

    def __init__(self, settings: CloudSettings | None = None, options: Any = None) -> None:
        self.instances: set[str] = set()
        self.interfaces: dict[str, MarkedInterface] = {}
        self.away = ""
        self.hidden: set[str] = set()
        """Interfaces that the next reading leaves out, as a cloud whose answers are old does."""
        self._made = 0

    def instance(self, provider_id: str) -> str:
        """The instance of a Node."""
        if not provider_id.startswith("memory:///"):
            raise ValueError(f"spec.providerID is {provider_id!r}: expected memory:///m-1")
        return provider_id.removeprefix("memory:///")

    def read(self, instances: Collection[str]) -> AddressState:
        """The instances, and all interfaces but the hidden ones."""
        if self.away:
            raise CloudUnavailable("read", "", self.away)
        hidden, self.hidden = self.hidden, set()
        shown = tuple(each for name, each in self.interfaces.items() if name not in hidden)
        made = {name: self._describe(name) for name in self.instances & set(instances)}
        return AddressState(made, shown, ("10.0.0.0/16",))

    def _describe(self, name: str) -> Instance:
        used = (each.index for each in self.interfaces.values() if each.instance == name and each.index)
        return Instance(id=name, subnet="subnet", indexes=(0, *used), interfaces_max=3, addresses_max=4)

    def apply(self, change: AddressChange) -> None:
        """Makes one change."""
        if isinstance(change, CreateInterface):
            self._made += 1
            number = self._made
            mac, address = f"02:00:00:00:00:{number:02x}", f"10.0.{number}.5/24"
            self.interfaces[f"if-{number}"] = MarkedInterface(
                id=f"if-{number}", instance=change.instance, mac=mac, address=address, gateway=f"10.0.{number}.1"
            )
            return
        interface = self.interfaces[change.interface]
        if isinstance(change, AttachInterface):
            self.interfaces[interface.id] = replace(interface, index=change.index)
        elif isinstance(change, AssignAddresses):
            base = interface.gateway.removesuffix(".1")
            pods = tuple(f"{base}.{10 + number}" for number in range(len(interface.pods) + change.count))
            if len(pods) > 3:
                raise CloudError("assign", "PrivateIpAddressLimitExceeded", "too many addresses")
            self.interfaces[interface.id] = replace(interface, pods=pods)
        elif isinstance(change, DetachInterface):
            self.interfaces[interface.id] = replace(interface, index=0)
        else:
            del self.interfaces[interface.id]
