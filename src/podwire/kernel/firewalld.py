"""The sources of firewalld's zones: addresses whose packets a zone decides about.

firewalld is a program on D-Bus, reached by the library that :mod:`podwire.kernel.dbus` uses, which is imported with the
first call. Sources that are added here are those of the running firewall: a reload of firewalld forgets them.
Source: firewalld.dbus(5), interface org.fedoraproject.FirewallD1.zone.
"""

import os
from pathlib import Path

from podwire.errors import KernelError

NAME = "org.fedoraproject.FirewallD1"
_PATH = "/org/fedoraproject/FirewallD1"
_PRESENT = ("ZONE_ALREADY_SET",)
_ABSENT = ("UNKNOWN_SOURCE", "ZONE_CONFLICT", "INVALID_ZONE")
"""The beginnings of firewalld's errors for a source that the zone has, and for one that the zone has not."""


class FirewalldZones:
    """The zones of the machine's firewalld; methods raise KernelError."""

    def runs(self) -> bool:
        """Whether firewalld runs."""
        if not os.environ.get("DBUS_SYSTEM_BUS_ADDRESS") and not Path("/run/dbus/system_bus_socket").exists():
            return False  # The library is not imported on machines without D-Bus.
        from podwire.kernel import dbus

        return dbus.has_owner(NAME)

    def add(self, zone: str, source: str) -> None:
        """Adds a source to a zone; one that the zone has is left."""
        self._change("addSource", zone, source, _PRESENT)

    def remove(self, zone: str, source: str) -> None:
        """Removes a source from a zone; one that the zone has not is ignored."""
        self._change("removeSource", zone, source, _ABSENT)

    def has(self, zone: str, source: str) -> bool:
        """Whether a zone has a source."""
        return bool(self._call("querySource", zone, source))

    def _change(self, method: str, zone: str, source: str, ignored: tuple[str, ...]) -> None:
        from podwire.kernel.dbus import DBusError

        try:
            self._call(method, zone, source)
        except DBusError as failure:
            if not failure.text.startswith(ignored):
                raise

    def _call(self, method: str, zone: str, source: str) -> object:
        from jeepney import DBusAddress

        from podwire.kernel import dbus

        target = DBusAddress(_PATH, NAME, f"{NAME}.zone")
        answer = dbus.call(target, method, zone, source)
        if not answer:
            raise KernelError("call", f"{NAME}.zone.{method}", 0, "the answer has no value")
        return answer[0]
