"""The elements of all Services of one family, the pools of the relay, and the change when Services change (pure).

A Service port has one pool for each endpoint list that a frontend uses: ``cluster`` for all endpoints, ``local`` for
the endpoints of this node. Pools are made first (:func:`pools`), because an element names the port on which the relay
listens; then the elements (:meth:`Contents.change`). A frontend whose pool has no port is refused.

A cluster address that several ports share is counted. A frontend can belong to one Service only, the first Service that
claims it. SCTP is not relayed; packets to such a port are refused.
"""

from collections.abc import Iterable, Mapping

from podwire.proxy.claims import FrontendClaims
from podwire.proxy.dataplanes.userspace.layout import TABLE, UserspaceLayout
from podwire.proxy.dataplanes.userspace.messages import RelayPool
from podwire.proxy.nft_layout import FrontendKey
from podwire.proxy.servicemap import ResolvedEndpoint, ResolvedPort
from podwire.state.nft import Element, Set, Table
from podwire.state.nft_diff import AddElements, DeleteElements, Operation, Transaction
from podwire.state.nft_rules import Verdict
from podwire.state.nft_types import data_type, pack

Elements = dict[tuple[str, bytes], Element]
"""Elements by their set and key."""

RELAYED = ("tcp", "udp")
_REFUSE = Verdict("goto", "refuse")
_DROP = Verdict("drop")


def pool_key(port: ResolvedPort, endpoints: str) -> str:
    """The key of the pool for ``cluster`` or ``local`` endpoints of a port."""
    return f"{port.family} {port.key} {endpoints}"


def pools(ports: Iterable[ResolvedPort], layout: UserspaceLayout) -> tuple[RelayPool, ...]:
    """The pools that these ports of one family need."""
    address = layout.relay_address
    if not address:
        return ()
    return tuple(
        RelayPool(
            key=pool_key(port, name),
            protocol=port.protocol,
            address=address,
            endpoints=tuple((endpoint.address, endpoint.port) for endpoint in endpoints),
            serving=port.serving if port.protocol == "udp" else frozenset(),
            affinity_s=port.affinity_s,
            mark=layout.facts.masquerade_mark,
        )
        for port in ports
        if port.protocol in RELAYED
        for name, endpoints in _lists(port).items()
        if endpoints
    )


def _lists(port: ResolvedPort) -> dict[str, tuple[ResolvedEndpoint, ...]]:
    """The endpoint lists that frontends of a port use."""
    outside = bool(port.node_port or port.external_ips or port.load_balancer_ips)
    used: dict[str, tuple[ResolvedEndpoint, ...]] = {}
    if not port.internal_local or outside:
        used["cluster"] = port.cluster_endpoints
    if port.internal_local or (outside and port.external_local):
        used["local"] = port.local_endpoints
    return used


class _Compiler:
    """Compiles ports to elements."""

    def __init__(self, layout: UserspaceLayout, ports: Mapping[str, int]) -> None:
        self._layout = layout
        self._ports = ports
        self._types = (layout.address, "inet_proto", "inet_service")

    def frontend(self, address: str, port: ResolvedPort) -> FrontendKey:
        return FrontendKey(pack(self._types, (address, port.protocol, str(port.port))), False)

    def external(self, port: ResolvedPort) -> tuple[FrontendKey, ...]:
        """The frontends for clients outside the cluster."""
        addresses = dict.fromkeys((*port.external_ips, *port.load_balancer_ips))
        keys = [self.frontend(address, port) for address in addresses]
        if port.node_port:
            key = pack(("inet_proto", "inet_service"), (port.protocol, str(port.node_port)))
            keys.append(FrontendKey(key, True))
        return tuple(keys)

    def frontends(self, port: ResolvedPort) -> tuple[FrontendKey, ...]:
        return (self.frontend(port.cluster_ip, port), *self.external(port))

    def compile(self, port: ResolvedPort, owned: frozenset[FrontendKey]) -> Elements:
        """The elements of a port, for the frontends that its Service owns (``owned``)."""
        out: Elements = {("cluster-ips", data_type(self._layout.address).parse(port.cluster_ip)): Element()}
        for frontend in owned.intersection(self.frontends(port)):
            if port.protocol not in RELAYED:
                self._refuse(out, port, frontend, drop=False)
            elif frontend == self.frontend(port.cluster_ip, port):
                self._internal(out, port, frontend)
            else:
                self._external(out, port, frontend)
        self._guards(out, port, owned)
        for endpoints in _lists(port):
            number = self._ports.get(pool_key(port, endpoints))
            if number:
                listener = (self._layout.relay_address, port.protocol, str(number))
                out["relay", pack(self._types, listener)] = Element(comment=port.name)
        return out

    def _internal(self, out: Elements, port: ResolvedPort, frontend: FrontendKey) -> None:
        if port.internal_endpoints:
            self._redirect(out, port, frontend, "local" if port.internal_local else "cluster")
        else:
            self._refuse(out, port, frontend, drop=port.has_endpoints)

    def _external(self, out: Elements, port: ResolvedPort, frontend: FrontendKey) -> None:
        if not port.has_endpoints:
            self._refuse(out, port, frontend, drop=False)
            return
        if port.cluster_endpoints:
            self._redirect(out, port, frontend, "cluster")
        if port.external_local and port.local_endpoints:
            self._redirect(out, port, frontend, "local", "local-")
        elif port.external_local:
            out[f"not-local-{frontend.suffix}", frontend.key] = Element(comment=port.name)

    def _refuse(self, out: Elements, port: ResolvedPort, frontend: FrontendKey, *, drop: bool) -> None:
        element = Element(verdict=_DROP if drop else _REFUSE, comment=port.name)
        out[f"refused-{frontend.suffix}", frontend.key] = element

    def _redirect(
        self, out: Elements, port: ResolvedPort, frontend: FrontendKey, endpoints: str, prefix: str = ""
    ) -> None:
        number = self._ports.get(pool_key(port, endpoints))
        if not number:
            self._refuse(out, port, frontend, drop=False)
            return
        target = pack((self._layout.address, "inet_service"), (self._layout.relay_address, str(number)))
        out[prefix + frontend.suffix, frontend.key] = Element(target, comment=port.name)

    def _guards(self, out: Elements, port: ResolvedPort, owned: frozenset[FrontendKey]) -> None:
        if port.source_ranges:
            for frontend in owned.intersection(self.frontend(address, port) for address in port.load_balancer_ips):
                out |= {(name, key): element for name, key, element in self._layout.guarded(port, frontend.key)}


