"""Measures the CPU time and memory of the node's containers.

1. CPU time is read once in each interval (15 s), so that a request can be answered with a rate over the last seconds.
   This takes 0.07 ms of CPU for each container.
2. Memory, and CPU time again, are read for each request.

A node of a local cluster is not a machine of its own: its usage is that of its pods, its kubelet and its agent.
"""

from collections import deque
from pathlib import Path

from podwire.embedded.kubelet.lifecycle import ContainerState
from podwire.embedded.kubelet.limits import cpu_quota_us, memory_limit_bytes
from podwire.embedded.kubelet.pods import PodWorkers
from podwire.embedded.kubelet.podstate import PodState
from podwire.embedded.kubelet.sandbox import SandboxHost
from podwire.embedded.metrics.usage import ContainerUsage, CpuSample, PodUsage, Usage, UsageReport, rate
from podwire.kernel import cgroup
from podwire.runtime.clock import parse_rfc3339

_MAX_SAMPLES = 3
_NODE = ""


class UsageSampler:
    """The samples of one node."""

    def __init__(self, pods: PodWorkers, host: SandboxHost, interval_s: float, system: Path | None) -> None:
        """``system`` is the cgroup of the node's kubelet and agent."""
        self._pods = pods
        self._host = host
        self._interval_s = interval_s
        self._system = system
        self._started_s = host.clock.now().timestamp()
        self._samples: dict[str, deque[CpuSample]] = {}

    async def run(self) -> None:
        """Takes samples until cancelled."""
        while True:
            self._take()
            await self._host.clock.sleep(self._interval_s)

    def _take(self) -> None:
        folders = {_NODE: None} | {
            container.record.id: state.sandbox.group.unified / container.record.id
            for state in self._pods.states
            for container in state.containers.values()
            if container.running and container.record is not None and state.sandbox.group is not None
        }
        self._samples = {key: samples for key, samples in self._samples.items() if key in folders}
        for key, folder in folders.items():
            self._record_cpu(key, self._node_cpu_us() if folder is None else cgroup.cpu_us(folder))

    def _record_cpu(self, key: str, cpu_us: int | None) -> None:
        if cpu_us is not None:
            self._samples.setdefault(key, deque(maxlen=_MAX_SAMPLES)).append(CpuSample(self._now_s(), cpu_us))

    def _now_s(self) -> float:
        return self._host.clock.now().timestamp()

    # -- a report

    def report(self) -> UsageReport:
        """The usage now."""
        pods = tuple(pod for state in self._pods.states if (pod := self._pod(state)) is not None)
        return UsageReport(self._host.node, self._node(pods), pods)

    def _pod(self, state: PodState) -> PodUsage | None:
        measured = tuple(
            usage for c in state.containers.values() if c.running and (usage := self._container(state, c)) is not None
        )
        if not measured or state.gone:
            return None
        meta = state.pod.metadata
        since_s = parse_rfc3339(state.sandbox.record.started_at).timestamp()
        return PodUsage(meta.namespace, meta.name, meta.uid, since_s, measured)

    def _container(self, state: PodState, container: ContainerState) -> ContainerUsage | None:
        record, groups = container.record, state.sandbox.group
        if record is None or groups is None:
            return None
        group = groups.inside(record.id)
        cpu_us, memory = cgroup.cpu_us(group.unified), cgroup.working_set_bytes(group)
        if cpu_us is None or memory is None:
            return None
        since_s = parse_rfc3339(record.started_at).timestamp()
        now = CpuSample(self._now_s(), cpu_us)
        window_s, nanocores = rate((CpuSample(since_s, 0), *self._samples.get(record.id, ())), now, self._interval_s)
        usage = Usage(now.at_s, since_s, cpu_us, memory, window_s, nanocores)
        spec = container.spec
        return ContainerUsage(spec.name, record.id, spec.image, usage, cpu_quota_us(spec), memory_limit_bytes(spec))

    def _node(self, pods: tuple[PodUsage, ...]) -> Usage | None:
        cpu_us = self._node_cpu_us()
        if cpu_us is None:
            return None
        now = CpuSample(self._now_s(), cpu_us)
        window_s, nanocores = rate(self._samples.get(_NODE, ()), now, self._interval_s)
        own = cgroup.members(self._system) if self._system is not None else []
        memory = sum(c.usage.memory_bytes for pod in pods for c in pod.containers)
        memory += sum(cgroup.proportional_bytes(pid) for pid in own)
        return Usage(now.at_s, self._started_s, cpu_us, memory, window_s, nanocores)

    def _node_cpu_us(self) -> int | None:
        group = self._host.group
        if group is None:
            return None
        own = cgroup.cpu_us(self._system) if self._system is not None else 0
        pods = cgroup.cpu_us(group.unified)
        return None if pods is None else pods + (own or 0)
