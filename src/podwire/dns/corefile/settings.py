"""What podwire does with the plugins of a Corefile: the settings of :class:`~podwire.dns.config.DnsConfig`. Pure.

Plugins that are settings of the server are read here; those that handle requests stay as they were written, in
``blocks``, and are checked by making their chain (:mod:`podwire.dns.plugins.chain`). A plugin or option that podwire
does not have is an error with its line, never ignored.
"""

import hashlib
from collections.abc import Callable, Iterable

import msgspec

from podwire.dns.config import CacheConfig, DnsConfig, PluginBlock
from podwire.dns.corefile.caching import read_cache
from podwire.dns.corefile.encryption import PlainBlock, check_encrypted, read_tls
from podwire.dns.corefile.forwarding import ZoneForward, link_forwards, read_forward
from podwire.dns.corefile.hostlines import HostLines, hosts_file, read_host_lines
from podwire.dns.corefile.process import PROCESS_PLUGINS, Settings
from podwire.dns.corefile.serverkeys import parse_key
from podwire.dns.corefile.syntax import Directive, ReadFiles, ServerBlock
from podwire.dns.corefile.values import expect, plain, whole
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
    "grpc_server": "podwire serves DNS over UDP, TCP and TLS",
    "https": "podwire serves DNS over UDP, TCP and TLS",
    "https3": "podwire serves DNS over UDP, TCP and TLS",
    "nomad": "podwire reads Services from the Kubernetes API only",
    "on": "podwire starts no programs",
    "pprof": "podwire is no Go program; metrics are on the page of prometheus",
    "quic": "podwire serves DNS over UDP, TCP and TLS",
    "root": "give whole paths",
    "route53": "podwire reads zones from files and other servers, not from clouds",
    "sign": "podwire does not sign zones",
    "timeouts": "the times of podwire are fixed: 10 s for the next request, 5 s for a client that does not read",
    "trace": "podwire has no tracing; podwire why dns explains a name",
    "tsig": "podwire does not sign messages",
}
"""The plugins that podwire refuses for a reason worth telling."""


def read_settings(blocks: tuple[ServerBlock, ...], source: str, read_files: ReadFiles) -> DnsConfig:
    """The settings of all server blocks; ``read_files`` reads the files that a plugin names.

    Raises: ConfigErrors with one error for each directive that is wrong or that podwire does not have.
    """
    reader = _Reader(source, read_files)
    for block in blocks:
        reader.read_block(block)
    reader.check_zones()
    reader.check_encrypted()
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
    forwards: list[ZoneForward] = []


class _Reader:
    def __init__(self, source: str, read_files: ReadFiles) -> None:
        self._read_files = read_files
        self._source = source
        self.failures: list[ConfigError] = []
        self._uncached: list[tuple[Directive, str]] = []
        self._routes: list[tuple[Directive, str]] = []
        self._blocks: list[_Block] = []
        self._plain: list[PlainBlock] = []
        self._encrypted: list[tuple[ServerBlock, tuple[str, ...]]] = []
        # As in CoreDNS, an endpoint that no plugin asks for is off.
        self.settings: Settings = {"health_port": 0, "ready_port": 0, "metrics_port": 0, "pods": "disabled"}
        self.settings |= {"stub_domains": {}, "resolv_conf": "", "cache_seconds": 0, "files": {}, "caches": {}}
        self.settings["view_forwards"] = {}

    def _read_keys(self, server_block: ServerBlock) -> tuple[list[str], list[str]]:
        """The zones that a server block answers over UDP and TCP, and those that it answers over TLS."""
        plain_zones: list[str] = []
        encrypted: list[str] = []
        for key in server_block.zones:
            try:
                own = parse_key(key)
            except ValueError as failure:
                self._fail(server_block.line, str(failure))
                continue
            (encrypted if own.encrypted else plain_zones).extend(own.zones)
            if self.settings.setdefault("tls_port" if own.encrypted else "port", own.port) != own.port:
                self._fail(server_block.line, f"expected one port for all server blocks, got {key!r}")
        return plain_zones, encrypted

    def read_block(self, server_block: ServerBlock) -> None:
        zones, encrypted = self._read_keys(server_block)
        if encrypted:
            self._encrypted.append((server_block, tuple(encrypted)))
        if encrypted and not zones:
            self._read_directives([d for d in server_block.directives if d.name == "tls"], _Block([]))
            return
        self._plain.append(PlainBlock(server_block, tuple(zones)))
        views = [directive.arguments[0] for directive in server_block.directives if directive.name == "view"
                 and directive.arguments]  # fmt: skip
        block = _Block(zones, views[0] if views else "")
        self._blocks.append(block)
        self._read_directives(server_block.directives, block)
        try:
            for own in link_forwards(block.forwards):
                self._add_route(own, block.view)
        except ConfigError as failure:
            self.failures.append(failure)

    def _read_directives(self, directives: Iterable[Directive], block: _Block) -> None:
        for directive in directives:
            try:
                self._read_plugin(directive, block)
            except ConfigError as failure:
                self.failures.append(failure)

    def check_encrypted(self) -> None:
        """Reports server blocks for TLS that have other zones or plugins than a plain one, or no certificate."""
        for block, zones in self._encrypted:
            if problem := check_encrypted(block, zones, self._plain):
                self._fail(block.line, problem)
        if self._encrypted and "serving_tls" not in self.settings:
            self._fail(self._encrypted[0][0].line, "expected the plugin tls with a certificate and a key")

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
                forwards=bool(block.forwards),
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
            "tls": self._read_tls,
            "hosts": self._read_hosts,
        }
        name = directive.name
        if name in readers:
            readers[name](directive, block)
        elif name in PROCESS_PLUGINS:
            PROCESS_PLUGINS[name](directive, self.settings)
        elif (name in PLUGINS and name not in LINKED) or name == "view":
            self._read_handler(directive, block)
        elif name in _REFUSED:
            raise directive.wrong(f"podwire does not have this plugin: {_REFUSED[name]}")
        else:
            known = ", ".join(sorted({*readers, *PROCESS_PLUGINS, *PLUGINS, "view"}))
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
        zones = [base] if base else block.zones
        block.forwards = [*block.forwards, *(ZoneForward(directive, zone, forward) for zone in zones)]

    def _add_route(self, own: ZoneForward, view: str) -> None:
        directive, zone, forward = own
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

    def _read_tls(self, directive: Directive, _block: _Block) -> None:
        tls = read_tls(directive)
        if self.settings.setdefault("serving_tls", tls) != tls:
            raise directive.wrong("expected the same certificate in all server blocks")
        for file in filter(None, (tls.certificate, tls.key, tls.authorities)):
            # A changed file is a changed configuration. A key is not kept outside its file.
            texts = self._read_file(file)
            digests = {name: hashlib.sha256(text.encode()).hexdigest() for name, text in texts.items()}
            self.settings["files"] |= digests

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
