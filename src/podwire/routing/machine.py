"""The kernel as routing uses it: devices, routes and values of further kinds in one namespace."""

import asyncio
import time
from collections.abc import Callable, Collection, Sequence
from functools import partial
from typing import Any

from msgspec.structs import replace

from podwire.errors import KernelError, Unsupported
from podwire.kernel import ethtool, iptables_chains, network, sysctl
from podwire.kernel.features import Features
from podwire.kernel.kinds import KERNEL_KINDS
from podwire.kernel.leased_addresses import PROTOCOL as LEASED
from podwire.kernel.monitor import Event, Monitor
from podwire.kernel.netlink import Netlink
from podwire.kernel.netns import NetnsPath
from podwire.kernel.nft import Nft
from podwire.kernel.nft_drift import TableWatch
from podwire.routing import neighbours, underlay
from podwire.routing.masquerade_chains import MasqueradeChains
from podwire.routing.nodes import Address, Underlay
from podwire.state import nft_diff
from podwire.state.chain_marks import MASQUERADE
from podwire.state.changes import narrowed
from podwire.state.iptables import Ruleset
from podwire.state.kinds import KINDS
from podwire.state.network import NetworkState, OwnerMark
from podwire.state.nft import AbsentTable, Table
from podwire.state.value import StateValue

OWNER = OwnerMark(route_protocol=113, alias_prefix="podwire/routing")
"""The owner mark of routing."""
_REST = 50
"""The pause after a look at the values of child processes, as a multiple of its CPU time."""


