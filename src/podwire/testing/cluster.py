"""Local clusters for tests of manifests: apply manifests, and test with real packets which pods reach which targets.

::

    from podwire.testing.cluster import cluster

    with cluster(nodes=2) as c:
        c.apply("k8s/")
        assert c.pod("shop/web").reaches("db:5432")
        assert not c.pod("shop/web").reaches("db:5433")

``from podwire.testing import cluster`` imports this module, which can be called in the same way.

Needs root, as ``podwire up`` does. There are no fixed waits: :meth:`Cluster.apply` returns when the applied
workloads are Ready, and each question first waits until everything in the API has taken effect on every node. So the
answer holds for what was applied last, by this test or by kubectl. A connection that policies deny has 0.1 s to
succeed (0.25 s without a connection, as with UDP); any other connection has the whole time limit.
"""

import asyncio
import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

from podwire.errors import ClusterError, ConfigError, NotFound, ProtocolError
from podwire.http.fetch import fetch
from podwire.kube.client import Client
from podwire.kube.config import load_kubeconfig
from podwire.local import credentials, objects, readiness
from podwire.local.manifests import Manifest, ManifestLines, in_order, parse_manifests, rank, read_manifests
from podwire.local.probe import collect
from podwire.local.probe.plan import Expectations, PacketSource, ProbeInputs, pods_named, source_of
from podwire.local.topology import Topology
from podwire.runtime.clock import SystemClock
from podwire.testing import lifecycle
from podwire.testing.background import BackgroundLoop
from podwire.testing.connectiontester import ConnectionTester, explainer
from podwire.testing.convergence import unsettled
from podwire.testing.external import NAMESPACE
from podwire.testing.lifecycle import Config
from podwire.testing.reachability import Reached
from podwire.testing.reset import Resetter
from podwire.testing.targets import attempts_of, external

Manifests = str | os.PathLike[str] | Mapping[str, Any]
"""A file or folder of manifests, their text, or one object."""

TIMEOUT_S = 60.0
"""Seconds until applied workloads must be Ready and all changes in effect."""
CONNECT_S = 2.0
"""Seconds until a connection that policies allow must be made."""
_POLL_S = 0.005


@contextlib.contextmanager
def cluster(nodes: int = 2, *, config: Config = None, name: str = "") -> Iterator["Cluster"]:
    """A new cluster until the end of the block.

    ``config`` is what ``podwire up --config`` takes, a file or a mapping (``{"proxy": {"mode": "iptables"}}``).

    Raises: ConfigError with what to do when this machine cannot run clusters; ClusterError.
    """
    new_cluster = Cluster(lifecycle.StartingCluster(name or lifecycle.free_name(), nodes, config).topology())
    try:
        yield new_cluster
    finally:
        new_cluster.close()
        lifecycle.down(new_cluster.name)


