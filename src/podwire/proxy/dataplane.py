"""The interface of a data plane of Services, which every mode implements.

A data plane is opened for one network namespace, takes resolved Services (``proxy.servicemap``) and makes the kernel
forward their packets. It is one module with a class and a function ``clear``, named in ``proxy.registry``. Opening,
fallback, switching, cleaning up, ``podwire state`` and the packet table use only this entry.

Every data plane guarantees: 1. a load with nothing changed writes nothing, so a restart of the agent does not disturb
traffic; 2. rules are replaced in one step, never removed first; 3. the cost of an update grows with its Services alone;
4. a change that the kernel refuses leaves the last good state in force and is raised; 5. ``close`` leaves everything in
force, ``remove`` and ``clear`` remove the state with our marks and nothing else.

The proxy runner owns the resolved Services and hands them to each call. A data plane keeps what it compiles from them,
and no second collection of them.
"""

from collections.abc import Mapping
from typing import Protocol, runtime_checkable

import msgspec

from podwire.dataplane.plane import DataPlane, Written
from podwire.proxy.servicemap import NodeFacts, ServiceMap
from podwire.state.network import NetworkState, OwnerMark

OWNER = OwnerMark(route_protocol=115, alias_prefix="podwire/proxy")
"""The marks of data planes on devices, addresses and routes."""


def addresses_of_node(state: NetworkState) -> tuple[str, ...]:
    """The addresses of a node's devices, without the addresses that a data plane added for Services."""
    proxied = {link.name for link in state.links if OWNER.owns_link(link)}
    return tuple(entry.cidr.partition("/")[0] for entry in state.addresses if entry.link not in proxied)


class ServiceDataPlane(DataPlane, Protocol):
    """Programs the Services of one node: one mode, or a switch between several modes."""

    @property
    def instant(self) -> bool:
        """Whether an update takes only few milliseconds; otherwise it runs in a thread."""
        ...

    def load(self, services: ServiceMap, facts: NodeFacts | None = None) -> Written:
        """Makes the kernel hold exactly these Services; returns what had to be written.

        Raises: KernelError; what was in force stays.
        """
        ...

    def update(self, services: ServiceMap, changed: ServiceMap) -> Written:
        """Applies changed Services; an empty tuple removes one. ``services`` has all Services, the changed ones too.

        Raises: KernelError; the next call loads everything again.
        """
        ...

    def heal(self, services: ServiceMap) -> Written:
        """Restores what another program changed; returns what had to be written. ``services`` has all Services.

        Raises: KernelError.
        """
        ...

    def conflicts(self) -> tuple[str, ...]:
        """Services that wait for a frontend that another Service owns."""
        ...


INVALID_DROPPED = "ct_state_invalid_dropped_pkts"
"""Dropped packets that connection tracking calls invalid; kube-proxy's name, as nfacct(8) shows it."""
LOCALHOST_ACCEPTED = "localhost_nps_accepted_pkts"
"""First packets to node ports on loopback."""


class Counts(msgspec.Struct, frozen=True):
    """The counters of a data plane."""

    packets: Mapping[str, int] = {}
    """Packets by the names above, since the rules were written; a name without a counter is missing."""
    rules: Mapping[tuple[str, str], tuple[int, int]] = {}
    """By family (``ip``, ``ip6``) and iptables table: our rules, and the rules that the last change wrote."""
    refused_updates: int = 0
    """Updates that the kernel refused and that a full load followed."""
    refused_removals: int = 0
    """Later steps of an update, which remove unused elements and chains, that the kernel refused."""


@runtime_checkable
class Counting(Protocol):
    """A data plane that has counters."""

    def counts(self) -> Counts:
        """The counters since the data plane was opened.

        Raises: KernelError.
        """
        ...
