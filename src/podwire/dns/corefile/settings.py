"""What podwire does with the plugins of a Corefile: the settings of :class:`~podwire.dns.config.DnsConfig`. Pure.

A plugin or option that podwire does not have is an error with its line, never ignored. ``errors``, ``loop`` and
``loadbalance`` say what podwire always does.
"""

import re
from collections.abc import Callable
from typing import Any

import msgspec

from podwire.dns.config import DnsConfig, ForwardConfig
from podwire.dns.corefile.syntax import Directive, ReadFiles, ServerBlock
from podwire.dns.names import address_bytes
from podwire.errors import ConfigError, ConfigErrors

_DURATION = re.compile(r"(\d+(?:\.\d+)?)(ms|s|m|h)?")
_UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0}
_REVERSE = ("in-addr.arpa", "ip6.arpa")
_POLICIES = ("random", "round_robin", "sequential")

Settings = dict[str, Any]
"""Fields of DnsConfig by name."""


def read_settings(blocks: tuple[ServerBlock, ...], source: str, read_files: ReadFiles) -> DnsConfig:
    """The settings of all server blocks; ``read_files`` reads the files that a plugin names.

    Raises: ConfigErrors with one error for each directive that is wrong or that podwire does not have.
    """
    reader = _Reader(source, read_files)
    for block in blocks:
        reader.read_block(block)
    reader.check_zones()
    if reader.failures:
        raise ConfigErrors(reader.failures)
    return DnsConfig(**reader.settings)


