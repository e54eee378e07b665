"""Reads the BGP sessions of nodes from the sockets of their agents."""

from collections.abc import Iterator
from pathlib import Path

import msgspec

from podwire.agent import config as agent_config
from podwire.agent.config import AgentConfig
from podwire.bgp.sessionstate import SessionState
from podwire.cli.target import running_cluster
from podwire.errors import ClusterError, ConfigError
from podwire.http.fetch import fetch
from podwire.local import inventory


def read_sessions(node: str | None, name: str | None, config_file: str | None) -> Iterator[tuple[str, SessionState]]:
    """The sessions with the name of their node, by node.

    Raises: ConfigError, ClusterError, ProtocolError; also while the sessions are iterated.
    """
    for config in _agents(node, name, config_file):
        for line in _page(config):
            yield config.node_name, msgspec.json.decode(line, type=SessionState)


def _agents(node: str | None, name: str | None, config_file: str | None) -> list[AgentConfig]:
    """The configurations of the agents, by length and name of their nodes."""
    if config_file is not None:
        config = agent_config.load(Path(config_file))
        if node not in (None, config.node_name):
            problem = f"{node!r} is not the node of {config_file}, which is {config.node_name!r}"
            raise ConfigError("NODE", "", problem)
        return [config]
    inventory.check_root()
    topology = running_cluster(name)
    config_files = {file.parent.name: file for file in Path(topology.run, "nodes").glob("*/agent.yaml")}
    if node is not None and node not in config_files:
        known = ", ".join(sorted(config_files)) or "none"
        raise ConfigError("NODE", "", f"{node!r} is not a node of {topology.name} with an agent; the nodes are {known}")
    names = [node] if node is not None else sorted(config_files, key=lambda node_name: (len(node_name), node_name))
    return [agent_config.load(config_files[node_name]) for node_name in names]


def _page(config: AgentConfig) -> Iterator[str]:
    path = config.agent_socket
    try:
        yield from fetch(path, "/sessions")
    except OSError as failure:
        problem = f"the agent of {config.node_name} does not answer on {path} ({failure.strerror or failure})"
        raise ClusterError(problem) from failure