class Cluster:
    """A running cluster."""

    def __init__(self, topology: Topology) -> None:
        self.name = topology.name
        self.kubeconfig = str(credentials.kubeconfig_path(topology, "admin"))
        """The path of a kubeconfig file."""
        self._topology = topology
        self._background = BackgroundLoop()
        self._client = self._background.run(_connect(self.kubeconfig))
        self._resetter = Resetter(self._client)
        self._tester = ConnectionTester(topology, self._client.clock)
        self._manifests: list[Manifest] = []

    def __repr__(self) -> str:
        return f"<cluster {self.name}>"

    def close(self) -> None:
        """Closes the connections to the cluster; the cluster keeps running."""
        self._background.run(self._client.close())
        self._background.close()

    def apply(self, *sources: Manifests, namespace: str = "default", timeout_s: float = TIMEOUT_S) -> None:
        """Applies manifests, and waits until their workloads are Ready and everything has taken effect on every node.

        ``namespace`` is that of objects without one.

        Raises: ConfigError with file, line and field of a mistake; ClusterError with the workloads that are not Ready.
        """
        manifests = _read(sources)
        self._manifests += manifests
        self._background.run(self._apply(manifests, namespace, timeout_s))

    def delete(self, *sources: Manifests, namespace: str = "default", timeout_s: float = TIMEOUT_S) -> None:
        """Deletes the objects of manifests, and waits until they are gone and that has taken effect on every node.

        Raises: ConfigError, ClusterError.
        """
        self._background.run(self._delete(_read(sources), namespace, timeout_s))

    @contextlib.contextmanager
    def applied(self, *sources: Manifests, namespace: str = "default", timeout_s: float = TIMEOUT_S) -> Iterator[None]:
        """Applies manifests until the end of the block."""
        self.apply(*sources, namespace=namespace, timeout_s=timeout_s)
        try:
            yield
        finally:
            self.delete(*sources, namespace=namespace, timeout_s=timeout_s)

    def settle(self, timeout_s: float = TIMEOUT_S) -> None:
        """Waits until everything in the API has taken effect on every node.

        Raises: ClusterError with what has not taken effect.
        """
        self._background.run(self._settled(timeout_s))

    def kubectl(self, *arguments: str, stdin: str = "", timeout_s: float = TIMEOUT_S) -> str:
        """The output of kubectl.

        Raises: ClusterError when kubectl is not installed, or when its exit status is not 0.
        """
        environment = {**os.environ, "KUBECONFIG": self.kubeconfig}
        try:
            done = subprocess.run(
                ["kubectl", *arguments],
                input=stdin,
                capture_output=True,
                text=True,
                timeout=timeout_s,
                env=environment,
                check=False,
            )
        except FileNotFoundError as failure:
            raise ClusterError("kubectl is not installed") from failure
        if done.returncode != 0:
            raise ClusterError(
                f"kubectl {' '.join(arguments)}: exit status {done.returncode}\n{done.stdout}{done.stderr}"
            )
        return done.stdout

    def pod(self, word: str) -> "ConnectionSource":
        """Pods by name (``shop/web-0``), by their Deployment's name, or by labels (``shop/app=web``).

        The pods are looked up for each question.
        """
        return ConnectionSource(
            self, word, lambda inputs: tuple(source_of(pod) for pod in pods_named(inputs, word, "pod"))
        )

    def node(self, name: str) -> "ConnectionSource":
        """A node as source: its own programs and the pods in its network."""

        def sources(inputs: ProbeInputs) -> tuple[PacketSource, ...]:
            addresses = [(node, address) for node, address in inputs.node_addresses if node == name]
            if not addresses:
                known = ", ".join(node for node, _ in inputs.node_addresses)
                raise ConfigError("node", "", f"there is no node {name!r}; expected one of {known}")
            return tuple(
                PacketSource(name=f"node/{name}", node=name, host_network=True, address=ip) for _, ip in addresses
            )

        return ConnectionSource(self, f"node/{name}", sources)

    @property
    def outside(self) -> "ConnectionSource":
        """A host outside of the cluster."""

        def sources(inputs: ProbeInputs) -> tuple[PacketSource, ...]:
            address = external(inputs)
            return (PacketSource(name=address, namespace=NAMESPACE, address=address),)

        return ConnectionSource(self, "outside", sources)

    def outside_at(self, address: str) -> "ConnectionSource":
        """A host outside of the cluster with this address."""
        source = PacketSource(name=address, namespace=NAMESPACE, address=address)
        return ConnectionSource(self, address, lambda _inputs: (source,))

    @contextlib.contextmanager
    def restored(self) -> Iterator[None]:
        """After the block, deletes the objects created in it, and restores the labels of nodes and namespaces.

        Raises: ClusterError with the objects that are not deleted in time.
        """
        before, known = self._background.run(self._resetter.snapshot()), len(self._manifests)
        try:
            yield
        finally:
            del self._manifests[known:]
            self._background.run(self._resetter.back_to(before))

    def try_all(self, source: "ConnectionSource", target: str, timeout_s: float) -> Reached:
        """Tries the connections for :meth:`ConnectionSource.reaches`."""
        return self._background.run(self._reach(source, target, timeout_s))

    async def _apply(self, manifests: tuple[Manifest, ...], namespace: str, timeout_s: float) -> None:
        applied_objects = await objects.apply(self._client, manifests, namespace)
        late = await readiness.Waiting(self._client, ("node-1",), applied_objects).until_ready(timeout_s)
        if late:
            raise ClusterError("not ready in time:\n" + "\n".join(f"  {line}" for line in late))
        await self._settled(timeout_s)

    async def _delete(self, manifests: tuple[Manifest, ...], namespace: str, timeout_s: float) -> None:
        kinds = objects.Kinds(self._client)
        remaining = []
        for manifest in sorted(manifests, key=rank, reverse=True):
            resource = await kinds.resource(manifest)
            meta = manifest.body["metadata"]
            object_namespace = (meta.get("namespace") or namespace) if resource.namespaced else ""
            with contextlib.suppress(NotFound):
                await self._client.delete(resource, meta["name"], object_namespace, propagation="Foreground")
                remaining.append((resource, meta["name"], object_namespace))
        clock = self._client.clock
        deadline = clock.monotonic() + timeout_s
        while remaining:
            resource, name, object_namespace = remaining[-1]
            try:
                await self._client.get(resource, name, object_namespace)
            except NotFound:
                remaining.pop()
                continue
            if clock.monotonic() > deadline:
                raise ClusterError(f"{resource.kind} {object_namespace}/{name} was not deleted in time")
            await clock.sleep(_POLL_S)
        await self._settled(timeout_s)

    async def _settled(self, timeout_s: float) -> ProbeInputs:
        """The objects, once all of them have taken effect."""
        clock = self._client.clock
        deadline = clock.monotonic() + timeout_s
        while True:
            inputs = await collect.collect_inputs(self._client, self._topology)
            nodes = [node for node, _ in inputs.node_addresses]
            pages = await asyncio.gather(*(asyncio.to_thread(self._read_status_page, node) for node in nodes))
            problem = unsettled(inputs, dict(zip(nodes, pages, strict=True)))
            if not problem:
                return inputs
            if clock.monotonic() > deadline:
                raise ClusterError(f"changes did not take effect within {timeout_s:g} s: {problem}")
            await clock.sleep(_POLL_S)

    def _read_status_page(self, node: str) -> tuple[str, ...]:
        """The status page of a node's agent; one line that says so while the agent restarts."""
        try:
            return tuple(fetch(Path(self._topology.node_run(node)) / "agent.sock", "/seen"))
        except (OSError, ProtocolError):
            return ("agent is away",)

    async def _reach(self, source: "ConnectionSource", target: str, timeout_s: float) -> Reached:
        inputs = await self._settled(TIMEOUT_S)
        lines = ManifestLines(self._manifests).line
        expecting = Expectations(inputs, lines)
        sources = source.packet_sources(inputs)
        attempts = [attempt for packet_source in sources for attempt in attempts_of(expecting, packet_source, target)]
        if not attempts:
            raise ConfigError("reaches", "", f"{target!r} resolves only to {source.word} itself")
        results = await self._tester.tried(expecting, sources, attempts, timeout_s)
        return Reached(source.word, target, results, explainer(expecting, lines))


