"""The Node object and its Lease.

The kubelet registers the node at once, not Ready, so that the node gets its pod CIDR. The node becomes Ready when the
CNI command STATUS succeeds, which means that pods can be attached. STATUS is called after 0.05 s, then with delays that
double up to 5 s, and every 5 s once the node is Ready. A Ready node becomes not ready when STATUS has failed for 15 s:
the restart of an agent must not remove the endpoints of the node's pods.

Guarantees:

1. The Lease is renewed every 10 s.
2. The status is written when it changes, and every 5 minutes.
3. Taints, annotations, labels and conditions of other writers stay.
4. A Node that was deleted is registered again, and a Ready condition that another writer changed is corrected, at the
   next renewal of the Lease.
"""

import os
import platform
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from podwire.embedded.kubelet.config import KubeletConfig
from podwire.embedded.kubelet.network import Network
from podwire.errors import AlreadyExists, ApiError, ApiUnreachable, CniError, NotFound, ProtocolError
from podwire.kube.client import STRATEGIC_MERGE_PATCH, Client
from podwire.kube.resources import LEASES, NODES, Json
from podwire.model.node import ZONE_LABEL
from podwire.observe.log import Log
from podwire.runtime.clock import Clock, rfc3339, rfc3339_micro

LEASE_NAMESPACE = "kube-node-lease"
_LEASE_S = 40
_RENEW_S = 10.0
_STATUS_S = 300.0
_CHECK_S = 5.0
_FIRST_CHECK_S = 0.05
_PATIENCE_S = 15.0
_VERSION = "v1.36.0"
_PODS = "250"


def machine_capacity(meminfo: str, processors: int, overrides: Mapping[str, str]) -> dict[str, str]:
    """The capacity of the node by resource name; each node of a local cluster has the capacity of the whole machine."""
    memory = next((line.split()[1] for line in meminfo.splitlines() if line.startswith("MemTotal:")), "0")
    capacity = {"cpu": str(processors), "memory": f"{memory}Ki", "pods": _PODS, "ephemeral-storage": "100Gi"}
    return capacity | dict(overrides)


def node_labels(config: KubeletConfig) -> dict[str, str]:
    """The labels that a kubelet sets."""
    machine = {"x86_64": "amd64", "aarch64": "arm64"}.get(platform.machine(), platform.machine())
    labels = {
        "kubernetes.io/hostname": config.node, "kubernetes.io/os": "linux", "kubernetes.io/arch": machine,
    }  # fmt: skip
    if config.zone:
        labels[ZONE_LABEL] = config.zone
    return labels | config.labels


def render_node_status(
    config: KubeletConfig, capacity: Mapping[str, str], *, problem: str | None, changed: str, now: str
) -> Json:
    """The node's status; Ready when ``problem`` is None. ``changed`` is the time of the last change of readiness."""
    ready = problem is None
    pressure = (("MemoryPressure", "Memory"), ("DiskPressure", "Disk"), ("PIDPressure", "PID"))
    conditions: list[Json] = [
        _condition(kind, "False", f"KubeletHasSufficient{resource}", f"enough {resource.lower()} is available", now)
        for kind, resource in pressure
    ]
    conditions.append(
        _condition("Ready", "True", "KubeletReady", "kubelet is posting ready status", now)
        if ready
        else _condition("Ready", "False", "KubeletNotReady", f"container runtime network not ready: {problem}", now)
    )
    for condition in conditions:
        condition["lastTransitionTime"] = changed
    addresses = [{"type": "InternalIP", "address": ip} for ip in config.addresses]
    return {
        "addresses": [*addresses, {"type": "Hostname", "address": config.node}],
        "capacity": dict(capacity),
        "allocatable": dict(capacity),
        "conditions": conditions,
        "daemonEndpoints": {"kubeletEndpoint": {"Port": config.port}},
        "nodeInfo": _node_info(),
    }


def _condition(kind: str, status: str, reason: str, message: str, now: str) -> Json:
    return {"type": kind, "status": status, "reason": reason, "message": message, "lastHeartbeatTime": now}


def _node_info() -> Json:
    return {
        "architecture": {"x86_64": "amd64", "aarch64": "arm64"}.get(platform.machine(), platform.machine()),
        "bootID": _read("/proc/sys/kernel/random/boot_id"), "machineID": _read("/etc/machine-id"), "systemUUID": "",
        "containerRuntimeVersion": "podwire://0.1.0", "kernelVersion": platform.release(), "kubeProxyVersion": "",
        "kubeletVersion": _VERSION, "operatingSystem": "linux", "osImage": "podwire",
    }  # fmt: skip


def _read(path: str) -> str:
    try:
        return Path(path).read_text(encoding="ascii").strip()
    except OSError:
        return ""


