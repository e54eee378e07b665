"""What podwire does with the plugins of a Corefile: the settings of :class:`~podwire.dns.config.DnsConfig`. Pure.

Plugins that are settings of the server are read here; those that handle requests stay as they were written, in
``blocks``, and are checked by making their chain (:mod:`podwire.dns.plugins.chain`). A plugin or option that podwire
does not have is an error with its line, never ignored. ``errors``, ``loop`` and ``loadbalance`` say what podwire always
does.
"""

import re
from collections.abc import Callable
from typing import Any

import msgspec

from podwire.dns.config import CacheConfig, DnsConfig, ForwardConfig, PluginBlock
from podwire.dns.corefile.caching import read_cache
from podwire.dns.corefile.forwarding import read_forward
from podwire.dns.corefile.hostlines import HostLines, hosts_file, read_host_lines
from podwire.dns.corefile.serverkeys import parse_key
from podwire.dns.corefile.syntax import Directive, ReadFiles, ServerBlock
from podwire.dns.corefile.values import expect, expect_bare, plain, seconds, whole
from podwire.dns.logformat import CLASSES, PLACEHOLDERS
from podwire.dns.plugins.chain import make_chain
from podwire.dns.plugins.plugin import PluginScope
from podwire.dns.plugins.registry import LINKED, PLUGINS
from podwire.dns.zone import Zone, ZoneOptions
from podwire.errors import ConfigError, ConfigErrors

_REVERSE = ("in-addr.arpa", "ip6.arpa")
_REFUSED = {
    "azure": "podwire reads zones from files and other servers, not from clouds",
    "clouddns": "podwire reads zones from files and other servers, not from clouds",
    "debug": "podwire logs failures and goes on; debug would end the server at the first",
    "dnstap": "podwire has a query log (plugin log) instead of dnstap",
    "dnssec": "podwire does not sign answers",
    "erratic": "podwire has no plugin for wrong answers on purpose",
    "etcd": "podwire reads Services from the Kubernetes API only",
    "geoip": "podwire does not know where clients are",
    "grpc": "podwire forwards over UDP, TCP and TLS",
    "grpc_server": "podwire serves DNS over UDP and TCP",
    "https": "podwire serves DNS over UDP and TCP",
    "https3": "podwire serves DNS over UDP and TCP",
    "nomad": "podwire reads Services from the Kubernetes API only",
    "on": "podwire starts no programs",
    "pprof": "podwire is no Go program; metrics are on the page of prometheus",
    "quic": "podwire serves DNS over UDP and TCP",
    "root": "give whole paths",
    "route53": "podwire reads zones from files and other servers, not from clouds",
    "sign": "podwire does not sign zones",
    "timeouts": "the times of podwire are fixed: 10 s for the next request, 5 s for a client that does not read",
    "tls": "podwire serves DNS over UDP and TCP; it forwards over TLS (forward . tls://ADDRESS)",
    "trace": "podwire has no tracing; podwire why dns explains a name",
    "tsig": "podwire does not sign messages",
}
"""The plugins that podwire refuses for a reason worth telling."""

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
    reader.check_plugins()
    if reader.failures:
        raise ConfigErrors(reader.failures)
    return DnsConfig(**reader.settings)


class _Block(msgspec.Struct):
    """The server block that is read: its zones, its view or an empty text, and its plugins."""

    zones: list[str]
    view: str = ""
    directives: list[Directive] = []
    cluster: bool = False
    forwards: bool = False


