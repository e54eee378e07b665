"""The cgroups of a pod's containers: one for each run, with the limits of the container."""

from collections.abc import Callable

import msgspec

from podwire.embedded.kubelet.limits import cpu_quota_us, memory_limit_bytes
from podwire.embedded.kubelet.orders import ContainerOrder, ContainerRecord
from podwire.embedded.kubelet.podstate import PodState
from podwire.kernel import cgroup
from podwire.model.pod import Container

_CPU_TEXT, _MEMORY_TEXT = "CPU", "memory"


class ContainerGroups:
    """Makes and removes the cgroups of one pod's container runs."""

    def __init__(self, state: PodState) -> None:
        self._state = state

    def open(self, order: ContainerOrder, container: Container) -> ContainerOrder:
        """The order with the folders that the container joins; the limits are in force before it starts.

        Raises: KernelError.
        """
        group = self._of(order.id)
        if group is None:
            return order
        cgroup.make(group.unified)
        joined = [group.unified]
        if "memory" in group.legacy:
            cgroup.make(group.legacy["memory"])
            joined.append(group.legacy["memory"])
        self.limit(order.id, container)
        if "cpu" in group.legacy and group.legacy["cpu"].is_dir():
            joined.append(group.legacy["cpu"])
        memory = group.legacy.get("memory", group.unified)
        return msgspec.structs.replace(order, groups=tuple(map(str, joined)), memory_group=str(memory))

    def limit(self, run: str, container: Container) -> None:
        """Holds a run, by its id, to the limits of its container; nothing where the machine has no controller.

        Raises: KernelError when the kernel refuses a limit.
        """
        group = self._of(run)
        if group is not None:
            cgroup.limit_cpu(group, cpu_quota_us(container))
            cgroup.limit_memory(group, memory_limit_bytes(container))

    def memory_bytes(self, run: str) -> int:
        """The working set of a run, by its id."""
        group = self._of(run)
        return (cgroup.working_set_bytes(group) or 0) if group is not None else 0

    def unenforced(self, container: Container) -> tuple[str, ...]:
        """The limits of a container that this machine cannot enforce: ``CPU``, ``memory``."""
        group = self._state.sandbox.group
        kinds: tuple[tuple[cgroup.Controller, str, Callable[[Container], int | None]], ...] = (
            ("cpu", _CPU_TEXT, cpu_quota_us), ("memory", _MEMORY_TEXT, memory_limit_bytes),
        )  # fmt: skip
        return tuple(
            text
            for controller, text, limit in kinds
            if limit(container) is not None and (group is None or not group.limits(controller))
        )

    def close(self, record: ContainerRecord) -> None:
        """Removes the cgroup of a run that has ended; one with processes stays until the pod is removed."""
        group = self._of(record.id)
        if group is not None:
            cgroup.end_members(str(group.unified))
            cgroup.remove(group)

    def _of(self, run: str) -> cgroup.Hierarchies | None:
        group = self._state.sandbox.group
        return group.inside(run) if group is not None else None