class KernelMachine:
    """Routing's share of a network namespace (None: the one of this thread)."""

    def __init__(self, netns_path: NetnsPath = None, features: Features | None = None) -> None:
        self._netlink = Netlink(netns_path)
        self._features = features or Features()
        self._netns_path = netns_path
        self._monitor: Monitor | None = None
        self._tables: TableWatch | None = None
        self._nft: Nft | None = None
        self._expected: tuple[Table | AbsentTable, ...] = ()
        self._watched: frozenset[int] = frozenset()
        self._tunnels: frozenset[int] = frozenset()
        self._held = NetworkState()
        self._chains = MasqueradeChains(netns_path)
        self._chains_left = True
        self._routes: set[tuple[Any, ...]] = set()
        """The keys of the routes that the kernel held after the last write."""
        self._destinations: set[str] = set()
        self._unstamped = self._stamped = NetworkState()
        self._changed: Callable[[], None] = lambda: None
        self._looked: tuple[tuple[Address, ...], Underlay | None] = ((), None)
        """The addresses whose device was read last, and the device."""
        self._rested_at = 0.0

    def close(self) -> None:
        """Closes the sockets; everything in the kernel stays."""
        if self._monitor is not None:
            self._monitor.close()
        if self._tables is not None:
            self._tables.close()
        if self._nft is not None:
            self._nft.close()
        self._chains.close()
        self._netlink.close()

    def lacks(self, feature: str) -> str:
        """The missing feature as text; empty when the kernel has the feature, or when the probe has no answer."""
        return self._features.lacks(feature)

    def underlay(self, addresses: Sequence[Address]) -> Underlay | None:
        """The device with the node's addresses."""
        device = underlay.find(network.read_underlay(self._netlink, underlay.QUIET_PROTOCOLS), addresses)
        if device is not None:
            values = sysctl.snapshot(neighbours.LIMITS, self._netns_path)
            device = replace(device, neighbour_limits=neighbours.limits_of(values))
        self._looked = tuple(addresses), device
        return device

    def plain_checksums(self) -> frozenset[str]:
        """The devices of routing that leave no checksums to the device below."""
        names = [link.name for link in network.read_links(self._netlink) if link.alias.startswith(OWNER.alias_prefix)]
        return frozenset(link.device for link in ethtool.read(self._netns_path, names) if link.tx == "off")

    def hold(self, state: NetworkState) -> Sequence[str]:
        """Makes the kernel hold the state of routing; returns the failures as text."""
        self._held = state
        if self._unstamped is not state:
            self._unstamped, self._stamped = state, OWNER.stamp(state)
        try:
            report = network.apply(self._netlink, self._stamped, OWNER, self._routes)
        except KernelError as failure:
            return [str(failure)]
        finally:
            self._pass_over_echoes()
        self._keep_routes(state, {failure.subject for failure in report.failed})
        return [str(failure) for failure in report.failed]

    def _keep_routes(self, state: NetworkState, refused: Collection[str] = ()) -> None:
        """Remembers which routes the kernel holds; ``refused`` has those that it does not hold, as text."""
        routes = self._stamped.routes
        self._routes = {route.key for route in routes if not refused or str(route) not in refused}
        self._destinations = {route.dst for route in state.routes}

    def follow(self, before: NetworkState, state: NetworkState) -> Sequence[str]:
        """As :meth:`hold`, at the cost of the difference to ``before``, the unchanged state of the kernel.

        When devices or addresses differ, everything is compared, because the kernel removes routes along with them.
        """
        if _base(before) != _base(state):
            return self.hold(state)
        self._held = state
        before, after = narrowed(before, state)
        try:
            report = network.follow(self._netlink, before, after, OWNER)
        except KernelError:
            return self.hold(state)
        finally:
            self._pass_over_echoes()
        if report.failed:
            return self.hold(state)
        self._routes.difference_update(route.key for route in before.routes)
        self._routes.update(route.key for route in after.routes)
        self._destinations.difference_update(route.dst for route in before.routes)
        self._destinations.update(route.dst for route in after.routes)
        return ()

    def _pass_over_echoes(self) -> None:
        """Reads the notifications that arrived during a write of this object.

        The kernel does not report who added a forwarding entry (``vxlan_fdb_notify`` has no port), so those that
        arrived meanwhile count as own changes; otherwise a comparison would follow every new peer. An entry that
        another program changed in these milliseconds is restored by the next full run.
        """
        if self._monitor is None:
            return
        events = self._monitor.read()
        if any(self._concerns(event) and not _is_echo(event) for event in events):
            self._changed()

    def watch(self, changed: Callable[[], None], links: Sequence[str]) -> None:
        """Calls ``changed`` from the running loop when an object of routing or a device changes.

        For nftables tables it is called within about a second (:mod:`podwire.kernel.nft_drift`), for others at once.
        Changes by the wiring of pods are not reported: they concern other devices and another route protocol. Nor are
        neighbours of devices where routing has none, since the kernel adds and removes them all the time. Without a
        running loop nothing is watched.
        """
        indexes = {link.name: link.index for link in network.read_links(self._netlink)}
        self._watched = frozenset(indexes[name] for name in links if name in indexes)
        ours = {entry.link for entry in self._held.neighbours} | {entry.link for entry in self._held.fdb}
        self._tunnels = frozenset(indexes[name] for name in ours if name in indexes)
        self._changed = changed
        if self._monitor is not None or not _in_loop():
            return
        self._monitor = Monitor(self._netns_path, ("link", "address", "route", "neighbour", "rule", "sysctl"))
        self._monitor.ignore(self._netlink.port)
        self._monitor.attach(lambda events: changed() if any(map(self._concerns, events)) else None)
        addresses, known = self._looked
        if addresses and self.underlay(addresses) != known:
            changed()  # The device changed after it was read and before it was watched.
        try:
            self._tables = TableWatch(self._netns_path)
        except Unsupported:
            return  # without nftables there are no tables to watch
        self._tables.expect(self._expected)
        self._tables.attach(changed)

    def drifted(self, values: Sequence[StateValue] = ()) -> bool:
        """Whether a sysctl differs from the state that was held last, or a child process lacks something of ``values``.

        Another program may also have changed masquerade rules of iptables. The kernel does not notify of most sysctls.
        Cost: 15 us a sysctl; values that child processes hold take 2 % of one CPU at most.
        """
        if self._chains.changed():
            return True
        expected = {entry.path: entry.value.split() for entry in self._held.sysctls}
        present = {entry.path: entry.value.split() for entry in sysctl.snapshot(expected, self._netns_path)}
        return present != expected or self._values_differ(values)

    def sessions(self, values: Sequence[StateValue]) -> frozenset[str]:
        """The public keys of peers with which a session exists; a process that does not answer has none."""
        keys: frozenset[str] = frozenset()
        for name, kind in KINDS.items():
            read = KERNEL_KINDS[name].sessions
            held = [value for value in values if type(value) is kind.type]
            keys |= read(self._netns_path, held) if read is not None and held else frozenset()
        return keys

    def learned(self, proto: int) -> frozenset[str]:
        """The destinations of the routes that another program has written with this protocol; none after a failure."""
        try:
            return network.read_destinations(self._netlink, proto)
        except KernelError:
            return frozenset()

    def _values_differ(self, values: Sequence[StateValue]) -> bool:
        if time.monotonic() < self._rested_at:
            return False
        began = time.thread_time()
        try:
            for name, kind in KINDS.items():
                differs = KERNEL_KINDS[name].differs
                desired = tuple(value for value in values if type(value) is kind.type)
                if differs is not None and desired and differs(self._netns_path, desired):
                    return True
            return False
        finally:
            self._rested_at = time.monotonic() + _REST * (time.thread_time() - began)

    def _concerns(self, event: Event) -> bool:
        kind, _removed, index, proto, dst, _bridge = event
        if kind in ("route", "rule"):
            foreign = index in self._watched and proto not in underlay.QUIET_PROTOCOLS
            return foreign or proto == OWNER.route_protocol or dst in self._destinations
        if kind == "neighbour":
            return index in self._tunnels
        if kind == "address" and proto == LEASED:
            return False  # An address of a load balancer, renewed every second.
        return kind == "lost" or index in self._watched or (kind == "sysctl" and index == 0)

    def hold_values(self, values: Sequence[StateValue]) -> Sequence[str]:
        """Makes the kernel hold values of further kinds of state; returns the failures as text.

        A kind whose mark follows from the owner alone is cleared when no value of the kind is desired. Of other kinds
        the kernel keeps objects that no value names, such as a table that no ``AbsentTable`` names.
        """
        return self._hold_kinds(values, tuple(KINDS))

    def follow_values(self, before: Sequence[StateValue], values: Sequence[StateValue]) -> Sequence[str]:
        """As :meth:`hold_values`, at the cost of the difference to ``before``, the unchanged values of the kernel.

        A table that differs is not read: the difference alone is written.
        """
        if before == values:
            return ()
        tables = {value.name: value for value in before if isinstance(value, Table)}
        written, kinds = [], []
        for name, kind in KINDS.items():
            old, new = (tuple(value for value in state if type(value) is kind.type) for state in (before, values))
            now = [value for value in new if isinstance(value, Table)]
            if old != new and now and tables.keys() >= {table.name for table in now}:
                written = [(tables[table.name], table) for table in now if tables[table.name] != table]
            elif old != new:
                kinds.append(name)
        if written and not self._write_tables(written):
            kinds.append("nftables")
        return self._hold_kinds(values, kinds)

    def _write_tables(self, tables: Sequence[tuple[Table, Table]]) -> bool:
        """Writes the differences of tables before and after; False when the kernel refuses one."""
        try:
            if self._nft is None:
                self._nft = Nft(self._netns_path)
            for before, after in tables:
                self._nft.commit(nft_diff.diff(before, after))
        except KernelError:
            return False
        return True

    def _hold_kinds(self, values: Sequence[StateValue], names: Collection[str]) -> Sequence[str]:
        failed = []
        for name in (name for name in KINDS if name in names):
            kind = KINDS[name]
            desired = tuple(value for value in values if type(value) is kind.type)
            mark = MASQUERADE if kind.type is Ruleset and self._clears_chains(desired) else kind.mark(OWNER, desired)
            if kind.type is NetworkState or mark is None:
                continue
            write = partial(KERNEL_KINDS[name].apply, self._netns_path, mark, desired)
            try:
                if kind.type is Ruleset:
                    self._chains.hold([value for value in desired if isinstance(value, Ruleset)], write)
                else:
                    write()
            except KernelError as failure:
                failed.append(str(failure))
        self._expected = tuple(value for value in values if isinstance(value, Table | AbsentTable))
        if self._tables is not None:
            self._tables.expect(self._expected)
        return failed

    def _clears_chains(self, desired: Sequence[object]) -> bool:
        """Whether chains of iptables that an earlier configuration left have to be deleted; asks the kernel once."""
        if desired:
            self._chains_left = True
            return False
        if not self._chains_left:
            return False
        self._chains_left = False
        try:
            return next(iptables_chains.marked(self._netns_path, MASQUERADE), None) is not None
        except KernelError:
            self._chains_left = True
            return False


def _base(state: NetworkState) -> tuple[object, ...]:
    """The objects on which routes, neighbours and forwarding entries depend."""
    return state.links, state.addresses, state.rules, state.sysctls


def _is_echo(event: Event) -> bool:
    """Whether the kernel may report an own change with this event."""
    return event.kind == "neighbour" and not event.removed


def _in_loop() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True
