"""A pod's sandbox: network namespace, CNI attachment, cgroup and shim. Creates, adopts and removes sandboxes.

Each part is written to ``pod.json`` *before* it is created, so a kubelet that was killed in the middle knows what it
must remove: a started attachment is detached, a named network namespace is deleted. The shim starts while CNI ADD runs,
since neither needs the other. A pod in the node's network has no network namespace and no CNI ADD.
"""

import asyncio
import secrets
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

from podwire.embedded.kubelet.network import CniSandbox, Network, addresses
from podwire.embedded.kubelet.orders import PodRecord, ShimAnswer, ShimOrder
from podwire.embedded.kubelet.resolver import kernel_hostname
from podwire.embedded.kubelet.shimclient import ShimClient, listen
from podwire.embedded.kubelet.sysctls import pod_sysctls
from podwire.errors import CniError, KernelError, PodwireError
from podwire.kernel import cgroup, netns
from podwire.model.pod import Pod
from podwire.observe.log import Log
from podwire.runtime.child import Placement
from podwire.runtime.clock import Clock
from podwire.runtime.files import write_atomically
from podwire.runtime.forkserver import ForkServer
from podwire.runtime.process import is_running, send_signal, start_ticks

SHIM_ENTRY = "shim"
_SHIM_GROUP = "shim"
_CGROUP_TRIES = 100
_CGROUP_WAIT_S = 0.01


class SandboxHost(msgspec.Struct, frozen=True):
    """The settings and objects that all sandboxes of one node share."""

    node: str
    domain: str
    """The cluster's DNS domain."""
    addresses: tuple[str, ...]
    run: Path
    state: Path
    netns: Path
    group: cgroup.Hierarchies | None
    """The cgroups of the node's pods; None: pods run without cgroups."""
    binds: tuple[str, ...]
    fork_server: ForkServer
    network: Network
    clock: Clock

    @property
    def root(self) -> Path:
        """The directory on which every container mounts its root."""
        return self.run / "root"

    def pod_dir(self, uid: str) -> Path:
        """The directory of a pod's records, logs and volumes."""
        return self.state / "pods" / uid


def port_mappings(pod: Pod) -> tuple[dict[str, str | int], ...]:
    """The host ports of a pod in CNI's form."""
    return tuple(
        {
            "hostPort": p.host_port,
            "containerPort": p.container_port,
            "protocol": p.protocol.lower(),
            "hostIP": p.host_ip,
        }
        for c in pod.spec.init_containers + pod.spec.containers
        for p in c.ports
        if p.host_port
    )


