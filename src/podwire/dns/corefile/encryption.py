"""Server blocks of ``tls://``: the plugin ``tls``, and which server blocks may be encrypted. Pure.

podwire answers over TLS what it answers over UDP and TCP. A key ``tls://`` stands beside a plain key of its server
block, or in a server block of its own that has the plugins of a plain one. Plugins that concern the process alone
(health pages, metrics, errors) need not be repeated.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

from podwire.dns.config import ServingTls
from podwire.dns.corefile.syntax import Directive, ServerBlock
from podwire.dns.corefile.values import expect

_PROCESS = ("errors", "health", "loop", "prometheus", "ready", "reload", "tls")
_CLIENTS = {"nocert": "none", "verify_if_given": "optional", "require_and_verify": "required"}


class PlainBlock(NamedTuple):
    """A server block that answers over UDP and TCP, and its zones."""

    block: ServerBlock
    zones: tuple[str, ...]


def read_tls(directive: Directive) -> ServingTls:
    """The certificate of a ``tls`` directive.

    Raises: ConfigError with the line for an option that podwire does not have.
    """
    files = directive.arguments
    expect(2 <= len(files) <= 3, directive, "expected a certificate, a key, and perhaps the authorities of clients")
    clients = "none"
    for option in directive.block:
        match option.name, option.arguments:
            case "client_auth", (kind,) if kind in _CLIENTS:
                clients = _CLIENTS[kind]
            case "client_auth", ("request" | "require",):
                raise option.wrong("podwire verifies certificates of clients: verify_if_given or require_and_verify")
            case _:
                raise option.wrong(f"expected client_auth and one of {', '.join(_CLIENTS)}")
    authorities = files[2] if len(files) == 3 else ""
    return ServingTls(certificate=files[0], key=files[1], authorities=authorities, clients=clients)


def check_encrypted(own: ServerBlock, zones: Sequence[str], plain: Sequence[PlainBlock]) -> str:
    """What is wrong with a server block that answers over TLS alone; empty when nothing is."""
    known = [other for other in plain if set(zones) <= set(other.zones)]
    if not known:
        named = ", ".join(zone or "." for zone in zones)
        return f"expected a server block that answers {named} over UDP and TCP, too"
    if not any(_plugins(own) == _plugins(other.block) for other in known):
        lines = " or ".join(str(other.block.line) for other in known)
        return f"podwire answers over TLS what it answers over UDP and TCP: expected the plugins of line {lines}"
    return ""


def _plugins(block: ServerBlock) -> list[Any]:
    """The plugins that make answers, without their lines; different ones in any order."""
    own = [directive for directive in block.directives if directive.name not in _PROCESS]
    return [_shape(directive) for directive in sorted(own, key=lambda directive: directive.name)]


def _shape(directive: Directive) -> tuple[Any, ...]:
    return directive.name, directive.arguments, tuple(_shape(option) for option in directive.block)
