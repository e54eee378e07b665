"""Runs ``podwire preflight`` and ``podwire uninstall`` on the nodes of a cluster, each in a pod like the agent's.

``uninstall`` takes the agents off all nodes first: their DaemonSet stays, with a selector that no node fits, since the
pods are made from its template. A node that refuses, because pods still have its network, is reported, and the others
go on; the command can be repeated.
"""

from collections.abc import Awaitable, Callable, Sequence

from podwire.errors import ConfigError, NotFound
from podwire.install.agentpods import AGENTS, agent_pod, without_nodes
from podwire.kube.client import STRATEGIC_MERGE_PATCH, Client
from podwire.kube.podruns import PodRuns, is_owned
from podwire.kube.resources import DAEMONSETS, NODES, PODS, Json

_STEP = "podwire-node"
"""The beginning of the names of the pods, and their label."""
_END_S = 120.0
"""How long the agents' pods may take to end."""


class CommandsOnNodes:
    """Commands on all nodes, or on those of ``named``; ``say`` gets each line of their output."""

    def __init__(self, client: Client, namespace: str, named: Sequence[str], say: Callable[[str], None]) -> None:
        self._client = client
        self._namespace = namespace
        self._named = named
        self._say = say
        self._pods = PodRuns(client, namespace)

    async def preflight(self) -> bool:
        """Checks the nodes; whether none has a fault.

        Raises: ConfigError without agents or for an unknown node; ClusterError, ApiError, ApiUnreachable.
        """
        return await self._on_each(await self._agents(), ("preflight",))

    async def uninstall(self, *, with_pods: bool) -> bool:
        """Takes podwire off the nodes; whether every node is done.

        Raises: ConfigError without agents or for an unknown node; ClusterError, ApiError, ApiUnreachable.
        """
        agents = await self._agents()
        await self._nodes()
        await self._client.patch(DAEMONSETS, AGENTS, without_nodes(), self._namespace, patch_type=STRATEGIC_MERGE_PATCH)
        await self._pods.until(self._ended(agents), "the agents have not ended", _END_S)
        return await self._on_each(agents, ("uninstall", *(("--with-pods",) if with_pods else ())))

    async def _agents(self) -> Json:
        try:
            return await self._client.get(DAEMONSETS.raw, AGENTS, self._namespace)
        except NotFound as failure:
            problem = f"there is no DaemonSet {AGENTS}, whose template the pods on nodes have"
            raise ConfigError(f"namespace {self._namespace}", "", problem) from failure

    async def _nodes(self) -> list[str]:
        """The names of the nodes."""
        known = sorted(node["metadata"]["name"] for node in (await self._client.list(NODES.raw)).items)
        for name in self._named:
            if name not in known:
                problem = f"{name!r} is not a node of this cluster; the nodes are {', '.join(known)}"
                raise ConfigError("--node", "", problem)
        return list(self._named) or known

    def _ended(self, agents: Json) -> Callable[[], Awaitable[bool]]:
        async def ended() -> bool:
            pods = await self._client.list(PODS.raw, self._namespace)
            return not any(is_owned(pod, agents) for pod in pods.items)

        return ended

    async def _on_each(self, agents: Json, arguments: Sequence[str]) -> bool:
        """Runs a command on the nodes, one after the other; whether it succeeded everywhere."""
        results = []
        for node in await self._nodes():
            passed, log = await self._pods.run_pod(agent_pod(agents, _STEP, node, arguments))
            for line in log.splitlines() or ["no output"]:
                self._say(f"{node}: {line}")
            results.append(passed)
        return all(results)
