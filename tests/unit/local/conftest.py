"""A whole control plane in one event loop: the real API server, all local controllers, and hollow nodes.

A hollow node is a kubelet without containers: it reports itself ready and answers for the pods bound to it.
"""

import asyncio
import datetime
import itertools
import socket
from contextlib import asynccontextmanager

import pytest
from tests.unit.patient_loop import LoopClock, hurried

from podwire.embedded.apiserver import certificates
from podwire.embedded.apiserver.server import Server
from podwire.embedded.apiserver.settings import Settings
from podwire.kube.client import Client
from podwire.kube.config import ApiConfig
from podwire.kube.informer import Informer
from podwire.kube.resources import NODES, PODS
from podwire.local import controllers
from podwire.local.controllers import LocalControllerConfig
from podwire.runtime.clock import rfc3339


class HollowNodes:
    """Kubelets without containers; ``unready`` holds prefixes of pod names that never get ready."""

    def __init__(self, client, names, *, delay_s=0.0) -> None:
        self.client = client
        self.names = names
        self.delay_s = delay_s
        self.unready = set()
        self.outcome = {}
        self.pods = Informer(client, PODS)
        self.done = {}
        self.addresses = itertools.count(1)
        self.tasks = set()

    async def register(self, name, labels=None) -> None:
        node = {
            "apiVersion": "v1",
            "kind": "Node",
            "metadata": {"name": name, "labels": {"kubernetes.io/hostname": name} | (labels or {})},
        }
        await self.client.create(NODES, node)
        amounts = {"cpu": "4", "memory": "8Gi", "pods": "110"}
        ready = {"type": "Ready", "status": "True", "reason": "KubeletReady", "lastTransitionTime": self.now()}
        status = {"capacity": amounts, "allocatable": amounts, "conditions": [ready]}
        await self.client.patch(NODES, name, {"status": status}, subresource="status")

    def now(self):
        return rfc3339(self.client.clock.now())

    def changed(self, key, _old, pod) -> None:
        if pod is None or pod.spec.node_name not in self.names:
            return
        state = "going" if pod.metadata.deletion_timestamp else "bound"
        if self.done.get(pod.metadata.uid) in (state, "going"):
            return
        self.done[pod.metadata.uid] = state
        task = asyncio.ensure_future(self.act(pod, state))
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)

    async def act(self, pod, state) -> None:
        meta = pod.metadata
        if self.delay_s:
            await asyncio.sleep(self.delay_s)
        if state == "going":
            await self.client.delete(PODS, meta.name, meta.namespace, grace_period_s=0)
            return
        number = next(self.addresses)
        address = f"10.244.{number // 250}.{number % 250 + 1}"
        outcome = next((o for p, o in self.outcome.items() if meta.name.startswith(p)), "Running")
        ready = outcome == "Running" and not any(meta.name.startswith(p) for p in self.unready)
        conditions = [{"type": "Ready", "status": str(ready), "lastTransitionTime": self.now()}]
        status = {"phase": outcome, "podIP": address, "podIPs": [{"ip": address}], "conditions": conditions}
        await self.client.patch(
            PODS,
            meta.name,
            {"status": status},
            meta.namespace,
            subresource="status",
            patch_type="application/strategic-merge-patch+json",
        )

    async def run(self) -> None:
        self.pods.subscribe(self.changed)
        await self.pods.run()


class Plane:
    """What a test has: a client, the nodes, and waiting."""

    def __init__(self, client, nodes, folder, port, restart) -> None:
        self.restart = restart
        self.client = client
        self.nodes = nodes
        self.folder = folder
        self.port = port

    async def until(self, probe, timeout_s=60.0):
        """The first true answer of the (async) probe; time passes faster where all wait for a disk."""
        async with asyncio.timeout(timeout_s):
            while not (found := await probe()):  # noqa: ASYNC110
                await asyncio.sleep(0.02)
            return found


@pytest.fixture(scope="session")
def credentials(tmp_path_factory):
    folder = tmp_path_factory.mktemp("credentials")
    now = datetime.datetime.now(datetime.UTC)
    authority = certificates.make_authority("test", now)
    certificates.write_pair(folder, "ca", authority)
    certificates.write_pair(folder, "server", certificates.issue(authority, "s", (), ("127.0.0.1",), "server", now))
    admin = certificates.issue(authority, "admin", ("system:masters",), (), "client", now)
    certificates.write_pair(folder, "admin", admin)
    certificates.write_private(folder / "tokens.key", certificates.make_signing_key())
    return folder


@pytest.fixture
def plane(credentials, tmp_path):
    """``async with plane(nodes=3) as p``; time that nothing happens in passes quickly."""

    @asynccontextmanager
    async def start(*, nodes=3, config=None, delay_s=0.0):
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        settings = Settings(
            listen=(f"127.0.0.1:{port}",),
            state=tmp_path / "state.db",
            certificate=credentials / "server.crt",
            key=credentials / "server.key",
            client_ca=credentials / "ca.crt",
            signing_key=credentials / "tokens.key",
        )
        clock = LoopClock()
        servers = [Server(settings, clock)]
        await servers[0].start()

        async def restart(away_s) -> None:
            await servers.pop().close()
            await asyncio.sleep(away_s)
            servers.append(Server(settings, clock))
            await servers[0].start()

        api = ApiConfig(
            f"https://127.0.0.1:{port}",
            ca=(credentials / "ca.crt").read_bytes(),
            certificate=(credentials / "admin.crt").read_bytes(),
            key=(credentials / "admin.key").read_bytes(),
        )
        client, kubelet_client = Client(api, clock), Client(api, clock)
        names = [f"node-{number}" for number in range(1, nodes + 1)]
        hollow = HollowNodes(kubelet_client, names, delay_s=delay_s)
        for name in names:
            await hollow.register(name)
        config = config or LocalControllerConfig(ca_file=str(credentials / "ca.crt"))
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(hollow.run()), group.create_task(controllers.run(client, config))]
            try:
                yield Plane(client, hollow, credentials, port, restart)
            finally:
                for task in (*tasks, *hollow.tasks):
                    task.cancel()
                await asyncio.gather(*tasks, *hollow.tasks, return_exceptions=True)
                await client.close()
                await kubelet_client.close()
                await servers[0].close()

    with hurried():
        yield start
