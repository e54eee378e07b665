"""Reads the BGP sessions of nodes from the sockets of their agents."""

from collections.abc import Iterator
from pathlib import Path

import msgspec

from podwire.bgp.sessionstate import SessionState
from podwire.cli.target import running_cluster
from podwire.errors import ClusterError, ConfigError
from podwire.http.fetch import fetch
from podwire.local import inventory


def read_sessions(node: str | None, name: str | None, config_file: str | None) -> Iterator[tuple[str, SessionState]]:
    """The sessions with the name of their node, by node.

    Raises: ConfigError, ClusterError, ProtocolError; also while the sessions are iterated.
    """
    for agent_node, path in _agents(node, name, config_file):
        for line in _page(agent_node, path):
            yield agent_node, msgspec.json.decode(line, type=SessionState)


def _agents(node: str | None, name: str | None, config_file: str | None) -> list[tuple[str, Path]]:
    """The nodes and the sockets of their agents, by length and name of the nodes."""
    if config_file is not None:
        from podwire.agent import config as agent_config

        config = agent_config.load(Path(config_file))
        if node not in (None, config.node_name):
            problem = f"{node!r} is not the node of {config_file}, which is {config.node_name!r}"
            raise ConfigError("NODE", "", problem)
        return [(config.node_name, config.agent_socket)]
    inventory.check_root()
    topology = running_cluster(name)
    nodes = {file.parent.name for file in Path(topology.run, "nodes").glob("*/agent.yaml")}
    if node is not None and node not in nodes:
        known = ", ".join(sorted(nodes)) or "none"
        raise ConfigError("NODE", "", f"{node!r} is not a node of {topology.name} with an agent; the nodes are {known}")
    names = [node] if node is not None else sorted(nodes, key=lambda node_name: (len(node_name), node_name))
    return [(node_name, Path(topology.agent_socket(node_name))) for node_name in names]


def _page(node: str, path: Path) -> Iterator[str]:
    try:
        yield from fetch(path, "/sessions")
    except OSError as failure:
        problem = f"the agent of {node} does not answer on {path} ({failure.strerror or failure})"
        raise ClusterError(problem) from failure
