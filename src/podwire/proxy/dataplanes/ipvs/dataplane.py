"""The ``ipvs`` data plane: keeps virtual servers, their device, sets and rules equal to the resolved Services.

1. ``load`` reads the kernel and writes only what differs: a restart with nothing changed writes nothing.
2. ``update`` writes what belongs to the changed Services, without reading: a few netlink messages. Rules change only
   with frontends of ``externalTrafficPolicy: Local``. New state is written before what leads to it, and old state is
   removed after: elements of sets, then virtual servers, then addresses, then rules; removed elements come last.
3. A refused change is followed by a full load. When that fails too, the error is raised and the next call loads again.
4. A real server of TCP that is removed keeps its connections: its weight becomes 0, and it is checked every 5 s until
   the last connection has ended. The virtual server and its address of a deleted Service are kept in the same way. With
   ``resetConnections``, a real server is removed as soon as its endpoint no longer serves.
5. ``heal`` reads and writes what another program changed. iptables' nft rules and addresses notify of changes; IPVS,
   sets and legacy rules do not, so the kernel is read every 30 s, or less often when reading takes more than 0.3 s.
6. ``close`` leaves everything in force; ``remove`` removes what is ours and nothing else.
"""

import select
import threading
import time
from collections.abc import Iterable, Sequence

from podwire.errors import KernelError
from podwire.kernel import network
from podwire.kernel.iptables import Programs, Ticker
from podwire.kernel.monitor import Monitor
from podwire.kernel.netlink import Netlink
from podwire.kernel.netns import NetnsPath
from podwire.proxy.dataplane import Counts
from podwire.proxy.dataplanes.ipvs.contents import Contents, IpvsDelta
from podwire.proxy.dataplanes.ipvs.layout import IpvsLayout
from podwire.proxy.dataplanes.ipvs.names import DEVICE
from podwire.proxy.dataplanes.ipvs.programming import Programming, check_scheduler, device_state
from podwire.proxy.frontends import Frontend
from podwire.proxy.nodeports import within
from podwire.proxy.servicemap import NodeFacts, ServiceMap, ports_of_family
from podwire.state import ipvs_changes
from podwire.state.iptables import Ruleset
from podwire.state.ipvs import Destination, Key, VirtualServer, endpoint_text
from podwire.state.value import StateValue

_TICK_S = 5.0
_READ_EVERY_S = 30.0  # as kube-proxy's syncPeriod
_READ_INTERVAL_FACTOR = 100
"""After a load, the kernel is not read again for this many times the duration of the load."""


