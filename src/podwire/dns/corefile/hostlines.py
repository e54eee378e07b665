"""The names of ``hosts``: lines of the Corefile and of a file in the form of ``/etc/hosts``. Pure."""

from collections.abc import Mapping

import msgspec

from podwire.dns.corefile.syntax import Directive
from podwire.dns.corefile.values import expect, plain, whole, zone_names
from podwire.dns.names import address_bytes

_TTL_S = 3600
_FILE = "/etc/hosts"


class HostLines(msgspec.Struct, frozen=True):
    """The names with their addresses; ``zones`` and ``passes_on`` are wire names, none of them means none was named."""

    hosts: dict[str, tuple[str, ...]]
    ttl_s: int = _TTL_S
    zones: tuple[bytes, ...] = ()
    passes_on: tuple[bytes, ...] = ()


def hosts_file(directive: Directive) -> str:
    """The file that a ``hosts`` directive reads."""
    return directive.arguments[0] if directive.arguments else _FILE


def read_host_lines(directive: Directive, files: Mapping[str, str]) -> HostLines:
    """The names of a ``hosts`` directive and of its file, which is ``/etc/hosts`` if it names none.

    Raises: ConfigError with the line of what is wrong.
    """
    file = hosts_file(directive)
    expect(file in files or not directive.arguments, directive, f"cannot read {file}")
    zones = zone_names(directive, directive.arguments[1:])
    lines = [(line, (line.name, *line.arguments)) for line in directive.block]
    rows = (row.split("#")[0].split() for row in files.get(file, "").splitlines())
    lines += [(directive, tuple(row)) for row in rows if row]
    hosts: dict[str, tuple[str, ...]] = {}
    passes_on: tuple[bytes, ...] = ()
    ttl_s = _TTL_S
    for line, fields in lines:
        match fields:
            case "fallthrough", *names:
                passes_on += zone_names(line, tuple(names), (b"\x00",))
            case "ttl", number:
                ttl_s = whole(line, number)
            case "reload", _:
                raise line.wrong("podwire reads the file again with the Corefile: use the plugin reload")
            case address, *names if address_bytes(address) and names:
                for name in map(plain, names):
                    hosts[name] = (*hosts.get(name, ()), address)
            case _:
                raise line.wrong(f"expected an address and names, got {' '.join(fields)!r}")
    return HostLines(hosts, ttl_s, zones, passes_on)