class Contents:
    """All elements of one family; ``ports`` has the relay's port of each pool, and the caller keeps it current."""

    def __init__(self, layout: UserspaceLayout, ports: Mapping[str, int]) -> None:
        self.layout = layout
        self._compiler = _Compiler(layout, ports)
        self._declared: dict[str, Set] = {declared.name: declared for declared in layout.sets()}
        self._held: dict[str, dict[bytes, Element]] = {}
        self._counts: dict[tuple[str, bytes], int] = {}
        self._claims: FrontendClaims[FrontendKey] = FrontendClaims()
        self._services: dict[str, Elements] = {}
        self._waiting: dict[str, tuple[ResolvedPort, ...]] = {}
        """Ports of the Services that wait for a frontend, which are compiled again when they get it."""

    def table(self) -> Table:
        """The whole desired table."""
        return self.layout.table(self._held)

    def conflicts(self) -> tuple[str, ...]:
        """Services that wait for a frontend that another Service owns."""
        return self._claims.waiting()

    def change(self, changed: Mapping[str, tuple[ResolvedPort, ...]]) -> Transaction:
        """Applies new ports of Services (of this family); returns the transaction to commit."""
        before: Elements = {}
        touched: Elements = {}
        todo = dict(changed)
        while todo:
            for service, ports in todo.items():
                self._replace(service, ports, before, touched)
            todo = {key: self._waiting[key] for key in self._claims.released() if key in self._waiting}
        return self._transaction(before, touched)

    def _replace(self, service: str, ports: tuple[ResolvedPort, ...], before: Elements, touched: Elements) -> None:
        old = self._services.pop(service, {})
        self._waiting.pop(service, None)
        frontends = frozenset(frontend for port in ports for frontend in self._compiler.frontends(port))
        owned = self._claims.claim(service, frontends)
        new: Elements = {}
        for port in ports:
            new |= self._compiler.compile(port, owned)
        if ports:
            self._services[service] = new
        if owned != frontends:
            self._waiting[service] = ports
        for entry in old.keys() | new.keys():
            name, key = entry
            held = self._held.setdefault(name, {})
            if entry not in touched and key in held:
                before[entry] = held[key]
            touched[entry] = Element()
            self._counts[entry] = self._counts.get(entry, 0) + (entry in new) - (entry in old)
            if entry in new:
                held[key] = new[entry]
            elif not self._counts[entry]:
                del held[key]
            if not self._counts[entry]:
                del self._counts[entry]

    def _transaction(self, before: Elements, touched: Elements) -> Transaction:
        """The transaction from the old to the new elements of the changed set entries."""
        removed: dict[str, dict[bytes, Element]] = {}
        added: dict[str, dict[bytes, Element]] = {}
        for entry in touched:
            name, key = entry
            old, new = before.get(entry), self._held[name].get(key)
            if old == new:
                continue
            if old is not None:
                removed.setdefault(name, {})[key] = old
            if new is not None:
                added.setdefault(name, {})[key] = new
        operations: list[Operation] = [DeleteElements(self._declared[n], e) for n, e in removed.items()]
        operations += [AddElements(self._declared[n], e) for n, e in added.items()]
        return Transaction(self.layout.family, TABLE, tuple(operations))