class IpvsDataPlane:
    """Services through IPVS in one network namespace (None: that of this process)."""

    name = "ipvs"
    instant = False

    def __init__(self, facts: NodeFacts, netns_path: NetnsPath = None, programs: Programs | None = None) -> None:
        self._scheduler = facts.ipvs.scheduler
        check_scheduler(self._scheduler)
        self._kernel = Programming(netns_path, programs)
        self._facts = facts
        self._contents: dict[str, Contents] = {}
        self._rules: dict[str, tuple[Ruleset, ...]] = {}
        """The rules that were written last, by family."""
        self._held: dict[Key, VirtualServer] = {}
        """Our virtual servers in the kernel, including real servers that only keep existing connections."""
        self._draining: set[Key] = set()
        """Virtual servers with real servers that only keep existing connections."""
        self._foreign: frozenset[Key] = frozenset()
        self._own: frozenset[str] = frozenset()
        self._lost = True
        self._refused = 0
        self._unseen = False
        """Whether an address notification was received and not handled yet."""
        self._read_after = 0.0
        self._lock = threading.RLock()
        """Held while the kernel is written, because other threads call :meth:`disturbed` and :meth:`desired`."""
        self._monitor = Monitor(netns_path, ("address", "link"))
        self._ticker = Ticker(_TICK_S)
        self._poll = select.epoll()
        for source in (self._kernel.watch, self._monitor, self._ticker):
            self._poll.register(source.fileno(), select.EPOLLIN)

    @property
    def programs(self) -> Programs:
        """The kind of iptables that is used."""
        return self._kernel.programs

    def close(self) -> None:
        """Closes the sockets to the kernel; the rules stay in force."""
        for resource in (self._poll, self._ticker, self._monitor, self._kernel):
            resource.close()

    def fileno(self) -> int:
        """A descriptor that is readable when :meth:`disturbed` should be called."""
        return self._poll.fileno()

    def disturbed(self) -> bool:
        """Whether another program may have changed our state, or the addresses of the node changed.

        Also removes real servers whose last connection has ended. While this data plane writes, changes count as its
        own and are read later.
        """
        if not self._lock.acquire(blocking=False):
            self._unseen = bool(self._monitor.read()) or self._unseen
            self._ticker.ticked()
            return False
        try:
            changed = self._kernel.watch.changed()
            if self._monitor.read() or self._unseen:
                self._unseen = False
                changed = changed or self._addresses_changed()
            if self._ticker.ticked():
                self._remove_idle(self._draining)
                changed = changed or time.monotonic() > self._read_after
            return changed and not self._lost
        except KernelError:
            return not self._lost
        finally:
            self._lock.release()

    def _addresses_changed(self) -> bool:
        own, bound = self._kernel.addresses()
        return own != self._own or bound != self._addresses()

    def load(self, services: ServiceMap, facts: NodeFacts | None = None) -> tuple[str, ...]:
        """Makes the kernel hold exactly these Services; returns what was written, a text for each change.

        Raises: KernelError; changes that the kernel did not refuse may be in force.
        """
        with self._lock:
            began = time.monotonic()
            self._facts = facts or self._facts
            self._lost = True
            self._plan(services)
            written = self._write()
            self._lost = False
            self._monitor.read()
            took = time.monotonic() - began
            self._read_after = time.monotonic() + max(_READ_EVERY_S, _READ_INTERVAL_FACTOR * took)
            return tuple(written)

    def _plan(self, services: ServiceMap) -> None:
        facts = self._facts
        if facts.ipvs.scheduler != self._scheduler:
            check_scheduler(facts.ipvs.scheduler)
            self._scheduler = facts.ipvs.scheduler
        self._own, _ = self._kernel.addresses()
        ranges = facts.node_port_ranges
        node_ports = within(sorted(self._own), ranges) if ranges else facts.addresses
        self._contents = {}
        for family in self._kernel.families:
            contents = Contents(IpvsLayout(family, facts, node_ports), self._own)
            contents.change(ports_of_family(services, family))
            self._contents[family] = contents

    def _write(self) -> list[str]:
        kernel, settings = self._kernel, self._facts.ipvs
        kernel.set_timeouts(settings)
        written = kernel.make_device(settings)
        held, self._foreign = kernel.servers(settings.exclude_cidrs, self._held)
        delete_elements = kernel.shape_sets(s for contents in self._contents.values() for s in contents.sets())
        wanted = self._wanted()
        steps = ipvs_changes.plan(held, wanted)
        kernel.ipvs.apply(steps)
        self._held = ipvs_changes.after(held, steps)
        self._draining = set(ipvs_changes.draining(self._held, wanted))
        report = kernel.shape_device(self._addresses(), settings)
        rules = {family: contents.rulesets() for family, contents in self._contents.items()}
        texts = kernel.shape_rules(rules)
        self._rules = rules
        written += [*map(str, steps), *map(str, report.applied), *texts, *map(str, delete_elements())]
        self._remove_idle(self._draining)
        return written

    def _addresses(self) -> frozenset[str]:
        """The addresses that the device should have, those with remaining connections included."""
        wanted = frozenset(address for contents in self._contents.values() for address in contents.addresses)
        return wanted | (frozenset(key.address for key in self._draining) - self._own)

    def _wanted(self, keys: Iterable[Key] | None = None) -> dict[Key, VirtualServer]:
        """The virtual servers to program for these keys (None: all), except keys of foreign virtual servers."""
        every = (contents.servers for contents in self._contents.values())
        if keys is None:
            return {k: server for servers in every for k, server in servers.items() if k not in self._foreign}
        by_family = list(every)
        return {k: servers[k] for k in keys for servers in by_family if k in servers and k not in self._foreign}

    def update(self, services: ServiceMap, changed: ServiceMap) -> tuple[str, ...]:
        """Applies changed Services (an empty tuple removes one); returns what was written, a text for each change.

        Raises: KernelError when a full load was tried as well and failed.
        """
        with self._lock:
            if self._lost:
                return self.load(services)
            try:
                deltas = {f: c.change(ports_of_family(changed, f)) for f, c in self._contents.items()}
                return tuple(text for family, delta in deltas.items() for text in self._update(family, delta))
            except KernelError:
                self._refused += 1
                return self.load(services)

    def _update(self, family: str, delta: IpvsDelta) -> list[str]:
        kernel = self._kernel
        written = [str(operation) for operation in kernel.add(delta.added)]
        written += self._balance(delta.servers)
        if delta.bound:
            kernel.bind(delta.bound)
            written += [f"ip address add {address} dev {DEVICE}" for address in delta.bound]
        if delta.rules:
            rules = self._contents[family].rulesets()
            written.append(kernel.change_rules(family, self._rules[family], rules))
            self._rules[family] = rules
        written += self._unbind(delta.unbound)
        written += map(str, kernel.delete(delta.removed))
        self._monitor.read()
        return written

    def _unbind(self, addresses: Iterable[str]) -> list[str]:
        """Removes addresses without remaining connections from the device."""
        busy = {key.address for key in self._draining}
        contents = tuple(self._contents.values())
        unused = [a for a in addresses if a not in busy and not any(c.binds(a) for c in contents)]
        self._kernel.unbind(unused)
        return [f"ip address delete {address} dev {DEVICE}" for address in unused]

    def _balance(self, keys: Iterable[Key]) -> list[str]:
        """Programs the virtual servers of these keys."""
        held = {key: self._held[key] for key in keys if key in self._held}
        wanted = self._wanted(keys)
        own = [key for key in keys if key not in self._foreign]
        steps = ipvs_changes.plan(held, wanted, own)
        self._kernel.ipvs.apply(steps)
        self._settle(held, steps)
        draining = ipvs_changes.draining({key: self._held[key] for key in own if key in self._held}, wanted)
        self._draining -= set(own)
        self._draining |= set(draining)
        self._remove_idle(draining)
        return list(map(str, steps))

    def _settle(self, held: dict[Key, VirtualServer], steps: Sequence[ipvs_changes.Step]) -> None:
        """Records what the kernel holds after the steps."""
        now = ipvs_changes.after(held, steps)
        for key in held.keys() - now.keys():
            del self._held[key]
        self._held.update(now)

    def _remove_idle(self, keys: Iterable[Key]) -> None:
        """Removes real servers whose last connection has ended."""
        for key in tuple(keys):
            server, wanted = self._held[key], self._wanted((key,))
            retired = {
                destination.endpoint for destination in ipvs_changes.draining({key: server}, wanted).get(key, ())
            }
            counted = [
                (destination, 0 if self._resets(key, destination) else connections)
                for destination, connections in self._kernel.ipvs.destinations(key)
                if destination.endpoint in retired
            ]
            steps = ipvs_changes.idle(server, counted, desired=key in wanted)
            self._kernel.ipvs.apply(steps)
            self._settle({key: server}, steps)
            if key not in self._held or not ipvs_changes.draining({key: self._held[key]}, wanted):
                self._draining.discard(key)
                if key not in self._held and key.address not in self._own:
                    self._unbind((key.address,))

    def _resets(self, key: Key, destination: Destination) -> bool:
        """Whether the connections to a real server end now, because its endpoint no longer serves."""
        if not self._facts.reset_connections:
            return False
        text = endpoint_text(*destination.endpoint)
        return not any(text in contents.serving(key) for contents in self._contents.values())

    def heal(self, services: ServiceMap) -> tuple[str, ...]:
        """Reads the kernel and writes what differs; returns what had to be written.

        Raises: KernelError.
        """
        return self.load(services)

    def conflicts(self) -> tuple[str, ...]:
        """Services that wait for a frontend of another Service or of a foreign virtual server."""
        with self._lock:
            services = {service for contents in self._contents.values() for service in contents.claims.waiting()}
            for contents in self._contents.values():
                for key in self._foreign & contents.servers.keys():
                    services |= {owner for owner in map(contents.claims.owner, _frontends(key)) if owner}
        return tuple(sorted(services))

    def counts(self) -> Counts:
        """The counters since the data plane was opened."""
        with self._lock:
            last = self._kernel.last_rules
            rules = {
                (family, ruleset.table): (
                    sum(map(len, ruleset.chains.values())) + len(ruleset.jumps),
                    last.get((family, ruleset.table), 0),
                )
                for family, rulesets in self._rules.items()
                for ruleset in rulesets
            }
            return Counts(rules=rules, refused_updates=self._refused)

    def desired(self) -> tuple[StateValue, ...]:
        """The state that the kernel should hold; later changes do not change this value."""
        with self._lock:
            if not self._contents:
                return ()
            families = self._contents.values()
            rules = (ruleset for contents in families for ruleset in contents.rulesets())
            sets = (ip_set for contents in families for ip_set in contents.sets())
            servers = self._wanted() | {key: self._held[key] for key in self._draining}
            device = device_state(self._addresses(), self._facts.ipvs)
            return (*rules, *sets, *(servers[key] for key in sorted(servers)), device)

    def remove(self) -> None:
        """Removes all of our state. Connections through a virtual server end at their next packet.

        Raises: KernelError.
        """
        with self._lock:
            self._lost = True
            self._contents, self._rules, self._draining = {}, {}, set()
            self._kernel.drop_rules()
            held, _ = self._kernel.servers(self._facts.ipvs.exclude_cidrs, self._held)
            self._kernel.ipvs.apply([ipvs_changes.Step("delete", server) for server in held.values()])
            self._held = {}
            self._kernel.drop_sets()
            self._kernel.drop_device()
            self._kernel.forget(held)


def _frontends(key: Key) -> tuple[Frontend, Frontend]:
    """The frontends that a virtual server may serve: an address, or a node port."""
    return Frontend(key.address, key.protocol, key.port), Frontend("", key.protocol, key.port)


def clear(netns_path: NetnsPath = None) -> bool:
    """Removes what an earlier data plane of this mode or kube-proxy left; returns whether anything was removed.

    The device is removed last: without a device, nothing is left.

    Raises: KernelError.
    """
    with Netlink(netns_path) as netlink:
        if all(link.name != DEVICE for link in network.read_links(netlink)):
            return False
    plane = IpvsDataPlane(NodeFacts(name=""), netns_path)
    try:
        plane.remove()
    finally:
        plane.close()
    return True