class _Reader:
    def __init__(self, source: str, read_files: ReadFiles) -> None:
        self._read_files = read_files
        self._source = source
        self.failures: list[ConfigError] = []
        self._uncached: list[tuple[Directive, str]] = []
        self._routes: list[tuple[Directive, str]] = []
        # As in CoreDNS, an endpoint that no plugin asks for is off.
        self.settings: Settings = {"health_port": 0, "ready_port": 0, "metrics_port": 0, "pods": "disabled"}
        self.settings |= {"stub_domains": {}, "resolv_conf": "", "cache_seconds": 0}

    def read_block(self, block: ServerBlock) -> None:
        zones = []
        for key in block.zones:
            zone, port = _split_zone(key)
            zones.append(zone)
            if not port.isdigit() or self.settings.setdefault("port", int(port)) != int(port):
                self._fail(block.line, f"expected one port for all server blocks, got {key!r}")
        for directive in block.directives:
            try:
                self._read_plugin(directive, zones)
            except ConfigError as failure:
                self.failures.append(failure)

    def check_zones(self) -> None:
        """Reports what depends on the name of the cluster's zone, which may be read last."""
        domain = self.settings.get("domain", "")
        if not domain:
            self.failures.append(ConfigError(self._source, "", "expected the plugin kubernetes in a server block"))
        for option, zone in self._uncached:
            if _plain(zone) not in (domain, *_REVERSE):
                self.failures.append(option.wrong(f"expected the cluster's zone, got {zone!r}"))
        for directive, zone in self._routes:
            if domain and f".{zone}".endswith(f".{domain}"):
                self.failures.append(directive.wrong(f"podwire answers {zone} from the cluster {domain} itself"))

    def _fail(self, line: int, problem: str) -> None:
        self.failures.append(ConfigError(self._source, f"line {line}", problem))

    def _read_plugin(self, directive: Directive, zones: list[str]) -> None:
        readers: dict[str, Callable[[Directive, list[str]], None]] = {
            "kubernetes": self._read_kubernetes,
            "forward": self._read_forward,
            "cache": self._read_cache,
            "health": self._read_health,
            "ready": self._read_ready,
            "prometheus": self._read_prometheus,
            "reload": self._read_reload,
            "bind": self._read_bind,
            "hosts": self._read_hosts,
            "log": self._read_log,
            "errors": _no_options,
            "loop": _no_options,
            "loadbalance": _read_loadbalance,
        }
        reader = readers.get(directive.name)
        if reader is None:
            raise directive.wrong(f"podwire does not have this plugin; it has {', '.join(sorted(readers))}")
        reader(directive, zones)

    def _read_kubernetes(self, directive: Directive, zones: list[str]) -> None:
        names = [_plain(zone) for zone in directive.arguments or zones]
        domains = [name for name in names if not name.endswith(_REVERSE)]
        if len(domains) != 1 or domains == [""]:
            raise directive.wrong(f"expected one zone beside reverse zones, got {' '.join(names) or 'none'}")
        if "domain" in self.settings:
            raise directive.wrong("expected this plugin once")
        self.settings["domain"] = domains[0]
        reverse = tuple(name for name in names if name.endswith(_REVERSE))
        settings: Settings = {"reverse_zones": reverse, "fallthrough": ()}
        for option in directive.block:
            settings |= _kubernetes_option(option, names)
        self.settings |= settings

    def _read_forward(self, directive: Directive, zones: list[str]) -> None:
        if len(directive.arguments) < 2:
            raise directive.wrong("expected a zone and at least one server")
        base, *servers = directive.arguments
        forward = _forward_options(directive)
        for zone in zones if base == "." else [base]:
            self._add_route(directive, _plain(zone), tuple(servers), forward)

    def _add_route(self, directive: Directive, zone: str, servers: tuple[str, ...], forward: ForwardConfig) -> None:
        for server in servers:
            if "://" in server.replace("dns://", ""):
                raise directive.wrong(f"podwire forwards over UDP and TCP only, got {server!r}")
        plain = tuple(server.removeprefix("dns://") for server in servers)
        if zone:
            self._routes.append((directive, zone))
            forward = msgspec.structs.replace(forward, upstreams=plain)
            if zone in self.settings["stub_domains"]:
                raise directive.wrong(f"expected one forward for {zone}")
            self.settings["stub_domains"][zone] = forward
            return
        if "forward" in self.settings:
            raise directive.wrong("expected one forward for the root zone")
        self.settings["forward"] = msgspec.structs.replace(forward, upstreams=plain)

    def _read_cache(self, directive: Directive, zones: list[str]) -> None:
        """The highest time; of the cluster's own zone nothing is cached by time in podwire."""
        seconds = 3600
        if directive.arguments:
            seconds = _whole(directive, directive.arguments[0])
        for option in directive.block:
            if option.name == "serve_stale":
                self._read_stale(option)
                continue
            if option.name != "disable" or option.arguments[:1] not in (("success",), ("denial",)):
                raise option.wrong("podwire does not have this option of cache; it has serve_stale and disable")
            self._uncached += [(option, zone) for zone in option.arguments[1:]]
        if zones == [""] or "" in zones:
            self.settings["cache_seconds"] = seconds

    def _read_stale(self, option: Directive) -> None:
        arguments = list(option.arguments)
        modes = [text for text in arguments if text in ("immediate", "verify")]
        times = [_seconds(option, text) for text in arguments if text not in modes]
        _expect(len(modes) < 2 and len(times) < 2, option, "expected a time, and immediate or verify")
        self.settings["serve_stale_seconds"] = times[0] if times else 3600.0
        self.settings["serve_stale_verify"] = modes == ["verify"]

    def _read_health(self, directive: Directive, _zones: list[str]) -> None:
        self._read_address(directive, "health_port", 8080)
        for option in directive.block:
            if option.name != "lameduck" or len(option.arguments) != 1:
                raise option.wrong("expected lameduck and a time")
            self.settings["lameduck_seconds"] = _seconds(option, option.arguments[0])

    def _read_ready(self, directive: Directive, _zones: list[str]) -> None:
        self._read_address(directive, "ready_port", 8181)
        _expect(not directive.block, directive, "podwire does not have options of ready")

    def _read_prometheus(self, directive: Directive, _zones: list[str]) -> None:
        self._read_address(directive, "metrics_port", 9153)
        _expect(not directive.block, directive, "podwire does not have options of prometheus")

    def _read_address(self, directive: Directive, field: str, port: int) -> None:
        if directive.arguments:
            host, _, text = directive.arguments[0].rpartition(":")
            port = _whole(directive, text)
            # All pages have one address; an empty host is every address of the server.
            if self.settings.setdefault("http_address", host) != host:
                raise directive.wrong("expected one address for health, ready and prometheus")
        self.settings[field] = port

    def _read_reload(self, directive: Directive, _zones: list[str]) -> None:
        times = [_seconds(directive, text) for text in directive.arguments]
        _expect(len(times) < 3 and not directive.block, directive, "expected an interval and its jitter")
        self.settings["reload_seconds"] = times[0] if times else 30.0

    def _read_log(self, directive: Directive, _zones: list[str]) -> None:
        _expect(directive.arguments in ((), (".",)), directive, "podwire logs the queries of all zones or of none")
        _expect(not directive.block, directive, "podwire does not have options of log")
        self.settings["query_log"] = True

    def _read_hosts(self, directive: Directive, _zones: list[str]) -> None:
        _expect(len(directive.arguments) < 2, directive, "podwire has hosts for all zones: expected at most a file")
        hosts: dict[str, tuple[str, ...]] = dict(self.settings.get("hosts", {}))
        lines = [(line, (line.name, *line.arguments)) for line in directive.block]
        for file in directive.arguments:
            text = self._read_text(directive, file)
            lines += [
                (directive, tuple(row.split("#")[0].split())) for row in text.splitlines() if row.split("#")[0].strip()
            ]
        passes_on = False
        for line, fields in lines:
            match fields:
                case "fallthrough", *zones:
                    _expect(not zones, line, "podwire has fallthrough of hosts for all zones")
                    passes_on = True
                case "ttl", seconds:
                    self.settings["hosts_ttl_seconds"] = _whole(line, seconds)
                case "reload", _:
                    raise line.wrong("podwire reads the file again with the Corefile: use the plugin reload")
                case address, *names if address_bytes(address) and names:
                    for name in map(_plain, names):
                        hosts[name] = (*hosts.get(name, ()), address)
                case _:
                    raise line.wrong(f"expected an address and names, got {' '.join(fields)!r}")
        _expect(passes_on, directive, "expected fallthrough: without it, no other name would be answered")
        self.settings["hosts"] = hosts

    def _read_text(self, directive: Directive, file: str) -> str:
        texts = self._read_files(file)
        _expect(bool(texts), directive, f"cannot read {file}")
        return "\n".join(texts.values())

    def _read_bind(self, directive: Directive, _zones: list[str]) -> None:
        _expect(bool(directive.arguments) and not directive.block, directive, "expected addresses and no options")
        self.settings["listen"] = directive.arguments


