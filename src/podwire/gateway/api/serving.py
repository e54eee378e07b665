"""The listeners of an entry for the ports of Gateways, with what routes are attached.

An HTTP port has one table. On a port with TLS the server name chooses the listener; each HTTPS listener has its table,
and a TLS listener a stream for each server name. A request over TLS whose host belongs to another listener of the port
answers 421. On TCP and UDP ports the oldest route serves everything.
"""

import msgspec

from podwire.gateway.api.attachment import ANY_HOST, RouteAttachment, by_age, covers
from podwire.gateway.api.compiler import RouteCompiler
from podwire.gateway.api.filters import Scheme
from podwire.gateway.api.hosts import HostRoutes, misdirected, own_host, virtual_hosts
from podwire.gateway.api.listeners import CheckedListener
from podwire.gateway.routes import (
    Certificate,
    EntryBackend,
    EntryListener,
    GatewayEntry,
    RouteTable,
    StreamTarget,
    TlsServer,
    TrustedAuthority,
)
from podwire.gateway.served import certificate_name
from podwire.model.gatewayapi import HttpRoute
from podwire.model.gatewayroutes import ApiRoute, GrpcRoute

Attached = list[tuple[ApiRoute, RouteAttachment]]


class EntryBuilder:
    """Collects the listeners of all Gateways and what they need."""

    def __init__(self) -> None:
        self._listeners: list[EntryListener] = []
        self._tables: dict[str, RouteTable] = {}
        self._backends: dict[str, EntryBackend] = {}
        self._certificates: dict[str, Certificate] = {}
        self._authorities: dict[str, TrustedAuthority] = {}

    def entry(self) -> GatewayEntry:
        """The entry."""
        return GatewayEntry(
            listeners=tuple(self._listeners),
            tables=self._tables,
            backends=self._backends,
            certificates=self._certificates,
            authorities=self._authorities,
        )

    def add_certificate(self, certificate: Certificate) -> str:
        """Adds a certificate; returns its name in the entry."""
        name = certificate_name(certificate.name)
        self._certificates[name] = msgspec.structs.replace(certificate, name=name)
        return name

    def add_authorities(self, authorities: dict[str, TrustedAuthority]) -> None:
        """Adds authorities of clients or backends."""
        self._authorities |= authorities

    def serve(
        self,
        gateway: str,
        engine_port: int,
        listeners: tuple[CheckedListener, ...],
        attached: Attached,
        compiler: RouteCompiler,
    ) -> None:
        """Adds the listener of a port of a Gateway; its listeners are of one family."""
        port, family = listeners[0].listener.port, listeners[0].family
        name = f"gateway {gateway}:{port}" + ("/udp" if family == "UDP" else "")
        if family == "HTTP":
            by_host = {
                own_host(entry.listener.hostname): self._requests(entry, Scheme("http", port), attached, compiler)
                for entry in listeners
            }
            self._tables[name] = RouteTable(name=name, hosts=virtual_hosts(by_host))
            added = EntryListener(name=name, port=engine_port, client_port=port, protocol="HTTP", table=name)
        elif family == "TLS":
            servers: list[TlsServer] = []
            for entry in listeners:
                servers += self._servers(name, entry, listeners, attached, compiler)
            added = EntryListener(
                name=name, port=engine_port, client_port=port, protocol="HTTPS", servers=tuple(servers)
            )
        else:
            stream = self._oldest(listeners[0].id, attached, compiler)
            protocol = "UDP" if family == "UDP" else "TCP"
            added = msgspec.convert(
                {"name": name, "port": engine_port, "client_port": port, "protocol": protocol}, EntryListener
            )
            added = msgspec.structs.replace(added, stream=stream)
        sets = dict.fromkeys(entry.set_key for entry in listeners if entry.set_key)
        sources = (f"Gateway {gateway}", *(f"ListenerSet {key}" for key in sets))
        self._listeners.append(msgspec.structs.replace(added, sources=sources))

    def _servers(
        self,
        name: str,
        entry: CheckedListener,
        listeners: tuple[CheckedListener, ...],
        attached: Attached,
        compiler: RouteCompiler,
    ) -> list[TlsServer]:
        """The servers of a listener with TLS."""
        own = own_host(entry.listener.hostname)
        rivals = [host for other in listeners if (host := own_host(other.listener.hostname)) != own]
        certificates = tuple(self.add_certificate(value) for value in entry.certificates)
        if entry.listener.protocol == "TLS":
            streams = self._streams(entry, attached, compiler)
            hosts = {host: stream for host, stream in streams.items() if not _belongs(host, own, rivals)}
            if own != ANY_HOST:
                hosts.setdefault(own, StreamTarget(source=f"{name} {entry.id}"))
            return [
                TlsServer(names=() if host == ANY_HOST else (host,), certificates=certificates, stream=stream)
                for host, stream in hosts.items()
            ]
        table = f"{name} {entry.id}"
        scheme = Scheme("https", entry.listener.port)
        hosts_of_port = {own: self._requests(entry, scheme, attached, compiler), **dict.fromkeys(rivals, ())}
        self._tables[table] = RouteTable(name=table, hosts=misdirected(virtual_hosts(hosts_of_port), rivals, table))
        names = () if own == ANY_HOST else (own,)
        return [TlsServer(names=names, certificates=certificates, table=table, clients=entry.clients)]

    def _requests(
        self, entry: CheckedListener, scheme: Scheme, attached: Attached, compiler: RouteCompiler
    ) -> tuple[HostRoutes, ...]:
        routes = []
        for route, attachment in attached:
            for host in attachment.hosts.get(entry.id, ()):
                assert isinstance(route, HttpRoute | GrpcRoute)
                compiled = compiler.requests(route, scheme)
                self._backends |= compiled.backends
                self._authorities |= compiled.authorities
                routes.append(HostRoutes(host=host, routes=compiled.routes))
        return tuple(routes)

    def _streams(self, entry: CheckedListener, attached: Attached, compiler: RouteCompiler) -> dict[str, StreamTarget]:
        """The target of each host of a listener, that of the oldest route."""
        targets: dict[str, StreamTarget] = {}
        for route, attachment in sorted(attached, key=lambda item: by_age(item[0])):
            for host in attachment.hosts.get(entry.id, ()):
                compiled = compiler.stream(route)
                if compiled.target is not None and host not in targets:
                    targets[host] = compiled.target
                    self._backends |= compiled.backends
        return targets

    def _oldest(self, listener: str, attached: Attached, compiler: RouteCompiler) -> StreamTarget | None:
        for route, attachment in sorted(attached, key=lambda item: by_age(item[0])):
            if listener in attachment.hosts:
                compiled = compiler.stream(route)
                self._backends |= compiled.backends
                return compiled.target
        return None


def _belongs(host: str, own: str, rivals: list[str]) -> bool:
    """Whether a host of a listener belongs to a narrower one of the same port."""
    return any(covers(own, other) and covers(other, host) for other in rivals)
