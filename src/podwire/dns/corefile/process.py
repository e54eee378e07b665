"""The plugins of a Corefile that are settings of the process: pages, log, addresses, and what is always done. Pure.

Each reader puts the settings of a directive into fields of :class:`~podwire.dns.config.DnsConfig`, by their names.
"""

import re
from collections.abc import Callable, Mapping
from typing import Any

from podwire.dns.corefile.syntax import Directive
from podwire.dns.corefile.values import expect, expect_bare, seconds, whole
from podwire.dns.logformat import CLASSES, PLACEHOLDERS
from podwire.dns.names import address_bytes

Settings = dict[str, Any]
"""Fields of DnsConfig by name."""


def _read_health(directive: Directive, settings: Settings) -> None:
    _read_address(directive, settings, "health_port", 8080)
    for option in directive.block:
        if option.name != "lameduck" or len(option.arguments) != 1:
            raise option.wrong("expected lameduck and a time")
        settings["lameduck_seconds"] = seconds(option, option.arguments[0])


def _read_ready(directive: Directive, settings: Settings) -> None:
    _read_address(directive, settings, "ready_port", 8181)
    expect(not directive.block, directive, "podwire does not have options of ready")


def _read_prometheus(directive: Directive, settings: Settings) -> None:
    _read_address(directive, settings, "metrics_port", 9153)
    expect(not directive.block, directive, "podwire does not have options of prometheus")


def _read_address(directive: Directive, settings: Settings, field: str, port: int) -> None:
    if directive.arguments:
        host, _, text = directive.arguments[0].rpartition(":")
        port = whole(directive, text)
        # All pages have one address; an empty host is every address of the server.
        if settings.setdefault("http_address", host) != host:
            raise directive.wrong("expected one address for health, ready and prometheus")
    settings[field] = port


def _read_reload(directive: Directive, settings: Settings) -> None:
    expect(len(directive.arguments) < 3 and not directive.block, directive, "expected an interval, and a jitter")
    times = [seconds(directive, text) for text in directive.arguments]
    settings["reload_seconds"] = times[0] if times else 30.0


def _read_log(directive: Directive, settings: Settings) -> None:
    zones = [text for text in directive.arguments if "{" not in text]
    lines = [text for text in directive.arguments if "{" in text]
    expect(set(zones) <= {"."} and len(lines) < 2, directive, "podwire logs all names, in one format")
    for name in re.findall(r"\{([^{}\s]+)\}", lines[0]) if lines else ():
        expect(name in ("common", "combined", *PLACEHOLDERS), directive, f"podwire does not log {{{name}}}")
    for option in directive.block:
        known = option.name == "class" and set(option.arguments) <= {"all", *CLASSES}
        expect(known, option, f"expected class and {', '.join(CLASSES)} or all")
        classes = () if "all" in option.arguments else option.arguments
        settings["query_log_classes"] = classes
    settings["query_log"] = True
    if lines:
        settings["query_log_format"] = lines[0]


def _read_bind(directive: Directive, settings: Settings) -> None:
    expect(bool(directive.arguments) and not directive.block, directive, "expected addresses and no options")
    for text in directive.arguments:
        known = bool(address_bytes(text.partition("%")[0]))
        expect(known, directive, f"expected an address, got {text!r}; podwire does not look up interfaces")
    if settings.setdefault("listen", directive.arguments) != directive.arguments:
        raise directive.wrong("expected the same addresses in all server blocks")


def _read_loadbalance(directive: Directive, _settings: Settings) -> None:
    expect(directive.arguments in ((), ("round_robin",)) and not directive.block, directive, "expected round_robin")


def _accept(directive: Directive, _settings: Settings) -> None:
    """A plugin that says what podwire always does."""
    expect_bare(directive)


def _accept_argument(directive: Directive, _settings: Settings) -> None:
    """A plugin whose number podwire does not need: its own limits hold."""
    expect(len(directive.arguments) < 2 and not directive.block, directive, "expected at most one argument")


PROCESS_PLUGINS: Mapping[str, Callable[[Directive, Settings], None]] = {
    "health": _read_health,
    "ready": _read_ready,
    "prometheus": _read_prometheus,
    "reload": _read_reload,
    "bind": _read_bind,
    "log": _read_log,
    "errors": _accept,
    "loop": _accept,
    "metadata": _accept,
    "cancel": _accept_argument,
    "multisocket": _accept_argument,
    "loadbalance": _read_loadbalance,
}
"""The readers; each raises ConfigError with the line of what is wrong."""
