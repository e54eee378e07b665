"""Rules that change the EDNS options of requests to upstream servers: local options, NSID, client subnet. Pure.

``set`` replaces an option or adds it, ``append`` adds it if it is missing, ``replace`` replaces it if it is there. The
data of a local option is text, ``0x`` and hexadecimal digits, or a variable such as ``{client_ip}``. Sources: RFC 6891
section 9 (local codes), RFC 7871 (client subnet).
"""

import re
from ipaddress import ip_address, ip_network

import msgspec

from podwire.dns.corefile.syntax import Directive
from podwire.dns.corefile.values import expect, whole
from podwire.dns.names import address_bytes, decode_name
from podwire.dns.plugins.ednsoptions import CLIENT_SUBNET, NSID, join_options, split_options
from podwire.dns.plugins.plugin import PluginRequest

_ACTIONS = ("set", "append", "replace")
_VARIABLES = ("qname", "qtype", "client_ip", "client_port", "protocol", "server_ip", "server_port")


class OptionRule(msgspec.Struct, frozen=True):
    """One rule: ``data`` is fixed, or comes from the variable, or is a subnet of ``prefixes`` (IPv4, IPv6)."""

    action: str
    code: int
    data: bytes = b""
    variable: str = ""
    prefixes: tuple[int, int] = (0, 0)

    @property
    def per_client(self) -> bool:
        """Whether the option depends on the client."""
        return bool(self.variable) or self.code == CLIENT_SUBNET

    def apply(self, request: PluginRequest) -> bytes | None:
        """The options of the request with this one, or None when nothing changes."""
        edns = request.query.edns
        before = request.options if request.options is not None else edns.options if edns is not None else b""
        options = split_options(before)
        present = any(code == self.code for code, _ in options)
        if present == (self.action == "append") and self.action != "set":
            return None
        own = (self.code, self._data(request))
        if not present:
            return join_options((*options, own))
        return join_options(own if option[0] == self.code else option for option in options)

    def _data(self, request: PluginRequest) -> bytes:
        if self.code == CLIENT_SUBNET:
            return _subnet(request.client, self.prefixes)
        query = request.query
        match self.variable:
            case "":
                return self.data
            case "qname":
                return decode_name(query.name).encode()
            case "qtype":
                return query.qtype.to_bytes(2, "big")
            case "client_ip":
                return address_bytes(request.client.partition("%")[0])
            case "client_port":
                return request.port.to_bytes(2, "big")
            case "protocol":
                return b"tcp" if request.tcp else b"udp"
            case "server_ip":
                return address_bytes(request.server.partition("%")[0])
        return request.server_port.to_bytes(2, "big")


def _subnet(client: str, prefixes: tuple[int, int]) -> bytes:
    address = ip_address(client.partition("%")[0])
    family = 1 if address.version == 4 else 2
    bits = prefixes[family - 1]
    packed = ip_network((address, bits), strict=False).network_address.packed
    return family.to_bytes(2, "big") + bytes([bits, 0]) + packed[: (bits + 7) // 8]


def read_option_rule(directive: Directive, arguments: list[str]) -> OptionRule:
    """The rule in ``local|nsid|subnet set|append|replace ...``.

    Raises: ConfigError with the line.
    """
    wrong = f"expected edns0, local, nsid or subnet, and one of {', '.join(_ACTIONS)}"
    expect(len(arguments) > 1 and arguments[1] in _ACTIONS, directive, wrong)
    kind, action, *rest = arguments
    match kind:
        case "nsid":
            expect(not rest, directive, "expected nothing behind nsid")
            return OptionRule(action, NSID)
        case "subnet":
            expect(len(rest) == 2, directive, "expected the prefix lengths of IPv4 and of IPv6")
            first, second = (whole(directive, text) for text in rest)
            expect(first <= 32 and second <= 128, directive, "expected lengths of at most 32 and 128")
            return OptionRule(action, CLIENT_SUBNET, prefixes=(first, second))
        case "local":
            expect(len(rest) == 2, directive, "expected a code such as 0xffee, and data")
            return _read_local(directive, action, rest[0], rest[1])
    raise directive.wrong(wrong)


def _read_local(directive: Directive, action: str, code: str, data: str) -> OptionRule:
    try:
        number = int(code, 0)
    except ValueError as failure:
        raise directive.wrong(f"expected a code such as 0xffee, got {code!r}") from failure
    expect(0 < number < 65536, directive, f"expected a code of 1 to 65535, got {code!r}")
    variable = re.fullmatch(r"\{(\S*)\}", data)
    if variable is not None:
        expect(variable[1] in _VARIABLES, directive, f"expected one of {', '.join(_VARIABLES)}, got {variable[1]!r}")
        return OptionRule(action, number, variable=variable[1])
    if not data.lower().startswith("0x"):
        return OptionRule(action, number, data.encode())
    try:
        return OptionRule(action, number, bytes.fromhex(data[2:]))
    except ValueError as failure:
        raise directive.wrong(f"expected hexadecimal digits, got {data!r}") from failure
