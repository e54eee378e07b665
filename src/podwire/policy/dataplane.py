"""The interface of a data plane of policies, which every mode implements.

A data plane is opened for one network namespace, takes the result of the compiler and makes the kernel hold it. It is
one module with a class and a function ``clear``, named in ``policy.registry``; that entry is all that opening,
fallback, switching, cleaning up, ``podwire state`` and the packet table need.

Every data plane guarantees: 1. closed when in doubt: packets of an unknown device, or of a pod that uses another pod's
address, are dropped; 2. new rules are complete before any element or jump refers to them (or a packet that meets them
incomplete gets their verdict), so a packet is checked by the rules before a change or by the rules after the change; 3.
a load with nothing changed writes nothing; 4. a change that the kernel refuses leaves the last good state in force, and
the error is raised; 5. ``close`` leaves everything in force, ``remove`` and ``clear`` delete only objects with
podwire's owner mark.
"""

from collections.abc import Mapping
from typing import Any, Protocol, runtime_checkable

import msgspec

from podwire.dataplane.plane import DataPlane, Written
from podwire.policy.compile import Compiler
from podwire.policy.marks import MARKS
from podwire.policy.nodepods import PolicyDelta
from podwire.policy.settings import SILENT, LogSettings
from podwire.policy.status.counts import Counted
from podwire.policy.verdicts import RuleHit


class PolicyFacts(msgspec.Struct, frozen=True, kw_only=True):
    """The facts about the node that a policy data plane needs."""

    pod_ranges: tuple[str, ...] = ()
    """The pod ranges of this node, both families."""
    addresses: tuple[str, ...] = ()
    """The node's addresses, both families."""
    log: LogSettings = SILENT
    """What is logged, and at which rate."""
    cluster_ranges: tuple[str, ...] = ()
    """The pod ranges of the whole cluster, both families."""
    encapsulation_ports: tuple[int, ...] = ()
    """UDP ports on which a node may decapsulate packets: pods may send to these ports, and IP in IP and GRE, only to
    pods. Empty: pods may encapsulate."""
    keep: bool = False
    """Whether a connection that was allowed at its start stays allowed; otherwise every packet is checked."""
    marks: int = MARKS
    """The bits of the packet mark that a data plane may use."""
    bridges: tuple[str, ...] = ()
    """Bridges that have pods as ports: there a pod is identified by its address, not by the device."""

    def alike(self, other: "PolicyFacts") -> bool:
        """Whether both facts need the same rules: ranges and addresses are only elements of sets."""
        return self._without_addresses() == other._without_addresses()

    def _without_addresses(self) -> "PolicyFacts":
        return msgspec.structs.replace(self, pod_ranges=(), addresses=(), cluster_ranges=())


class FamilyFacts(msgspec.Struct, frozen=True, kw_only=True):
    """The facts for one address family; the layouts of data planes are made from them."""

    family: str
    pod_ranges: tuple[str, ...] = ()
    """The pod ranges of this node in this family."""
    node_addresses: tuple[str, ...] = ()
    """The addresses of this node in this family that policies can name."""
    log: LogSettings = SILENT
    """What is logged, and at which rate."""
    cluster_ranges: tuple[str, ...] = ()
    """The pod ranges of the cluster in this family, disjoint."""
    encapsulation_ports: tuple[int, ...] = ()
    """UDP ports to which pods send to pods alone, with IP in IP and GRE; empty: pods may encapsulate."""
    keep: bool = False
    """Whether a connection that was allowed at its start stays allowed."""
    bridges: tuple[str, ...] = ()
    """The bridges that have pods of this node as ports."""


def of_family(facts: PolicyFacts, family: str) -> dict[str, Any]:
    """The fields of :class:`FamilyFacts`."""

    def own(texts: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(text for text in texts if (":" in text) == (family == "ip6"))

    family_facts = FamilyFacts(
        family=family,
        pod_ranges=own(facts.pod_ranges),
        node_addresses=own(facts.addresses),
        log=facts.log,
        cluster_ranges=own(facts.cluster_ranges),
        encapsulation_ports=facts.encapsulation_ports,
        keep=facts.keep,
        bridges=facts.bridges,
    )
    return msgspec.structs.asdict(family_facts)


class PolicyDataPlane(DataPlane, Protocol):
    """Enforces policies on one node."""

    def load(self, compiler: Compiler, devices: Mapping[str, str], facts: PolicyFacts | None = None) -> Written:
        """Makes the kernel hold exactly the compiler's policies; ``devices`` has the device of each pod of this node.

        Returns the changes that were written; each is false when there was nothing to write.

        Raises: KernelError; the rules that were in force stay.
        """
        ...

    def update(
        self, compiler: Compiler, devices: Mapping[str, str], delta: PolicyDelta, facts: PolicyFacts | None = None
    ) -> Written:
        """Writes a change of the compiler; ``delta.pods`` also has the pods whose device was added or removed.

        ``facts`` is None when the facts of the node did not change; new facts must need the same rules
        (:meth:`PolicyFacts.alike`).

        Raises: KernelError; the next call loads everything again.
        """
        ...

    def heal(self) -> Written:
        """Restores what another program changed; returns what had to be written.

        Raises: KernelError.
        """
        ...

    def hit(self, prefix: str) -> RuleHit | None:
        """The rule that logs packets with a prefix; None: the rule is unknown or was deleted long ago."""
        ...

    def counts(self) -> tuple[Counted, ...]:
        """The counters of all rules; they never go down while this object lives.

        Raises: KernelError.
        """
        ...


@runtime_checkable
class Locking(Protocol):
    """A data plane whose changes take a lock that other programs take too."""

    def locked(self) -> bool:
        """Whether another process holds the lock now."""
        ...
