"""What the agents of a cluster's nodes tell of policies: those of this machine are asked on their sockets."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from podwire.agent import config as agent_config
from podwire.errors import ClusterError, ConfigError, ProtocolError
from podwire.local import places
from podwire.local.layout import Layout
from podwire.observe.fetch import fetch


class Agents(NamedTuple):
    """The agents that can be asked from here."""

    sockets: Mapping[str, Path]
    """By the names of their nodes."""

    def tell(self, page: str, failures: dict[str, str] | None = None) -> Iterator[tuple[str, dict[str, Any]]]:
        """Node and document of each line of a page; agents that do not answer are put into ``failures``.

        Raises: ClusterError for an agent that does not answer, where there are no ``failures``.
        """
        for node, path in sorted(self.sockets.items(), key=lambda item: (len(item[0]), item[0])):
            try:
                for line in fetch(path, page):
                    yield node, msgspec.json.decode(line, type=dict[str, Any])
            except (OSError, ProtocolError) as failure:
                words = getattr(failure, "strerror", None) or failure
                problem = f"the agent of {node} does not answer on {path} ({words})"
                if failures is None:
                    raise ClusterError(problem) from failure
                failures[node] = problem


def of_local(layout: Layout) -> Agents:
    """The agents of a local cluster.

    Raises: ClusterError where this is not root.
    """
    places.check_root()
    files = sorted(Path(layout.run, "nodes").glob("*/agent.yaml"))
    configs = (agent_config.load(file) for file in files)
    return Agents({config.node_name: config.agent_socket for config in configs})


def of_file(file: str) -> Agents:
    """The agent of this node, by its configuration.

    Raises: ConfigError.
    """
    config = agent_config.load(Path(file))
    return Agents({config.node_name: config.agent_socket})


def of_cluster(layout: Layout | None, config_file: str | None) -> Agents:
    """Those that a command is about.

    Raises: ConfigError where they cannot be asked from here; ClusterError.
    """
    if config_file is not None:
        return of_file(config_file)
    if layout is None:
        problem = "the agents of this cluster cannot be asked from here; on a node of it, take --config FILE"
        raise ConfigError("podwire policy", "", f"{problem} (the agent's configuration)")
    return of_local(layout)
