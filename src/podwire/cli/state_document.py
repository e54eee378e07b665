"""Prints the output of ``podwire state``: the document of an agent, of the fabric or of a file, or its differences."""

import sys
import time
from collections.abc import Iterable, Iterator
from itertools import chain
from pathlib import Path
from typing import NamedTuple

import msgspec

from podwire.cli.target import running_cluster
from podwire.errors import ClusterError, ConfigError
from podwire.http.fetch import fetch
from podwire.local import inventory
from podwire.local.fabric import share as fabric
from podwire.local.lab.record import read_conditions
from podwire.local.topology import Topology
from podwire.state import drift, share
from podwire.state.drift import Difference
from podwire.state.share import Share

_SECOND_LOOK_S = 0.3
"""Longer than an agent takes to write a change of its plan."""


class StateRequest(NamedTuple):
    """The arguments and options, as typed."""

    node: str
    name: str | None
    parts: tuple[str, ...]
    saved: str | None
    config_file: str | None


def print_state(request: StateRequest, output: str, *, diff: bool) -> int:
    """Prints the document, or the differences; returns 0, or 1 where there are differences.

    Raises: ConfigError, ClusterError, KernelError, ProtocolError.
    """
    if diff:
        return _show_differences(request.node, _differences(request), output)
    _, lines = _open(request)
    if output == "text" and request.saved is None:
        _write(lines)
        return 0
    _show_shares(_shares(request, lines), output)
    return 0


def _shares(request: StateRequest, lines: Iterable[str]) -> list[Share]:
    stated = share.parse(lines, request.saved or request.node)
    return [entry for entry in stated if not request.parts or entry.part in request.parts]


def _differences(request: StateRequest) -> Iterator[Difference]:
    """The differences; of those to an agent at work, the ones that a second comparison shows again.

    The agent's document and the kernel are read one after the other, so a change of the cluster between the two, and
    one that is planned and not written yet, look like differences.
    """
    from podwire.kernel import comparison

    netns, lines = _open(request)
    differences = comparison.compare(_shares(request, lines), netns)
    if request.saved is not None:
        yield from differences
        return
    first = list(differences)
    if first:
        time.sleep(_SECOND_LOOK_S)
        netns, lines = _open(request)
        again = set(comparison.compare(_shares(request, lines), netns))
        yield from (difference for difference in first if difference in again)


def _open(request: StateRequest) -> tuple[Path | None, Iterator[str]]:
    """The node's namespace (None: that of this process) and the lines of the document.

    Raises: ConfigError, ClusterError; also while the lines are iterated.
    """
    node, saved = request.node, request.saved
    if request.config_file is not None:
        from podwire.agent import config as agent_config

        config = agent_config.load(Path(request.config_file))
        if node != config.node_name:
            problem = f"{node!r} is not the node of {request.config_file}, which is {config.node_name!r}"
            raise ConfigError("NODE", "", problem)
        return None, _of_file(saved) if saved else _of_agent(node, config.agent_socket, request.parts)
    inventory.check_root()
    topology = running_cluster(request.name)
    own = fabric.read_share(topology, node, read_conditions(topology))
    inside = None if node == fabric.HOST else Path(topology.netns(node))
    return inside, _of_file(saved) if saved else _of_local_cluster(own, topology, request)


def _of_local_cluster(own: Share, topology: Topology, request: StateRequest) -> Iterator[str]:
    """The fabric's share, then the shares of the agent if one runs there."""
    node, parts = request.node, request.parts
    if not parts or fabric.PART in parts:
        yield from (f"{line}\n" for line in (*own.lines(), ""))
    agent_parts = tuple(part for part in parts if part != fabric.PART)
    if Path(topology.node_run(node), "agent.yaml").exists() and (agent_parts or not parts):
        yield from _of_agent(node, Path(topology.agent_socket(node)), agent_parts)
    else:
        yield f"{share.END}\n"


def _of_agent(node: str, path: Path, parts: tuple[str, ...]) -> Iterator[str]:
    """The lines that the agent sends.

    Raises: ClusterError when it does not answer.
    """
    try:
        yield from fetch(path, "/state?" + "&".join(f"part={part}" for part in parts))
    except OSError as failure:
        problem = f"the agent of {node} does not answer on {path} ({failure.strerror or failure})"
        raise ClusterError(f"{problem}; use --saved FILE to compare with an earlier output") from failure


def _of_file(file: str) -> Iterator[str]:
    """The lines of a file.

    Raises: ConfigError when it cannot be read.
    """
    try:
        with sys.stdin if file == "-" else Path(file).open(encoding="utf-8") as text:
            yield from text
    except (OSError, UnicodeDecodeError) as failure:
        raise ConfigError("--saved", file, str(failure)) from failure


def _show_differences(node: str, differences: Iterator[Difference], output: str) -> int:
    first = next(differences, None)
    if first is None:
        return 0
    every = chain((first,), differences)
    if output == "json":
        _write_json(difference._asdict() for difference in every)
    else:
        _write((f"--- {node}: the kernel holds\n", f"+++ {node}: it should hold\n"))
        _write(f"{line}\n" for line in drift.render(every))
    return 1


def _show_shares(shares: Iterable[Share], output: str) -> None:
    if output == "text":
        _write(f"{line}\n" for line in share.render(shares))
    else:
        _write_json({"where": where, "text": text} for stated in shares for where, text in stated.located())


def _write_json(documents: Iterable[dict[str, str]]) -> None:
    _write(f"{msgspec.json.encode(document).decode()}\n" for document in documents)


def _write(lines: Iterable[str]) -> None:
    sys.stdout.writelines(lines)
