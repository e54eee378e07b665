"""Virtual servers of IPVS as values: what a namespace's kernel balances, and to which real servers.

The text form is that of ``ipvsadm -S -n``, one server a line, its destinations behind it; the third flag is printed for
every scheduler, which ipvsadm leaves out for ``sh`` and ``mh``::

    -A -t 10.96.0.10:80 -s rr -p 600 -b flag-3
    -a -t 10.96.0.10:80 -r 10.180.0.1:8080 -m -w 1

The key of a virtual server is protocol, address and port. Virtual servers that a packet mark selects are left out.
"""

from collections.abc import Iterable, Iterator
from ipaddress import ip_network
from typing import Literal, cast, get_args

import msgspec

from podwire.state.address import ip_text

Protocol = Literal["tcp", "udp", "sctp"]

FLAG_1, FLAG_2, FLAG_3 = 0x08, 0x10, 0x20
"""linux/ip_vs.h IP_VS_SVC_F_SCHED1 to 3: the scheduler defines their meaning; no scheduler uses the third."""

OWNER_FLAG = FLAG_3
"""The flag that marks a virtual server as podwire's; no scheduler uses it."""

_FLAG_NAMES = {"sh": ("sh-fallback", "sh-port"), "mh": ("mh-fallback", "mh-port")}
_OPTIONS: dict[str, Protocol] = {"-t": "tcp", "-u": "udp", "--sctp-service": "sctp"}
_OPTION_OF = {protocol: option for option, protocol in _OPTIONS.items()}
_FORWARDS = {"-m": "masq", "-g": "route", "-i": "tunnel"}
_FORWARD_OF = {name: option for option, name in _FORWARDS.items()}
WHOLE = {False: 32, True: 128}
"""Bits of an address, by whether it is IPv6: each client address is distinct."""


def endpoint_text(address: str, port: int) -> str:
    """``10.96.0.10:80`` or ``[fd00::1]:80``."""
    return f"[{address}]:{port}" if ":" in address else f"{address}:{port}"


def _parse_endpoint(text: str) -> tuple[str, int]:
    address, _, port = text.rpartition(":")
    if not port.isdecimal() or int(port) > 0xFFFF:
        raise ValueError(f"{text!r} is not ADDRESS:PORT")
    return ip_text(address.removeprefix("[").removesuffix("]")), int(port)


class Key(msgspec.Struct, frozen=True, gc=False, order=True):
    """The key of a virtual server in the kernel."""

    protocol: Protocol
    address: str
    port: int

    def __str__(self) -> str:
        return f"{_OPTION_OF[self.protocol]} {endpoint_text(self.address, self.port)}"


class Destination(msgspec.Struct, frozen=True, gc=False, order=True):
    """A real server. With ``weight`` 0 it gets no new connections."""

    address: str
    port: int
    weight: int = 1
    forward: str = "masq"
    """``masq``, ``route`` or ``tunnel``."""

    @property
    def endpoint(self) -> tuple[str, int]:
        """Address and port: the key within a virtual server."""
        return self.address, self.port

    def __str__(self) -> str:
        where = endpoint_text(self.address, self.port)
        return f"-r {where} {_FORWARD_OF.get(self.forward, '-m')} -w {self.weight}"


class VirtualServer(msgspec.Struct, frozen=True, gc=False, order=True):
    """One address, protocol and port, and the real servers behind it."""

    key: Key
    scheduler: str
    flags: int = 0
    """Of FLAG_1 to FLAG_3."""
    persistent_s: int = 0
    """Seconds for which a client keeps its real server after its last connection; 0: not persistent."""
    client_bits: int = 0
    """Leading bits of a client's address that persistence compares; 0: all."""
    destinations: tuple[Destination, ...] = ()
    """In the order of their text."""

    def __str__(self) -> str:
        return "\n".join(self.lines())

    def lines(self) -> Iterator[str]:
        """The text, a line at a time."""
        arguments = [f"-A {self.key} -s {self.scheduler}"]
        if self.persistent_s:
            arguments.append(f"-p {self.persistent_s}")
        if self.client_bits:
            arguments.append(f"-M {_mask_text(self.client_bits, ':' in self.key.address)}")
        if self.flags:
            arguments.append(f"-b {','.join(_flag_names(self.scheduler, self.flags))}")
        yield " ".join(arguments)
        yield from (f"-a {self.key} {destination}" for destination in self.destinations)


def _mask_text(bits: int, six: bool) -> str:
    """The form of ipvsadm: a number of bits for IPv6, a mask for IPv4."""
    return str(bits) if six else str(ip_network(f"0.0.0.0/{bits}").netmask)


def _parse_mask(text: str) -> int:
    return int(text) if text.isdecimal() else ip_network(f"0.0.0.0/{text}").prefixlen


def _names(scheduler: str) -> dict[str, int]:
    first, second = _FLAG_NAMES.get(scheduler, ("flag-1", "flag-2"))
    return {first: FLAG_1, second: FLAG_2, "flag-3": FLAG_3}


def _flag_names(scheduler: str, flags: int) -> list[str]:
    return [name for name, bit in _names(scheduler).items() if flags & bit]


def parse(lines: Iterable[str]) -> tuple[VirtualServer, ...]:
    """The virtual servers of a text, in its order.

    Raises: ValueError naming the wrong line.
    """
    servers: dict[Key, VirtualServer] = {}
    for line in lines:
        tokens = line.split()
        if not tokens:
            continue
        if tokens[0] not in ("-A", "-a") or len(tokens) < 3 or tokens[1] not in _OPTIONS:
            raise ValueError(f"not a line of ipvsadm -S: {line!r}")
        key = Key(_OPTIONS[tokens[1]], *_parse_endpoint(tokens[2]))
        try:
            if tokens[0] == "-A":
                servers[key] = _parse_server(key, tokens[3:])
            else:
                known = servers[key]
                destinations = (*known.destinations, _parse_destination(tokens[3:]))
                servers[key] = msgspec.structs.replace(known, destinations=destinations)
        except (KeyError, StopIteration) as failure:
            raise ValueError(f"not a line of ipvsadm -S: {line!r}") from failure
    return tuple(servers.values())


def _parse_server(key: Key, tokens: list[str]) -> VirtualServer:
    options = dict(zip(tokens[::2], tokens[1::2], strict=True))
    scheduler = options["-s"]
    names = _names(scheduler)
    return VirtualServer(
        key=key,
        scheduler=scheduler,
        flags=sum(names[name] for name in options["-b"].split(",")) if "-b" in options else 0,
        persistent_s=int(options.get("-p", 0)),
        client_bits=_parse_mask(options["-M"]) if "-M" in options else 0,
    )


def _parse_destination(tokens: list[str]) -> Destination:
    rest = iter(tokens)
    address, port, weight, forward = "", 0, 1, "masq"
    for word in rest:
        match word:
            case "-r":
                address, port = _parse_endpoint(next(rest))
            case "-w":
                weight = int(next(rest))
            case _:
                forward = _FORWARDS[word]
    return Destination(address, port, weight, forward)


def protocol_of(text: str) -> Protocol:
    """A protocol by its name.

    Raises: ValueError for one that IPVS does not balance.
    """
    if text not in get_args(Protocol):
        raise ValueError(f"IPVS does not balance protocol {text!r}: expected tcp, udp or sctp")
    return cast(Protocol, text)
