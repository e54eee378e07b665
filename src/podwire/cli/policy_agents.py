"""Reads pages about policies from the agents of a cluster's nodes, for commands.

Agents of this machine are asked on their sockets. Agents of a remote cluster are asked through its API server, which
forwards requests to a port of each node (``nodes/NAME:PORT/proxy``). 32 nodes are asked at a time, so that a node that
does not answer does not delay the others.
"""

import asyncio
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from http import HTTPStatus
from pathlib import Path
from typing import Any, NamedTuple, Protocol
from urllib.parse import parse_qsl

import msgspec

from podwire.cli.api import client_of
from podwire.errors import ApiError, ApiUnreachable, ProtocolError
from podwire.http.fetch import fetch
from podwire.kube.client import Client
from podwire.kube.decode import decode_failure
from podwire.kube.resources import NODES
from podwire.local import inventory
from podwire.local.topology import Topology
from podwire.policy.status.nodes import LOG_PAGE, NO_LOG, NO_PORT, enforcing

Line = dict[str, Any]
NodeLine = tuple[str, Line]
"""A node and a line of its page."""

_AT_ONCE = 32


class Agents(Protocol):
    """The agents that this command can reach."""

    @property
    def poll_s(self) -> float:
        """Seconds between two requests for new lines."""
        ...

    @property
    def nodes(self) -> tuple[str, ...]:
        """The names of their nodes."""
        ...

    def ask(self, pages: Mapping[str, str], failures: dict[str, str]) -> Iterator[NodeLine]:
        """The lines of each node's page; ``failures`` gets the reason for each node that does not answer.

        Raises: ApiError, ApiUnreachable when no agent can be asked.
        """
        ...


def ask_all_nodes(agents: Agents, page: str, failures: dict[str, str]) -> Iterator[NodeLine]:
    """The lines of one page of every node."""
    return agents.ask(dict.fromkeys(agents.nodes, page), failures)


class LocalAgents(NamedTuple):
    """Agents of this machine."""

    sockets: Mapping[str, Path]
    """By the names of their nodes."""
    poll_s: float = 0.3

    @property
    def nodes(self) -> tuple[str, ...]:
        """The names of their nodes."""
        return tuple(sorted(self.sockets, key=lambda name: (len(name), name)))

    def ask(self, pages: Mapping[str, str], failures: dict[str, str]) -> Iterator[NodeLine]:
        """The lines of each node's page, one node after the other."""
        for node, page in pages.items():
            path = self.sockets[node]
            try:
                for line in fetch(path, page):
                    yield node, msgspec.json.decode(line, type=Line)
            except (OSError, ProtocolError) as failure:
                reason = getattr(failure, "strerror", None) or failure
                failures[node] = f"its agent does not answer on {path} ({reason})"


class RemoteAgents:
    """Agents of a remote cluster, asked through its API server."""

    poll_s = 2.0

    def __init__(self, kubeconfig: str | None) -> None:
        self._kubeconfig = kubeconfig
        self._runner = asyncio.Runner()
        self._client: Client | None = None
        self._ports: dict[str, int] | None = None

    @property
    def nodes(self) -> tuple[str, ...]:
        """The nodes that enforce policies.

        Raises: ApiError, ApiUnreachable.
        """
        if self._ports is None:
            self._ports = self._runner.run(self._enforcing())
        return tuple(sorted(self._ports, key=lambda name: (len(name), name)))

    def ask(self, pages: Mapping[str, str], failures: dict[str, str]) -> Iterator[NodeLine]:
        """The lines of each node's page, in the order of the nodes."""
        lines_by_node = self._runner.run(self._all(pages, failures))
        for node in pages:
            for line in lines_by_node.get(node, ()):
                yield node, line

    def close(self) -> None:
        """Closes the connection to the API server."""
        if self._client is not None:
            self._runner.run(self._client.close())
        self._runner.close()

    def _api(self) -> Client:
        """The client, which belongs to the runner's loop."""
        if self._client is None:
            self._client = client_of(self._kubeconfig)
        return self._client

    async def _enforcing(self) -> dict[str, int]:
        return enforcing((await self._api().list(NODES)).items)

    async def _all(self, pages: Mapping[str, str], failures: dict[str, str]) -> dict[str, list[Line]]:
        slots, client, ports = asyncio.Semaphore(_AT_ONCE), self._api(), self._ports or {}

        async def fetch_page(node: str, page: str) -> list[Line] | str:
            async with slots:
                return await _page(client, node, ports.get(node, 0), page)

        answers: list[list[Line] | str] = await asyncio.gather(
            *(fetch_page(node, page) for node, page in pages.items())
        )
        by_node = dict(zip(pages, answers, strict=True))
        failures |= {node: reason for node, reason in by_node.items() if isinstance(reason, str)}
        return {node: lines for node, lines in by_node.items() if not isinstance(lines, str)}


async def _page(client: Client, node: str, port: int, page: str) -> list[Line] | str:
    """The lines of a page, or the reason why there are none."""
    if not port:
        return NO_PORT
    path, _, query = page.partition("?")
    try:
        answer = await client.raw("GET", f"/api/v1/nodes/{node}:{port}/proxy{path}", dict(parse_qsl(query)))
        if answer.status == HTTPStatus.OK:
            return [msgspec.json.decode(line, type=Line) for line in answer.body.splitlines()]
    except (ApiUnreachable, msgspec.MsgspecError) as failure:
        return str(failure)
    return _refusal(decode_failure(answer.status, answer.body), path)


def _refusal(failure: ApiError, path: str) -> str:
    """Why a node did not answer, from the answer of the API server or of the agent."""
    if failure.code == HTTPStatus.FORBIDDEN and failure.reason == "Forbidden":
        return "the API does not let you ask nodes (get nodes/proxy)"
    if failure.code == HTTPStatus.NOT_FOUND and not failure.reason and path == LOG_PAGE:
        return NO_LOG
    return f"the API answers {failure.code}: {failure}"


def local_agents(topology: Topology) -> LocalAgents:
    """The agents of a local cluster.

    Raises: ClusterError without root.
    """
    inventory.check_root()
    nodes = sorted(file.parent.name for file in Path(topology.run, "nodes").glob("*/agent.yaml"))
    return LocalAgents({node: Path(topology.agent_socket(node)) for node in nodes})


def agent_of_file(file: str) -> LocalAgents:
    """The agent of this node, by its configuration.

    Raises: ConfigError.
    """
    from podwire.agent import config as agent_config

    config = agent_config.load(Path(file))
    return LocalAgents({config.node_name: config.agent_socket})


@contextmanager
def agents_of(topology: Topology | None, kubeconfig: str | None, config_file: str | None = None) -> Iterator[Agents]:
    """The agents of the cluster that a command is about.

    Raises: ConfigError, ClusterError.
    """
    if config_file is not None:
        yield agent_of_file(config_file)
    elif topology is not None:
        yield local_agents(topology)
    else:
        with closing(RemoteAgents(kubeconfig)) as agents:
            yield agents