class _Reader:
    def __init__(self, source: str, read_files: ReadFiles) -> None:
        self._read_files = read_files
        self._source = source
        self.failures: list[ConfigError] = []
        self._uncached: list[tuple[Directive, str]] = []
        self._routes: list[tuple[Directive, str]] = []
        self._blocks: list[_Block] = []
        # As in CoreDNS, an endpoint that no plugin asks for is off.
        self.settings: Settings = {"health_port": 0, "ready_port": 0, "metrics_port": 0, "pods": "disabled"}
        self.settings |= {"stub_domains": {}, "resolv_conf": "", "cache_seconds": 0, "files": {}, "caches": {}}
        self.settings["view_forwards"] = {}

    def read_block(self, server_block: ServerBlock) -> None:
        zones: list[str] = []
        for key in server_block.zones:
            try:
                key_zones, port = parse_key(key)
            except ValueError as failure:
                self._fail(server_block.line, str(failure))
                continue
            zones += key_zones
            if self.settings.setdefault("port", port) != port:
                self._fail(server_block.line, f"expected one port for all server blocks, got {key!r}")
        views = [directive.arguments[0] for directive in server_block.directives if directive.name == "view"
                 and directive.arguments]  # fmt: skip
        block = _Block(zones, views[0] if views else "")
        self._blocks.append(block)
        for directive in server_block.directives:
            try:
                self._read_plugin(directive, block)
            except ConfigError as failure:
                self.failures.append(failure)

    def check_zones(self) -> None:
        """Reports what depends on the name of the cluster's zone, which may be read last."""
        domain = self.settings.get("domain", "")
        if not domain:
            self.failures.append(ConfigError(self._source, "", "expected the plugin kubernetes in a server block"))
        for option, zone in self._uncached:
            if zone not in (domain, *_REVERSE):
                self.failures.append(option.wrong(f"expected the cluster's zone, got {zone!r}"))
        for directive, zone in self._routes:
            if domain and f".{zone}".endswith(f".{domain}"):
                self.failures.append(directive.wrong(f"podwire answers {zone} from the cluster {domain} itself"))

    def check_plugins(self) -> None:
        """Makes the chains of all server blocks, if one of them has plugins that handle requests."""
        if self.failures or not any(block.directives for block in self._blocks):
            return
        domain = self.settings["domain"]
        cluster = Zone(ZoneOptions(domain=domain))
        blocks = []
        for block in self._blocks:
            plugins = PluginBlock(
                zones=tuple(block.zones),
                directives=tuple(block.directives),
                cluster=block.cluster,
                forwards=block.forwards,
            )
            scope = PluginScope(
                zones=(), cluster=cluster, domain=domain, pods=self.settings["pods"], files=self.settings["files"]
            )
            try:
                make_chain(plugins, scope)
            except ConfigErrors as failures:
                self.failures += failures.failures
            except ConfigError as failure:
                self.failures.append(failure)
            blocks.append(plugins)
        self.settings["blocks"] = tuple(blocks)

    def _fail(self, line: int, problem: str) -> None:
        self.failures.append(ConfigError(self._source, f"line {line}", problem))

    def _read_plugin(self, directive: Directive, block: _Block) -> None:
        readers: dict[str, Callable[[Directive, _Block], None]] = {
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
            "errors": _accept,
            "loop": _accept,
            "metadata": _accept,
            "cancel": _accept_argument,
            "multisocket": _accept_argument,
            "loadbalance": _read_loadbalance,
        }
        name = directive.name
        if name in readers:
            readers[name](directive, block)
        elif (name in PLUGINS and name not in LINKED) or name == "view":
            self._read_handler(directive, block)
        elif name in _REFUSED:
            raise directive.wrong(f"podwire does not have this plugin: {_REFUSED[name]}")
        else:
            known = ", ".join(sorted({*readers, *PLUGINS, "view"}))
            raise directive.wrong(f"podwire does not have this plugin; it has {known}")

    def _read_handler(self, directive: Directive, block: _Block) -> None:
        """Keeps a plugin that handles requests, with the texts of the files that it names."""
        block.directives = [*block.directives, directive]
        files: list[str] = []
        if directive.name == "file":
            files = list(directive.arguments[:1])
        elif directive.name == "hosts":
            files = [hosts_file(directive)]
        elif directive.name == "autopath" and directive.arguments and not directive.arguments[-1].startswith("@"):
            files = [directive.arguments[-1]]
        for file in files:
            self.settings["files"] |= self._read_file(file)
        for option in directive.block if directive.name == "auto" else ():
            for folder in option.arguments[:1]:
                texts = self._read_files(f"{folder.rstrip('/')}/*")
                named = {f"{folder.rstrip('/')}/{path.rpartition('/')[2]}": text for path, text in texts.items()}
                self.settings["files"] |= named

    def _read_file(self, file: str) -> dict[str, str]:
        """The text of a file under the name that the Corefile gives it; empty when it cannot be read."""
        texts = self._read_files(file)
        return {file: "\n".join(texts.values())} if texts else {}

    def _read_kubernetes(self, directive: Directive, block: _Block) -> None:
        names = [plain(zone) for zone in directive.arguments or block.zones]
        imported = [plain(o.arguments[0]) for o in directive.block if o.name == "multicluster" and o.arguments]
        names = [name for name in names if name not in imported]
        domains = [name for name in names if not name.endswith(_REVERSE)]
        if len(domains) != 1 or domains == [""]:
            raise directive.wrong(f"expected one zone beside reverse zones, got {' '.join(names) or 'none'}")
        if "domain" in self.settings:
            raise directive.wrong("expected this plugin once")
        block.cluster = True
        self.settings["domain"] = domains[0]
        reverse = tuple(name for name in names if name.endswith(_REVERSE))
        settings: Settings = {"reverse_zones": reverse, "fallthrough": ()}
        for option in directive.block:
            settings |= _kubernetes_option(option, names)
        self.settings |= settings

    def _read_forward(self, directive: Directive, block: _Block) -> None:
        base, forward = read_forward(directive)
        block.forwards = True
        for zone in [base] if base else block.zones:
            self._add_route(directive, zone, forward, block.view)

    def _add_route(self, directive: Directive, zone: str, forward: ForwardConfig, view: str) -> None:
        if view:
            routes = self.settings["view_forwards"].setdefault(view, {})
            expect(zone not in routes, directive, f"expected one forward for {zone or 'the root zone'} in view {view}")
            routes[zone] = forward
            return
        if zone:
            self._routes.append((directive, zone))
            expect(zone not in self.settings["stub_domains"], directive, f"expected one forward for {zone}")
            self.settings["stub_domains"][zone] = forward
            return
        expect("forward" not in self.settings, directive, "expected one forward for the root zone")
        self.settings["forward"] = forward

    def _read_cache(self, directive: Directive, block: _Block) -> None:
        cache, zones, disabled = read_cache(directive)
        self._uncached += disabled
        for zone in zones or tuple(block.zones):
            if zone:
                self.settings["caches"][zone] = cache
                continue
            self.settings["cache_seconds"] = cache.success_seconds
            self.settings["serve_stale_seconds"] = cache.serve_stale_seconds
            self.settings["serve_stale_verify"] = cache.serve_stale_verify
            simple = CacheConfig(
                success_seconds=cache.success_seconds,
                denial_seconds=cache.denial_seconds,
                serve_stale_seconds=cache.serve_stale_seconds,
                serve_stale_verify=cache.serve_stale_verify,
            )
            if cache != simple or cache.denial_seconds != cache.success_seconds:
                self.settings["caches"]["."] = cache

    def _read_health(self, directive: Directive, _block: _Block) -> None:
        self._read_address(directive, "health_port", 8080)
        for option in directive.block:
            if option.name != "lameduck" or len(option.arguments) != 1:
                raise option.wrong("expected lameduck and a time")
            self.settings["lameduck_seconds"] = seconds(option, option.arguments[0])

    def _read_ready(self, directive: Directive, _block: _Block) -> None:
        self._read_address(directive, "ready_port", 8181)
        expect(not directive.block, directive, "podwire does not have options of ready")

    def _read_prometheus(self, directive: Directive, _block: _Block) -> None:
        self._read_address(directive, "metrics_port", 9153)
        expect(not directive.block, directive, "podwire does not have options of prometheus")

    def _read_address(self, directive: Directive, field: str, port: int) -> None:
        if directive.arguments:
            host, _, text = directive.arguments[0].rpartition(":")
            port = whole(directive, text)
            # All pages have one address; an empty host is every address of the server.
            if self.settings.setdefault("http_address", host) != host:
                raise directive.wrong("expected one address for health, ready and prometheus")
        self.settings[field] = port

    def _read_reload(self, directive: Directive, _block: _Block) -> None:
        expect(len(directive.arguments) < 3 and not directive.block, directive, "expected an interval, and a jitter")
        times = [seconds(directive, text) for text in directive.arguments]
        self.settings["reload_seconds"] = times[0] if times else 30.0

    def _read_log(self, directive: Directive, _block: _Block) -> None:
        zones = [text for text in directive.arguments if "{" not in text]
        lines = [text for text in directive.arguments if "{" in text]
        expect(set(zones) <= {"."} and len(lines) < 2, directive, "podwire logs all names, in one format")
        for name in re.findall(r"\{([^{}\s]+)\}", lines[0]) if lines else ():
            expect(name in ("common", "combined", *PLACEHOLDERS), directive, f"podwire does not log {{{name}}}")
        for option in directive.block:
            known = option.name == "class" and set(option.arguments) <= {"all", *CLASSES}
            expect(known, option, f"expected class and {', '.join(CLASSES)} or all")
            classes = () if "all" in option.arguments else option.arguments
            self.settings["query_log_classes"] = classes
        self.settings["query_log"] = True
        if lines:
            self.settings["query_log_format"] = lines[0]

    def _read_hosts(self, directive: Directive, block: _Block) -> None:
        lines = read_host_lines(directive, self._read_file(hosts_file(directive)))
        if block.view or lines.zones or lines.passes_on != (b"\x00",):
            self._read_handler(directive, block)
            return
        block.cluster = True
        hosts: dict[str, tuple[str, ...]] = dict(self.settings.get("hosts", {}))
        for name, addresses in lines.hosts.items():
            hosts[name] = (*hosts.get(name, ()), *addresses)
        self.settings["hosts"] = hosts
        if lines.ttl_s != HostLines({}).ttl_s:
            self.settings["hosts_ttl_seconds"] = lines.ttl_s

    def _read_bind(self, directive: Directive, _block: _Block) -> None:
        expect(bool(directive.arguments) and not directive.block, directive, "expected addresses and no options")
        if self.settings.setdefault("listen", directive.arguments) != directive.arguments:
            raise directive.wrong("expected the same addresses in all server blocks")


