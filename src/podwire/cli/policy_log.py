"""The command ``podwire policy log``."""

import sys
import time
from collections.abc import Iterator
from typing import Any

import click
import msgspec

from podwire.cli.chosen import local_cluster
from podwire.cli.cluster import name_option
from podwire.cli.policy_agents import Agents, of_cluster
from podwire.policy.happening import Happening, text

_HELP = """Show what policies have dropped, would have dropped in audit, or let through where that is logged.

Each line names both ends and the reason, in the words of `podwire why`. Agents keep the last 1,000 lines of their node,
and write them to their log as well. What is logged, and how much of it, is set by `policy.log` and by the annotation
`podwire.io/log: all|drops|none` of a policy; at most some packets a second of each rule are told.

\b
podwire policy log
podwire policy log --follow
podwire policy log --policy shop/db --last 20
podwire policy log --config /etc/podwire/agent.yaml
"""
_AGAIN_S = 0.3


@click.command(help=_HELP)
@name_option
@click.option("--kubeconfig", metavar="FILE", help="Of a local cluster.  [default: $KUBECONFIG]")
@click.option("--config", "config_file", metavar="FILE", help="On a real node: the agent's configuration.")
@click.option("-f", "--follow", is_flag=True, help="Go on with what comes, until interrupted.")
@click.option("--last", type=click.IntRange(0), default=1000, show_default=True, help="So many lines of each node.")
@click.option("--policy", metavar="POLICY", default="", help="Only of this one: namespace/name, or a cluster policy.")
@click.option("-o", "--output", type=click.Choice(("text", "json")), default="text", show_default=True)
@click.pass_context
def log(  # noqa: PLR0913 - one parameter an option, as click calls it
    context: click.Context,
    name: str,
    kubeconfig: str | None,
    config_file: str | None,
    follow: bool,
    last: int,
    policy: str,
    output: str,
) -> int:
    """Reads and prints."""
    named = context.get_parameter_source("name") is not click.core.ParameterSource.DEFAULT
    layout = None if config_file is not None else local_cluster(name, kubeconfig, named=named)
    agents = of_cluster(layout, config_file)
    seen: dict[str, int] = {}
    failures: dict[str, str] | None = None
    while True:
        for one in sorted(_new(agents, seen, last, failures), key=lambda one: one.at):
            if not policy or policy in one.policies:
                sys.stdout.write(f"{msgspec.json.encode(one).decode() if output == 'json' else text(one)}\n")
        if not follow:
            return 0
        sys.stdout.flush()
        last, failures = 1000, {}
        time.sleep(_AGAIN_S)


def _new(agents: Agents, seen: dict[str, int], last: int, failures: dict[str, str] | None) -> Iterator[Happening]:
    """What each node has to tell beyond what was seen of it; an agent that was started anew begins at 1."""
    for node in agents.sockets:
        own = Agents({node: agents.sockets[node]})
        told = [one for _, one in own.tell(f"/policy/log?after={seen.get(node, 0)}&last={last}", failures)]
        if not told and seen.get(node) and _begun_anew(own, seen[node], failures):
            seen[node] = 0
            told = [one for _, one in own.tell(f"/policy/log?last={last}", failures)]
        yield from _taken(node, told, seen)


def _taken(node: str, told: list[dict[str, Any]], seen: dict[str, int]) -> Iterator[Happening]:
    for one in told:
        seen[node] = one.pop("number")
        yield msgspec.convert(one, Happening)


def _begun_anew(own: Agents, number: int, failures: dict[str, str] | None) -> bool:
    """Whether the last that an agent has to tell is older than what was seen."""
    newest = [one["number"] for _, one in own.tell("/policy/log?last=1", failures)]
    return bool(newest) and newest[-1] < number
