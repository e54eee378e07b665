"""The interface of a data plane of Services, which every mode implements.

A data plane is opened for one network namespace, takes resolved Services (``proxy.servicemap``) and makes the kernel
hold what they mean. It is one module with a class and a function ``clear``, named in ``proxy.registry``; that entry is
all that opening, fallback, switching, cleaning up, ``podwire state`` and the packet table need.

Every data plane guarantees: 1. a load with nothing changed writes nothing, so a restart of the agent does not disturb
traffic; 2. rules are replaced in one step, never removed first; 3. the cost of an update grows with its Services alone;
4. a change that the kernel refuses leaves the last good state in force and is raised; 5. ``close`` leaves everything in
force, ``remove`` and ``clear`` remove what is marked as ours and nothing else.

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
"""The mark of what data planes have among the objects of ip(8)."""


def addresses_of_node(state: NetworkState) -> tuple[str, ...]:
    """The addresses of a node's devices, without those that a data plane put there for Services."""
    proxied = {link.name for link in state.links if OWNER.owns_link(link)}
    return tuple(each.cidr.partition("/")[0] for each in state.addresses if each.link not in proxied)


class ServiceDataPlane(DataPlane, Protocol):
    """What programs the Services of one node: one mode, or a switch between several."""

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
        """Services of which a frontend is held by another Service."""
        ...


INVALID_DROPPED = "ct_state_invalid_dropped_pkts"
"""Packets of no connection that were dropped; kube-proxy's name, as nfacct(8) shows it."""
LOCALHOST_ACCEPTED = "localhost_nps_accepted_pkts"
"""First packets to node ports on loopback."""


class Counts(msgspec.Struct, frozen=True):
    """The counters of a data plane."""

    packets: Mapping[str, int] = {}
    """By the names above, since the rules are there; a name is missing where nothing counts it."""
    rules: Mapping[tuple[str, str], tuple[int, int]] = {}
    """By family (``ip``, ``ip6``) and table of iptables: rules that are ours, and those that the last change wrote."""
    refused_updates: int = 0
    """Updates that the kernel refused and that were answered by a load of everything."""
    refused_removals: int = 0
    """Removals that follow an update by themselves, and that the kernel refused."""


@runtime_checkable
class Counting(Protocol):
    """A data plane that counts."""

    def counts(self) -> Counts:
        """The counters since the data plane was opened.

        Raises: KernelError.
        """
        ...
