"""The ipsets of mode ``ipvs`` in one network namespace."""

from collections.abc import Callable, Iterable, Mapping

from podwire.kernel.ipset import IpSets
from podwire.kernel.iptables import FAMILIES
from podwire.kernel.netns import NetnsPath
from podwire.proxy.dataplanes.ipvs import names
from podwire.proxy.dataplanes.ipvs.names import SETS, set_name
from podwire.state.ipset import IpSet
from podwire.state.ipset_diff import Add, Delete, Operation, Swap, diff


class IpvsSets:
    """The sets in one network namespace (None: that of this process)."""

    def __init__(self, netns_path: NetnsPath) -> None:
        self._ipset = IpSets(netns_path)

    def close(self) -> None:
        """Closes the socket to the kernel; the sets stay."""
        self._ipset.close()

    def hold(self, desired: Iterable[IpSet]) -> Callable[[], list[Operation]]:
        """Creates sets and adds missing elements; returns a function that removes the other elements.

        That function returns all operations, including the added elements.

        Raises: KernelError.
        """
        additions: list[Operation] = []
        deletions: list[Operation] = []
        for ip_set in desired:
            operations = diff(self._ipset.read(ip_set.name), ip_set)
            swapped = any(isinstance(operation, Swap) for operation in operations)
            additions += [op for op in operations if swapped or not isinstance(op, Delete)]
            deletions += [op for op in operations if not swapped and isinstance(op, Delete)]
        self._ipset.commit(additions)

        def delete() -> list[Operation]:
            self._ipset.commit(deletions)
            return additions + deletions

        return delete

    def resized(self, sizes: Mapping[str, int]) -> bool:
        """Whether one of these sets is gone, or has another number of elements.

        Raises: KernelError.
        """
        held = self._ipset.sizes()
        return any(held.get(name) != size for name, size in sizes.items())

    def add(self, elements: Iterable[IpSet]) -> list[Operation]:
        """Adds elements to sets; returns the operations.

        Raises: KernelError.
        """
        operations: list[Operation] = [Add(ip_set, key) for ip_set in elements for key in ip_set.elements]
        self._ipset.commit(operations)
        return operations

    def delete(self, elements: Iterable[IpSet]) -> list[Operation]:
        """Deletes elements from sets; returns the operations.

        Raises: KernelError.
        """
        operations: list[Operation] = [Delete(ip_set, key) for ip_set in elements for key in ip_set.elements]
        self._ipset.commit(operations)
        return operations

    def destroy(self) -> None:
        """Deletes our sets.

        Raises: KernelError.
        """
        self._ipset.destroy(set_name(kind, family) for family in FAMILIES for kind in SETS)

    def node_ports(self) -> frozenset[tuple[str, int]]:
        """The protocols and ports in the sets of node ports.

        Raises: KernelError.
        """
        by_name = {set_name(names.NODE_PORT[p], family): p for p in ("tcp", "udp") for family in FAMILIES}
        sets = ((protocol, self._ipset.read(name)) for name, protocol in by_name.items())
        return frozenset((protocol, int(port)) for protocol, ip_set in sets if ip_set for port in ip_set.elements)