class Sandbox:
    """The sandbox of one pod; ``client`` is None while the shim does not run."""

    def __init__(
        self, host: SandboxHost, record: PodRecord, event: Callable[[ShimAnswer], None], lost: Callable[[], None]
    ) -> None:
        """``event`` is called with each event of the shim, ``lost`` when the shim ends without :meth:`remove`."""
        self._host = host
        self._network = host.network
        self._event = event
        self._lost = lost
        self._log = Log("kubelet.sandbox")
        self._closing = False
        self.record = record
        self.client: ShimClient | None = None

    @property
    def directory(self) -> Path:
        """The pod's directory."""
        return self._host.pod_dir(self.record.uid)

    @property
    def containers(self) -> Path:
        """The directory of the records and logs of the pod's containers."""
        return self.directory / "containers"

    @property
    def up(self) -> bool:
        """Whether containers can be started."""
        return self.client is not None and self.client.open

    def _save(self, **changes: Any) -> None:
        self.record = msgspec.structs.replace(self.record, **changes)
        write_atomically(self.directory / "pod.json", msgspec.json.encode(self.record))

    def _attachment(self) -> CniSandbox:
        record = self.record
        return CniSandbox(record.sandbox, record.netns, record.namespace, record.name, record.uid, record.port_mappings)

    async def create(self, pod: Pod) -> None:
        """Creates the network namespace, the attachment, the cgroup and the shim.

        Raises: CniError, KernelError, ClusterError, OSError; :meth:`remove` removes the parts that were created.
        """
        sandbox = secrets.token_hex(16)
        on_host = pod.spec.host_network
        group = self.group
        path = "" if on_host else str(self._host.netns / f"pod-{sandbox}")
        self._closing = False
        self._save(
            sandbox=sandbox, netns=path, cgroup="" if group is None else str(group.unified),
            attached=not on_host, ips=(),
            port_mappings=() if on_host else port_mappings(pod), result=msgspec.Raw(b"null"),
        )  # fmt: skip
        if on_host:
            self._start_shim(pod)
            self._save(ips=self._host.addresses)
            return
        netns.create(path)
        result, problem = await asyncio.gather(
            self._network.add(msgspec.structs.replace(self._attachment(), annotations=pod.metadata.annotations)),
            self._start_shim_meanwhile(pod),
            return_exceptions=True,
        )
        for failure in (result, problem):
            if isinstance(failure, BaseException):
                raise failure
        self._save(ips=addresses(result), result=msgspec.Raw(msgspec.json.encode(result)))

    async def _start_shim_meanwhile(self, pod: Pod) -> None:
        await self._host.clock.sleep(0)  # Lets the plugin start first; the shim is forked while the plugin works.
        self._start_shim(pod)

    @property
    def group(self) -> cgroup.Hierarchies | None:
        """The pod's cgroups; None when pods run without cgroups."""
        node = self._host.group
        return node.inside(self.record.uid) if node is not None else None

    def _open_group(self) -> str:
        """Makes the pod's cgroup; returns the folder for the shim, which has one of its own beside the containers'."""
        group = self.group
        if group is None:
            return ""
        cgroup.make(group.unified / _SHIM_GROUP)
        cgroup.enable(group.unified)
        return str(group.unified / _SHIM_GROUP)

    def _start_shim(self, pod: Pod) -> None:
        order = ShimOrder(
            hostname=kernel_hostname(pod, self._host.node, self._host.domain), root=str(self._host.root),
            cgroup=self._open_group(),
            host_network=pod.spec.host_network, host_ipc=pod.spec.host_ipc, sysctls=pod_sysctls(pod),
            binds=self._host.binds,
        )  # fmt: skip
        placement = Placement(
            title=f"podwire-shim {self.record.namespace}/{self.record.name}", netns=self.record.netns,
            log=str(self.directory / "shim.log"), daemon=True,
        )  # fmt: skip
        fork_server = self._host.fork_server
        with listen(self._socket) as listener:
            pid = fork_server.spawn(SHIM_ENTRY, msgspec.msgpack.encode(order), (listener.fileno(),), placement)
        self._save(shim_pid=pid, shim_ticks=start_ticks(pid))
        self.client = ShimClient.connect(self._socket, self._event, self._gone)

    @property
    def _socket(self) -> Path:
        return self._host.run / f"{self.record.uid}.sock"

    def adopt(self) -> bool:
        """Connects to the shim that an earlier kubelet started; False when the shim does not run any more."""
        if not is_running(self.record.shim_pid, self.record.shim_ticks):
            return False
        try:
            self.client = ShimClient.connect(self._socket, self._event, self._gone)
        except OSError:
            return False
        return True

    def _gone(self) -> None:
        self.client = None
        if not self._closing:
            self._lost()

    async def remove(self) -> bool:
        """Ends the shim with all its processes, detaches the pod and deletes its network namespace.

        Returns False when CNI DEL failed; the call must then be repeated. Does nothing when there is no sandbox.
        """
        self._closing = True
        if self.client is not None:
            await self.client.end()
            self.client = None
        await self._kill()
        detached = await self._detach()
        if self.record.netns and detached:
            try:
                netns.delete(self.record.netns)
            except KernelError as failure:
                self._log.warning("cannot remove the network namespace", netns=self.record.netns, problem=failure)
        if detached and self.record.sandbox:
            self._save(sandbox="", netns="", attached=False, shim_pid=0, cgroup="")
        self._socket.unlink(missing_ok=True)
        return detached

    async def _detach(self) -> bool:
        if not self.record.attached:
            return True
        try:
            await self._network.delete(self._attachment(), msgspec.json.decode(self.record.result))
        except CniError as failure:
            pod = f"{self.record.namespace}/{self.record.name}"
            self._log.warning("the CNI command DEL failed; trying again", pod=pod, problem=failure)
            return False
        return True

    async def _kill(self) -> None:
        record = self.record
        if is_running(record.shim_pid, record.shim_ticks):
            send_signal(record.shim_pid, signal.SIGKILL)
        if not record.cgroup:
            return
        group = self.group or cgroup.Hierarchies(Path(record.cgroup))
        for _ in range(_CGROUP_TRIES):
            if kill_group(group):
                return
            await self._host.clock.sleep(_CGROUP_WAIT_S)


def kill_group(group: cgroup.Hierarchies) -> bool:
    """Kills the processes of a pod and removes its cgroups; False while a process has not ended yet."""
    cgroup.end_members(str(group.unified))
    return cgroup.remove(group)


def explain(failure: Exception) -> str:
    """The message of the Event when a sandbox cannot be created."""
    problem = str(failure) if isinstance(failure, PodwireError | OSError) else repr(failure)
    return f"Failed to create pod sandbox: {problem}"
