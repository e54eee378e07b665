"""The options of ``forward``: upstream servers and how they are asked. Pure.

The names that one ``forward`` does not ask for (``except``), and those for which its servers have a reply that does not
count (``next``), belong to the next ``forward`` of the server block whose zone has them.
"""

import re
from collections.abc import Sequence
from typing import Any, NamedTuple

from msgspec.structs import replace

from podwire.dns.config import ForwardConfig, TlsConfig
from podwire.dns.corefile.syntax import Directive
from podwire.dns.corefile.values import expect, plain, response_code, seconds, whole, zone_name

_POLICIES = ("random", "round_robin", "sequential")
_MOST_SERVERS = 15
_SERVER = re.compile(r"(?:(dns|tls)://)?([^/].*|/.*)")


class ZoneForward(NamedTuple):
    """A ``forward`` of a server block, for one zone; the root zone is an empty text."""

    directive: Directive
    zone: str
    forward: ForwardConfig

    @property
    def passes_on(self) -> bool:
        """Whether another ``forward`` for the same zone may be asked after this one."""
        return bool(self.forward.next_codes or self.forward.next_without_data or self.forward.except_zones)

    def has(self, zone: str) -> bool:
        """Whether the names of a zone are among those of this one."""
        return not self.zone or f".{zone}".endswith(f".{self.zone}")


def link_forwards(forwards: Sequence[ZoneForward]) -> list[ZoneForward]:
    """The first ``forward`` of each zone of a server block, each linked with those that follow it.

    Raises: ConfigError with the line of a ``forward`` that would never be asked.
    """
    linked = list(forwards)
    for at in reversed(range(len(linked))):
        own = linked[at]
        following = next((later.forward for later in linked[at + 1 :] if later.has(own.zone)), None)
        if own.passes_on and following is not None:
            linked[at] = own._replace(forward=replace(own.forward, next_forward=following))
    first: dict[str, ZoneForward] = {}
    for own in linked:
        before = first.setdefault(own.zone, own)
        reached = before is own or any(own.forward is later for later in before.forward.chain)
        expect(reached, own.directive, f"expected one forward for {own.zone or 'the root zone'}")
    return list(first.values())


def read_forward(directive: Directive) -> tuple[str, ForwardConfig]:
    """The zone of a ``forward`` directive, and its servers with their options.

    Raises: ConfigError with the line for a server or an option that podwire does not have.
    """
    expect(len(directive.arguments) > 1, directive, "expected a zone and at least one server")
    zone, *servers = directive.arguments
    expect(len(servers) <= _MOST_SERVERS, directive, f"expected at most {_MOST_SERVERS} servers, got {len(servers)}")
    options: dict[str, Any] = {"policy": "random", "upstreams": tuple(_server(directive, text) for text in servers)}
    for option in directive.block:
        options |= _option(option)
    config = ForwardConfig(**options)
    encrypted = any(text.startswith("tls://") for text in config.upstreams)
    expect(encrypted or not (config.tls or config.tls_server_name), directive, "expected a server tls:// with tls")
    both = config.tls_server_name and any("%" in text for text in config.upstreams if text.startswith("tls://"))
    expect(not both, directive, "expected the server name either behind the address or in tls_servername")
    return plain(zone), config


def _server(directive: Directive, text: str) -> str:
    match = _SERVER.fullmatch(text)
    if match is None or "://" in match[2]:
        raise directive.wrong(f"podwire forwards over UDP, TCP and TLS, got {text!r}")
    return text if match[1] == "tls" else match[2]


def _option(option: Directive) -> dict[str, Any]:
    match option.name, option.arguments:
        case "policy", (policy,) if policy in _POLICIES:
            return {"policy": policy}
        case ("force_tcp" | "prefer_udp") as field, ():
            return {field: True}
        case "next_on_nodata", ():
            return {"next_without_data": True}
        case ("max_concurrent" | "max_fails") as field, (number,):
            return {field: whole(option, number)}
        case "expire", (time,):
            return {"expire_seconds": seconds(option, time)}
        case "failfast_all_unhealthy_upstreams", ():
            return {"fail_fast": True}
        case "tls_servername", (name,):
            return {"tls_server_name": name}
    return _long_option(option)


def _long_option(option: Directive) -> dict[str, Any]:
    """The options that have several arguments."""
    match option.name, option.arguments:
        case "except", (_, *_):
            for name in option.arguments:
                zone_name(option, name)
            return {"except_zones": tuple(plain(name) for name in option.arguments)}
        case "next", (_, *_):
            for text in option.arguments:
                response_code(option, text)
            return {"next_codes": tuple(text.upper() for text in option.arguments)}
        case "failover", (_, *_):
            return {"failover": tuple(_failure(option, text) for text in option.arguments)}
        case "tls", (*files,) if len(files) < 4:
            return {"tls": _tls(files)}
        case "health_check", (interval, *rest):
            return _health_check(option, interval, rest)
    text = " ".join(option.arguments)
    raise option.wrong(f"podwire does not have this option of forward, or not with {text!r}")


def _failure(option: Directive, text: str) -> str:
    expect(response_code(option, text) != 0, option, "expected a response code other than NOERROR")
    return text.upper()


def _tls(files: list[str]) -> TlsConfig:
    match files:
        case [authorities]:
            return TlsConfig(authorities=authorities)
        case [certificate, key, *rest]:
            return TlsConfig(certificate=certificate, key=key, authorities=rest[0] if rest else "")
    return TlsConfig()


def _health_check(option: Directive, interval: str, rest: list[str]) -> dict[str, Any]:
    settings: dict[str, Any] = {"health_check_seconds": seconds(option, interval)}
    expect(settings["health_check_seconds"] > 0, option, "expected a time of more than 0")
    while rest:
        match rest:
            case "no_rec", *rest:
                settings["health_check_recursion"] = False
            case "domain", name, *rest:
                zone_name(option, name)
                settings["health_check_domain"] = name
            case _:
                raise option.wrong(f"expected no_rec, or domain and a name, got {' '.join(rest)!r}")
    return settings
