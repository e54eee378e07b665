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
   sets and legacy rules do not. Five times a second, or less often so that it takes at most 0.1 % of one CPU, the
   schedulers, real servers and weights of virtual servers, the numbers of set elements and the sizes of legacy tables
   are compared; every second, the rules of legacy tables. Everything is read every 30 s, or less often when reading
   takes more than 0.3 s.
6. ``close`` leaves everything in force; ``remove`` removes podwire's state and nothing else.
"""

import select
import threading
import time
from collections.abc import Iterable
from contextlib import closing

from podwire.errors import KernelError
from podwire.kernel.iptables import Programs, Ticker
from podwire.kernel.looks import Looks
from podwire.kernel.monitor import Monitor
from podwire.kernel.netns import NetnsPath
from podwire.proxy.dataplane import Counts
from podwire.proxy.dataplanes.ipvs import device
from podwire.proxy.dataplanes.ipvs.contents import Contents, IpvsDelta, NodeContents
from podwire.proxy.dataplanes.ipvs.device import IpvsDevice, device_state
from podwire.proxy.dataplanes.ipvs.layout import IpvsLayout
from podwire.proxy.dataplanes.ipvs.names import DEVICE
from podwire.proxy.dataplanes.ipvs.rules import IpvsRules
from podwire.proxy.dataplanes.ipvs.servers import KubeProxyServers, VirtualServers, check_scheduler, forget_flows
from podwire.proxy.dataplanes.ipvs.sets import IpvsSets
from podwire.proxy.nodeports import within
from podwire.proxy.servicemap import NodeFacts, ServiceMap, ports_of_family
from podwire.state.ipvs import Key
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
        self._netns_path = netns_path
        self._servers = VirtualServers(netns_path)
        self._rules = IpvsRules(netns_path, programs)
        self._device = IpvsDevice(netns_path)
        self._sets = IpvsSets(netns_path)
        self._facts = facts
        self._contents = NodeContents()
        self._own_addresses: frozenset[str] = frozenset()
        """The addresses of the node's other devices."""
        self._lost = True
        """Whether the state of the kernel is unknown, so that the next call must load."""
        self._refused = 0
        self._unhandled = False
        """Whether an address notification was received and not handled yet."""
        self._read_after = 0.0
        self._lock = threading.RLock()
        """Held while the kernel is written, because other threads call :meth:`disturbed` and :meth:`desired`."""
        self._monitor = Monitor(netns_path, ("address", "link"))
        self._ticker = Ticker(_TICK_S)
        self._looks = Looks()
        self._poll = select.epoll()
        for source in (self._rules.watch, self._monitor, self._ticker, self._looks):
            self._poll.register(source.fileno(), select.EPOLLIN)

    @property
    def programs(self) -> Programs:
        """The kind of iptables that is used."""
        return self._rules.programs

    def close(self) -> None:
        """Closes the sockets to the kernel; the rules stay in force."""
        kernel = (self._rules, self._servers, self._sets, self._device)
        for resource in (self._poll, self._ticker, self._looks, self._monitor, *kernel):
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
            self._unhandled = bool(self._monitor.read()) or self._unhandled
            self._ticker.period_ended()
            self._looks.differs(lambda: False)
            return False
        try:
            changed = self._rules.watch.changed()
            changed = self._looks.differs(self._altered) or changed
            if self._monitor.read() or self._unhandled:
                self._unhandled = False
                changed = changed or self._addresses_changed()
            if self._ticker.period_ended():
                self._remove_idle()
                changed = changed or time.monotonic() > self._read_after
            return changed and not self._lost
        except KernelError:
            return not self._lost
        finally:
            self._lock.release()

    def _altered(self) -> bool:
        """Whether virtual servers or sets differ from what was written last."""
        return not self._lost and (self._servers.altered() or self._sets.resized(self._contents.set_sizes()))

    def _addresses_changed(self) -> bool:
        own, bound = self._device.addresses()
        return own != self._own_addresses or bound != self._addresses()

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
        self._own_addresses, _ = self._device.addresses()
        ranges = facts.node_port_ranges
        node_ports = within(sorted(self._own_addresses), ranges) if ranges else facts.addresses
        families: dict[str, Contents] = {}
        for family in self._rules.families:
            contents = Contents(IpvsLayout(family, facts, node_ports), self._own_addresses)
            contents.change(ports_of_family(services, family))
            families[family] = contents
        self._contents = NodeContents(families)

    def _write(self) -> list[str]:
        settings = self._facts.ipvs
        self._servers.set_timeouts(settings)
        written = self._device.create(settings)
        self._servers.read(settings.exclude_cidrs, _servers_of_kube_proxy(self._device, self._sets))
        delete_elements = self._sets.hold(self._contents.sets())
        steps = self._servers.hold(self._contents)
        report = self._device.hold(self._addresses(), settings)
        texts = self._rules.hold(self._contents.rulesets())
        written += [*map(str, steps), *map(str, report.applied), *texts, *map(str, delete_elements())]
        self._remove_idle()
        return written

    def _addresses(self) -> frozenset[str]:
        """The addresses that the device should have, those with remaining connections included."""
        return self._contents.addresses | (self._servers.draining_addresses() - self._own_addresses)

    def update(self, services: ServiceMap, changed: ServiceMap) -> tuple[str, ...]:
        """Applies changed Services (an empty tuple removes one); returns what was written, a text for each change.

        Raises: KernelError when a full load was tried as well and failed.
        """
        with self._lock:
            if self._lost:
                return self.load(services)
            try:
                deltas = self._contents.change(changed)
                return tuple(text for family, delta in deltas.items() for text in self._update(family, delta))
            except KernelError:
                self._refused += 1
                return self.load(services)

    def _update(self, family: str, delta: IpvsDelta) -> list[str]:
        written = list(map(str, self._sets.add(delta.added)))
        written += map(str, self._servers.change(delta.servers, self._contents))
        self._remove_idle(delta.servers)
        if delta.bound:
            self._device.bind(delta.bound)
            written += [f"ip address add {address} dev {DEVICE}" for address in delta.bound]
        if delta.rules:
            written.append(self._rules.change(family, self._contents.families[family].rulesets()))
        written += self._unbind(delta.unbound)
        written += map(str, self._sets.delete(delta.removed))
        self._monitor.read()
        return written

    def _unbind(self, addresses: Iterable[str]) -> list[str]:
        """Removes addresses without remaining connections from the device."""
        busy = self._servers.draining_addresses()
        unused = [a for a in dict.fromkeys(addresses) if a not in busy and not self._contents.binds(a)]
        self._device.unbind(unused)
        return [f"ip address delete {address} dev {DEVICE}" for address in unused]

    def _remove_idle(self, keys: Iterable[Key] | None = None) -> None:
        """Removes real servers whose last connection has ended, and addresses that nothing needs any more."""
        freed = self._servers.remove_idle(self._contents, reset=self._facts.reset_connections, keys=keys)
        self._unbind(address for address in freed if address not in self._own_addresses)

    def heal(self, services: ServiceMap) -> tuple[str, ...]:
        """Reads the kernel and writes what differs; returns what had to be written.

        Raises: KernelError.
        """
        return self.load(services)

    def conflicts(self) -> tuple[str, ...]:
        """Services that wait for a frontend of another Service or of a foreign virtual server."""
        with self._lock:
            return tuple(sorted(self._contents.waiting(self._servers.foreign)))

    def counts(self) -> Counts:
        """The counters since the data plane was opened."""
        with self._lock:
            return Counts(rules=self._rules.counts(), refused_updates=self._refused)

    def desired(self) -> tuple[StateValue, ...]:
        """The state that the kernel should hold; later changes do not change this value."""
        with self._lock:
            if not self._contents.families:
                return ()
            rules = (ruleset for rulesets in self._contents.rulesets().values() for ruleset in rulesets)
            servers = self._servers.expected(self._contents)
            return (*rules, *self._contents.sets(), *servers, device_state(self._addresses(), self._facts.ipvs))

    def remove(self) -> None:
        """Removes all of our state. Connections through a virtual server end at their next packet.

        Raises: KernelError.
        """
        with self._lock:
            self._lost = True
            self._contents = NodeContents()
            self._rules.remove()
            self._servers.read(self._facts.ipvs.exclude_cidrs, _servers_of_kube_proxy(self._device, self._sets))
            deleted = self._servers.delete_all()
            self._sets.destroy()
            self._device.delete()
            forget_flows(self._netns_path, deleted)


def _servers_of_kube_proxy(device: IpvsDevice, sets: IpvsSets) -> KubeProxyServers:
    """The addresses and node ports that kube-proxy left."""
    if not device.is_of_kube_proxy():
        return KubeProxyServers()
    _, bound = device.addresses()
    return KubeProxyServers(addresses=bound, node_ports=sets.node_ports())


def clear(netns_path: NetnsPath = None) -> bool:
    """Removes what an earlier data plane of this mode or kube-proxy left; returns whether anything was removed.

    The device is removed last: without a device, nothing is left.

    Raises: KernelError.
    """
    if not device.exists(netns_path):
        return False
    with closing(IpvsDataPlane(NodeFacts(name=""), netns_path)) as plane:
        plane.remove()
    return True