class NodeKeeper:
    """Keeps one Node and its Lease current."""

    def __init__(self, config: KubeletConfig, client: Client, network: Network, clock: Clock) -> None:
        self._config = config
        self._client = client
        self._network = network
        self._clock = clock
        self._log = Log("kubelet.node")
        self.capacity = machine_capacity(
            _read("/proc/meminfo"), len(os.sched_getaffinity(0)), config.capacity
        )  # fmt: skip
        self._problem: str | None = "the CNI plugins have not reported their status yet"
        self._changed = rfc3339(clock.now())
        self._written_at = 0.0
        self._failing_since: float | None = None
        self._stale = False
        """Whether the status in the API is not the current one."""

    async def run(self) -> None:
        """Registers, then keeps the status until cancelled."""
        wait_s = _FIRST_CHECK_S
        registered = False
        while True:
            try:
                if not registered:
                    await self._register()
                    registered = True
                turned = await self._check()
                if turned or self._stale or self._clock.monotonic() - self._written_at > _STATUS_S:
                    self._stale = True
                    await self._write_status()
            except (ApiError, ApiUnreachable, ProtocolError) as failure:
                self._log.warning("cannot write the Node; trying again", problem=failure)
            steady = self._problem is None and registered and not self._stale
            wait_s = _CHECK_S if steady else min(_CHECK_S, wait_s * 2)
            await self._clock.sleep(wait_s)

    async def _check(self) -> bool:
        """Calls STATUS; returns whether the node has become ready or not ready."""
        try:
            await self._network.status()
            problem = None
        except CniError as failure:
            problem = str(failure)
        now = self._clock.monotonic()
        self._failing_since = None if problem is None else self._failing_since or now
        if self._problem is None and self._failing_since is not None and now - self._failing_since < _PATIENCE_S:
            return False
        turned = (problem is None) != (self._problem is None)
        if turned:
            self._changed = rfc3339(self._clock.now())
            self._log.info("node is ready" if problem is None else "node is not ready", problem=problem or "")
        self._problem = self._network.problem = problem
        return turned

    async def _register(self) -> None:
        now = rfc3339(self._clock.now())
        labels = node_labels(self._config)
        body: Json = {
            "apiVersion": "v1", "kind": "Node", "metadata": {"name": self._config.node, "labels": labels}, "spec": {},
            "status": render_node_status(
                self._config, self.capacity, problem=self._problem, changed=self._changed, now=now
            ),
        }  # fmt: skip
        try:
            await self._client.create(NODES, body)
        except AlreadyExists:
            patch = {"metadata": {"labels": labels}}
            await self._client.patch(NODES, self._config.node, patch, patch_type=STRATEGIC_MERGE_PATCH)
            await self._write_status()
        else:
            self._written_at = self._clock.monotonic()
            self._stale = False

    async def _write_status(self) -> None:
        now = rfc3339(self._clock.now())
        status = render_node_status(
            self._config, self.capacity, problem=self._problem, changed=self._changed, now=now
        )  # fmt: skip
        # A patch merges addresses by type, and IPv4 and IPv6 have the same type: the patch must replace the list.
        status["addresses"].append({"$patch": "replace"})
        await self._client.patch(
            NODES, self._config.node, {"status": status}, patch_type=STRATEGIC_MERGE_PATCH, subresource="status"
        )
        self._written_at = self._clock.monotonic()
        self._stale = False

    async def renew(self) -> None:
        """Renews the Lease until cancelled; to be run under a supervisor."""
        while True:
            try:
                await self._renew()
            except (ApiError, ApiUnreachable, ProtocolError) as failure:
                self._log.warning("cannot renew the Lease; trying again", problem=failure)
                await self._clock.sleep(1.0)
                continue
            await self._clock.sleep(_RENEW_S)

    async def _renew(self) -> None:
        name = self._config.node
        spec: dict[str, Any] = {
            "holderIdentity": name, "leaseDurationSeconds": _LEASE_S, "renewTime": rfc3339_micro(self._clock.now()),
        }  # fmt: skip
        try:
            await self._client.patch(LEASES, name, {"spec": spec}, LEASE_NAMESPACE)
            await self._check_registration()
            return
        except NotFound:
            pass
        body = {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": {"name": name}, "spec": spec}
        await self._client.create(LEASES, body, LEASE_NAMESPACE)

    async def _check_registration(self) -> None:
        """Registers a Node that was deleted; writes the status when another writer changed the Ready condition."""
        try:
            node = await self._client.get(NODES, self._config.node, decode_as=NODES.type)
        except NotFound:
            await self._register()
            return
        if node.ready != (self._problem is None):
            await self._write_status()
