"""The objects of a migration in memory, for nodes whose pods obey the label; a call can end the run, as kill -9 does.

Nodes have no kernel here: ``tests/kernel/test_migrate_steps.py`` and ``tests/e2e/test_migrate.py`` are about those.
"""

from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from podwire.errors import ClusterError
from podwire.flows import sending
from podwire.flows.count import FlowReport
from podwire.install.migration import record
from podwire.install.migration.clusterplan import LABEL, SELECTED
from podwire.install.migration.record import NodeRecord

Json = dict[str, Any]
AGENT_SPEC: Json = {
    "nodeSelector": {LABEL: SELECTED},
    "containers": [{"name": "agent", "image": "podwire", "volumeMounts": []}],
    "volumes": [],
}


class Killed(Exception):
    """The run ended here."""


class MemoryRecord:
    """The record as a mapping; ``call`` is called before each change."""

    def __init__(self, data: dict[str, str], call: Callable[[], None]) -> None:
        self._data = data
        self._call = call

    async def read(self) -> record.MigrationRecord:
        return record.parse(self._data)

    async def begin(self, direction: record.Direction) -> None:
        self._call()
        self._data["direction"] = direction

    async def write_node(self, name: str, entry: NodeRecord) -> None:
        self._call()
        self._data.update(record.entry(name, entry))

    async def delete(self) -> None:
        self._call()
        self._data.clear()


class MigrationCluster:
    """Nodes, DaemonSets, the record, and the steps that ran on each node. ``allowed`` calls succeed; None: all."""

    def __init__(self, *nodes: str) -> None:
        self.labels: dict[str, str | None] = dict.fromkeys(nodes)
        self.data: dict[str, str] = {}
        self.record = MemoryRecord(self.data, self._call)
        self.affinity: Any = None
        self.steps: list[tuple[str, str]] = []
        self.faults: set[tuple[str, str]] = set()
        """Steps that fail, by node."""
        self.network: dict[str, str] = dict.fromkeys(nodes, "old")
        self.flow_pods: set[str] = set()
        self.allowed: int | None = None
        self.calls = 0

    def _call(self) -> None:
        self.calls += 1
        if self.allowed is not None:
            if self.allowed == 0:
                raise Killed
            self.allowed -= 1

    async def agents(self) -> Json:
        return {"metadata": {"name": "podwire-agent", "namespace": "n"}, "spec": {"template": {"spec": AGENT_SPEC}}}

    async def daemonsets(self) -> list[Json]:
        spec = {"affinity": self.affinity} if self.affinity else {}
        return [{"metadata": {"name": "kube-proxy", "namespace": "n"}, "spec": {"template": {"spec": spec}}}]

    async def nodes(self) -> list[Json]:
        return [{"metadata": {"name": name, "labels": {LABEL: value}}} for name, value in self.labels.items()]

    async def change_daemonset(self, daemonset: Json, patch: Json) -> None:
        self._call()
        self.affinity = patch["spec"]["template"]["spec"]["affinity"]

    async def label(self, node: str, value: str | None, annotations: Mapping[str, None] = {}) -> None:
        self._call()
        self.labels[node] = value

    async def pods_of(self, daemonset: Json, node: str) -> list[Json]:
        """One pod where the label says so."""
        ours = daemonset["metadata"]["name"] == "podwire-agent"
        excluded = self.affinity is not None and self.labels[node] == SELECTED
        runs = self.labels[node] == SELECTED if ours else not excluded
        condition = {"type": "Ready", "status": "True"}
        return [{"metadata": {}, "status": {"phase": "Running", "conditions": [condition]}}] if runs else []

    async def ensure_service(self, body: Json) -> str:
        return "10.96.0.9"

    async def ensure_pod(self, body: Json) -> None:
        self._call()
        self.flow_pods.add(body["metadata"]["name"])

    async def delete_flows(self, name: str) -> None:
        self._call()
        self.flow_pods.clear()

    async def address_of(self, name: str) -> str:
        return "10.244.0.2"

    async def run_pod(self, body: Json) -> tuple[bool, str]:
        """Runs a step; a run that is killed while the pod is at work finds its work done."""
        node, (_, _, step, *_) = body["spec"]["nodeName"], body["spec"]["containers"][0]["args"]
        self.steps.append((node, step))
        if (node, step) in self.faults:
            return False, '{"kubeProxy": "iptables"}' if step == "check" else "no"
        if step in ("network", "network-back"):
            assert (self.labels[node] == SELECTED) == (step == "network"), "the agent runs there, and only there"
            self.network[node] = "podwire" if step == "network" else "old"
        self._call()
        return True, '{"kubeProxy": "iptables"}' if step == "check" else "done"

    async def log(self, name: str) -> str:
        return sending.render([FlowReport(kind="tcp", target="10.244.0.2", sent=9, answered=9)])

    async def until(self, reached: Callable[[], Awaitable[bool]], problem: str, seconds: float) -> None:
        if not await reached():
            raise ClusterError(problem)