def _kubernetes_option(option: Directive, zones: list[str]) -> Settings:
    match option.name, option.arguments:
        case "pods", (("disabled" | "insecure" | "verified") as mode,):
            return {"pods": mode}
        case "ttl", (seconds,):
            number = _whole(option, seconds)
            _expect(number <= 3600, option, f"expected 0 to 3600 seconds, got {number}")
            return {"ttl_seconds": number}
        case "endpoint_pod_names", ():
            return {"endpoint_pod_names": True}
        case "namespaces", (_, *_):
            return {"namespaces": option.arguments}
        case "ignore", ("empty_service",):
            return {"ignore_empty_service": True}
        case "kubeconfig", (file,):
            return {"kubeconfig": file}
        case "fallthrough", names:
            return {"fallthrough": tuple(_plain(name) for name in names) or tuple(zones)}
    raise option.wrong(f"podwire does not have this option of kubernetes, or not with {' '.join(option.arguments)!r}")


def _forward_options(directive: Directive) -> ForwardConfig:
    options: Settings = {"policy": "random"}
    for option in directive.block:
        match option.name, option.arguments:
            case "policy", (policy,) if policy in _POLICIES:
                options["policy"] = policy
            case "force_tcp", ():
                options["force_tcp"] = True
            case "prefer_udp", ():
                options["prefer_udp"] = True
            case "max_concurrent", (number,):
                options["max_concurrent"] = _whole(option, number)
            case "max_fails", (number,):
                options["max_fails"] = _whole(option, number)
            case "health_check", (interval,):
                options["health_check_seconds"] = _seconds(option, interval)
            case _:
                text = " ".join(option.arguments)
                raise option.wrong(f"podwire does not have this option of forward, or not with {text!r}")
    return ForwardConfig(**options)


def _read_loadbalance(directive: Directive, _zones: list[str]) -> None:
    _expect(directive.arguments in ((), ("round_robin",)) and not directive.block, directive, "expected round_robin")


def _no_options(directive: Directive, _zones: list[str]) -> None:
    _expect(not directive.arguments and not directive.block, directive, "podwire does not have options of this plugin")


def _expect(condition: bool, directive: Directive, problem: str) -> None:  # noqa: FBT001
    if not condition:
        raise directive.wrong(problem)


def _split_zone(key: str) -> tuple[str, str]:
    """Zone and port of the key of a server block."""
    text = key.removeprefix("dns://")
    zone, colon, port = text.rpartition(":")
    return (_plain(zone), port) if colon else (_plain(text), "53")


def _plain(zone: str) -> str:
    """A zone in lower case without the final dot; the root is empty."""
    return zone.lower().removesuffix(".")


def _whole(directive: Directive, text: str) -> int:
    _expect(text.isdigit(), directive, f"expected a whole number, got {text!r}")
    return int(text)


def _seconds(directive: Directive, text: str) -> float:
    match = _DURATION.fullmatch(text)
    if match is None:
        raise directive.wrong(f"expected a time such as 5s or 500ms, got {text!r}")
    return float(match[1]) * _UNITS[match[2] or "s"]