def _kubernetes_option(option: Directive, zones: list[str]) -> Settings:
    match option.name, option.arguments:
        case "pods", (("disabled" | "insecure" | "verified") as mode,):
            return {"pods": mode}
        case "ttl", (text,):
            number = whole(option, text)
            expect(number <= 3600, option, f"expected 0 to 3600 seconds, got {number}")
            return {"ttl_seconds": number}
        case ("endpoint_pod_names" | "zonal") as field, ():
            return {field: True}
        case "multicluster", (zone,):
            return {"clusterset": plain(zone)}
        case "namespaces", (_, *_):
            return {"namespaces": option.arguments}
        case "ignore", ("empty_service",):
            return {"ignore_empty_service": True}
        case "kubeconfig", (file,):
            return {"kubeconfig": file}
        case "fallthrough", names:
            return {"fallthrough": tuple(plain(name) for name in names) or tuple(zones)}
    raise option.wrong(f"podwire does not have this option of kubernetes, or not with {' '.join(option.arguments)!r}")


def _read_loadbalance(directive: Directive, _block: _Block) -> None:
    expect(directive.arguments in ((), ("round_robin",)) and not directive.block, directive, "expected round_robin")


def _accept(directive: Directive, _block: _Block) -> None:
    """A plugin that says what podwire always does."""
    expect_bare(directive)


def _accept_argument(directive: Directive, _block: _Block) -> None:
    """A plugin whose number podwire does not need: its own limits hold."""
    expect(len(directive.arguments) < 2 and not directive.block, directive, "expected at most one argument")
