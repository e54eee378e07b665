"""Reads the devices of pods from the node's kernel: routes, devices, and the addresses behind bridge ports."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from podwire.kernel import bridges, network
from podwire.kernel.monitor import Event, Monitor, Subject
from podwire.kernel.netlink import Netlink
from podwire.state.network import NetworkState

PortAddresses = Mapping[str, Mapping[str, frozenset[str]]]
"""The addresses behind each port of each bridge."""

_SUBJECTS: tuple[Subject, ...] = ("link", "route", "address", "neighbour")


class KernelLinks:
    """One network namespace (None: that of this process)."""

    def __init__(self, netns: Path | None = None) -> None:
        self._netns = netns

    @contextmanager
    def watch(self, changed: Callable[[Sequence[Event]], None]) -> Iterator[None]:
        """Calls ``changed`` in the running event loop with each batch of kernel events, within the block."""
        with Monitor(self._netns, _SUBJECTS) as monitor:
            monitor.attach(changed)
            yield

    def read(self) -> tuple[NetworkState, PortAddresses]:
        """Devices, addresses and routes, and the addresses behind bridge ports.

        Raises: KernelError.
        """
        with Netlink(self._netns) as netlink:
            state = network.read_paths(netlink)
            shared = any(link.kind == "bridge" for link in state.links)
            return state, _ports(netlink) if shared else {}


def _ports(netlink: Netlink) -> PortAddresses:
    ports: dict[str, dict[str, frozenset[str]]] = {}
    for wire in bridges.read_wires(netlink):
        if wire.bridge:
            ports.setdefault(wire.bridge, {})[wire.name] = bridges.addresses_behind(netlink, wire)
    return ports