class ConnectionSource:
    """The source of connections: pods, a node, or a host outside of the cluster."""

    def __init__(
        self, owner: Cluster, word: str, packet_sources: Callable[[ProbeInputs], tuple[PacketSource, ...]]
    ) -> None:
        self._cluster = owner
        self.word = word
        self.packet_sources = packet_sources
        """Finds the sources of packets among the cluster's objects."""

    def __repr__(self) -> str:
        return f"<{self.word}>"

    def reaches(self, target: str, timeout_s: float = CONNECT_S) -> Reached:
        """Tries a connection from each source, with real packets; assert the answer.

        ``db:5432``, ``db.shop:53/UDP``: a Service, by its DNS name; ``svc/shop/db:http``: the same, from outside its
        node ports; ``shop/web:80``: pods; ``node/node-1:30080``; ``10.0.0.1:80``; ``external:443``.

        Raises: ConfigError for an unknown target; ClusterError when changes do not take effect in time.
        """
        return self._cluster.try_all(self, target, timeout_s)


async def _connect(kubeconfig: str) -> Client:
    return Client(load_kubeconfig(kubeconfig), SystemClock(), manager=objects.MANAGER)


def _read(sources: tuple[Manifests, ...]) -> tuple[Manifest, ...]:
    """The manifests in files, folders, texts and mappings.

    Raises: ConfigError.
    """
    manifests: list[Manifest] = []
    for source in sources:
        if isinstance(source, Mapping):
            manifests += parse_manifests(json.dumps(source), "mapping")
        elif isinstance(source, str) and ("\n" in source or ": " in source):
            manifests += parse_manifests(source, "text")
        else:
            manifests += read_manifests((_short(os.fspath(source)),))
    return in_order(tuple(manifests))


def _short(path: str) -> str:
    """The path relative to the current folder when it is inside, otherwise unchanged."""
    inside = os.path.relpath(path)
    return path if inside.startswith(os.pardir) else inside


class _Called(ModuleType):
    """This module, which can be called as :func:`cluster`."""

    def __call__(
        self, nodes: int = 2, *, config: Config = None, name: str = ""
    ) -> contextlib.AbstractContextManager[Cluster]:
        return cluster(nodes, config=config, name=name)


sys.modules[__name__].__class__ = _Called
