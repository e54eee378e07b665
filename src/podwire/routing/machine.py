"""The kernel as routing uses it: one namespace's devices, routes and values of further kinds."""

import asyncio
from collections.abc import Callable, Sequence

from podwire.errors import KernelError
from podwire.kernel import network
from podwire.kernel.features import Features
from podwire.kernel.kinds import KERNEL_KINDS
from podwire.kernel.monitor import Event, Monitor
from podwire.kernel.netlink import Netlink
from podwire.kernel.netns import NetnsPath
from podwire.routing import underlay
from podwire.routing.nodes import Address, Underlay
from podwire.state.kinds import KINDS
from podwire.state.network import NetworkState, OwnerMark
from podwire.state.value import StateValue

OWNER = OwnerMark(route_protocol=113, alias_prefix="podwire/routing")
"""The mark of what routing puts into a kernel."""


class KernelMachine:
    """Routing's share of a network namespace (None: the one of this thread)."""

    def __init__(self, netns_path: NetnsPath = None, features: Features | None = None) -> None:
        self._netlink = Netlink(netns_path)
        self._features = features or Features()
        self._netns_path = netns_path
        self._monitor: Monitor | None = None
        self._watched: frozenset[int] = frozenset()
        self._tunnels: frozenset[int] = frozenset()
        self._held = NetworkState()
        self._changed: Callable[[], None] = lambda: None

    def close(self) -> None:
        """Closes the sockets; everything in the kernel stays."""
        if self._monitor is not None:
            self._monitor.close()
        self._netlink.close()

    def lacks(self, feature: str) -> str:
        """What the kernel lacks as text; empty when the kernel has the feature, or when the probe has no answer."""
        return self._features.lacks(feature)

    def underlay(self, addresses: Sequence[Address]) -> Underlay | None:
        """The device with the node's addresses."""
        return underlay.find(network.read_paths(self._netlink), addresses)

    def hold(self, state: NetworkState) -> Sequence[str]:
        """Makes the kernel hold the state of routing; the failures as text."""
        self._held = state
        try:
            report = network.apply(self._netlink, state, OWNER)
        except KernelError as failure:
            return [str(failure)]
        finally:
            self._pass_over_echoes()
        return [str(failure) for failure in report.failed]

    def follow(self, before: NetworkState, state: NetworkState) -> Sequence[str]:
        """As :meth:`hold`, at the cost of the difference to ``before``, which the kernel holds and nobody changed.

        When devices or addresses differ, everything is compared: the kernel removes routes along with them.
        """
        if _base(before) != _base(state):
            return self.hold(state)
        self._held = state
        try:
            report = network.follow(self._netlink, before, state, OWNER)
        except KernelError:
            return self.hold(state)
        finally:
            self._pass_over_echoes()
        return self.hold(state) if report.failed else ()

    def _pass_over_echoes(self) -> None:
        """Reads the notifications that came during a write of this object.

        The kernel does not say who added a forwarding entry (``vxlan_fdb_notify`` knows no port), so those that came
        meanwhile count as one's own; without this every new peer would be followed by a comparison. One that
        somebody else changed in these milliseconds is put right by the next full run.
        """
        if self._monitor is None:
            return
        events = self._monitor.read()
        if any(self._concerns(event) and not self._is_echo(event) for event in events):
            self._changed()

    def _is_echo(self, event: Event) -> bool:
        return event.kind == "neighbour" and not event.removed

    def watch(self, changed: Callable[[], None], links: Sequence[str]) -> None:
        """Calls ``changed`` from the running loop when something happens to routing's objects or to a device.

        What pods' wiring does to the kernel is not reported: it has other devices and another route protocol. Nor
        are neighbours of devices where routing keeps none: the kernel learns and forgets them all the time.
        Without a running loop nothing is watched.
        """
        indexes = {link.name: link.index for link in network.read_links(self._netlink)}
        self._watched = frozenset(indexes[name] for name in links if name in indexes)
        ours = {one.link for one in self._held.neighbours} | {one.link for one in self._held.fdb}
        self._tunnels = frozenset(indexes[name] for name in ours if name in indexes)
        self._changed = changed
        if self._monitor is not None or not _in_loop():
            return
        self._monitor = Monitor(self._netns_path, ("link", "address", "route", "neighbour", "sysctl"))
        self._monitor.ignore(self._netlink.port)
        self._monitor.attach(lambda events: changed() if any(map(self._concerns, events)) else None)

    def _concerns(self, event: Event) -> bool:
        kind, removed, index, proto = event
        if kind == "route":
            return removed and proto == OWNER.route_protocol
        if kind == "neighbour":
            return index in self._tunnels
        return kind == "lost" or index in self._watched or (kind == "sysctl" and index == 0)

    def hold_values(self, values: Sequence[StateValue]) -> Sequence[str]:
        """Makes the kernel hold values of further kinds of state; the failures as text.

        A kind whose mark follows from the owner alone is cleared when nothing of the kind is wanted; of the others
        the kernel keeps what no value names, such as a table that no ``AbsentTable`` names.
        """
        failed = []
        for name, kind in KINDS.items():
            wanted = tuple(value for value in values if type(value) is kind.type)
            mark = kind.mark(OWNER, wanted)
            if kind.type is NetworkState or mark is None:
                continue
            try:
                KERNEL_KINDS[name].apply(self._netns_path, mark, wanted)
            except KernelError as failure:
                failed.append(str(failure))
        return failed


def _base(state: NetworkState) -> tuple[object, ...]:
    """What routes, neighbours and forwarding entries depend on."""
    return state.links, state.addresses, state.rules, state.sysctls


def _in_loop() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True
