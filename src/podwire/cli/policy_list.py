"""The commands ``podwire policy list`` and ``podwire policy counters``."""

from collections.abc import Mapping, Sequence
from typing import Any

import click
import msgspec

from podwire.cli.options import name_option
from podwire.cli.policy_agents import Agents, agents_of, ask_all_nodes
from podwire.cli.policy_objects import objects_of_cluster as objects_of_cluster
from podwire.cli.request_timeout import request_timeout
from podwire.cli.target import local_cluster
from podwire.cluster.names import NODE_POLICY
from podwire.errors import ApiError, ApiUnreachable, ClusterError, ConfigError
from podwire.model.wording import columns
from podwire.policy.status.nodes import COUNTERS_PAGE, complaints
from podwire.policy.status.overview import HEAD, NOTHING, Packets, PolicyRow, policy_rows
from podwire.runtime.clock import SystemClock

_NAMED = 3
"""Policies that are named in one cell."""
_SHOWN = 10
"""Policies for which the nodes without them are shown."""
_LIST_HELP = """Show the policies of a cluster: what they select, where they are in force, and what they drop.

NODES counts the Ready nodes that enforce policies: on how many of them the current version of the policy is in force.
IN-FORCE-FOR is the time since it is in force on all of them; the annotation `podwire.io/enforced` of the policy has the
same. DROPPED counts packets that the policy dropped, AUDITED packets that it would have dropped outside of audit.
Agents of a local cluster are asked on this machine; other agents are asked through the API server, if they have a
health port. Nodes that do not answer are named, and 17+ is the count of the nodes that answered.

\b
podwire policy list
podwire policy list -n shop -o json
podwire policy list --kubeconfig FILE
"""
_COUNTERS_HELP = """Show how many packets each rule dropped, allowed, or would have dropped outside of audit.

POLICY is `namespace/name`, or the name of a cluster policy; without it all are shown. A line without a rule counts
packets that no rule of these policies allows. Of an allowed connection, every packet from the client counts.

\b
podwire policy counters
podwire policy counters shop/db
podwire policy counters --config /etc/podwire/agent.yaml
"""


@click.command("list", help=_LIST_HELP)
@name_option
@request_timeout
@click.option("--kubeconfig", metavar="FILE", help="A cluster that is not a local one.  [default: $KUBECONFIG]")
@click.option("-n", "--namespace", metavar="NAME", default="", help="Only its NetworkPolicies.")
@click.option("-o", "--output", type=click.Choice(("text", "json")), default="text", show_default=True)
@click.pass_context
def list_policies(context: click.Context, name: str, kubeconfig: str | None, namespace: str, output: str) -> int:
    """Lists and prints."""
    named = context.get_parameter_source("name") is not click.core.ParameterSource.DEFAULT
    topology = local_cluster(name, kubeconfig, named=named)
    world = objects_of_cluster(name, kubeconfig, named=named).world
    told, problems = None, list[str]()
    try:
        with agents_of(topology, kubeconfig) as agents:
            told, problems = packets(agents)
    except (ClusterError, ApiError, ApiUnreachable) as failure:
        problems = [str(failure)]
    for text in problems:
        click.echo(f"podwire: {text}", err=True)
    found = [each for each in policy_rows(world, SystemClock().now(), told) if _in(each, namespace)]
    if output == "json":
        click.echo(msgspec.json.format(msgspec.json.encode(found), indent=2).decode())
        return 0
    click.echo(columns([HEAD, *(each.cells() for each in found)]))
    missing = [f"{each.namespace}/{each.name} is not in force on {text}" for each in found for text in each.missing]
    for line in missing[:_SHOWN]:
        click.echo(line.removeprefix("/"))
    if len(missing) > _SHOWN:
        click.echo(f"and {len(missing) - _SHOWN} more")
    return 0


def _in(line: PolicyRow, namespace: str) -> bool:
    return not namespace or line.namespace == namespace


def packets(agents: Agents) -> tuple[Packets | None, list[str]]:
    """The counts of the nodes that answer (None where no node answers), and a message for each node that does not.

    Raises: ApiError, ApiUnreachable when nobody can be asked.
    """
    failures: dict[str, str] = {}
    found: dict[tuple[str, str], int] = {}
    for _, one in ask_all_nodes(agents, COUNTERS_PAGE, failures):
        for policy in one["policies"]:
            key = (policy, one["verdict"])
            found[key] = found.get(key, 0) + one["packets"]
    nodes = len(agents.nodes)
    if not nodes:
        return None, [f"no node says that its agent enforces policies (annotation {NODE_POLICY})"]
    told = Packets(found, not_asked=len(failures)) if len(failures) < nodes else None
    return told, complaints(failures)


@click.command(help=_COUNTERS_HELP)
@click.argument("policy", metavar="[POLICY]", default="")
@name_option
@request_timeout
@click.option("--kubeconfig", metavar="FILE", help="A cluster that is not a local one.  [default: $KUBECONFIG]")
@click.option("--config", "config_file", metavar="FILE", help="On a real node: the agent's configuration.")
@click.option("-o", "--output", type=click.Choice(("text", "json")), default="text", show_default=True)
@click.pass_context
def counters(  # noqa: PLR0913 - one parameter an option, as click calls it
    context: click.Context, policy: str, name: str, kubeconfig: str | None, config_file: str | None, output: str
) -> int:
    """Shows counters."""
    named = context.get_parameter_source("name") is not click.core.ParameterSource.DEFAULT
    topology = None if config_file is not None else local_cluster(name, kubeconfig, named=named)
    failures: dict[str, str] = {}
    with agents_of(topology, kubeconfig, config_file) as agents:
        told = list(ask_all_nodes(agents, COUNTERS_PAGE, failures))
    found = [{"node": node, **one} for node, one in told if not policy or policy in one["policies"]]
    found.sort(key=_order)
    for text in complaints(failures):
        click.echo(f"podwire: {text}", err=True)
    status = 1 if failures else 0
    if output == "json":
        click.echo(msgspec.json.format(msgspec.json.encode(found), indent=2).decode())
        return status
    if policy and not found and not failures:
        raise ConfigError("POLICY", "", f"no rule of {policy!r} has counted a packet on these nodes")
    head = ("NODE", "POLICY", "DIRECTION", "RULE", "VERDICT", "PACKETS", "BYTES")
    click.echo(columns([head, *map(_cells, found)]))
    return status


def _order(one: Mapping[str, Any]) -> tuple[Any, ...]:
    rule = -1 if one["rule"] is None else one["rule"]
    return one["policies"], one["direction"], rule, one["verdict"], len(one["node"]), one["node"]


def _cells(one: Mapping[str, Any]) -> tuple[str, ...]:
    rule = NOTHING if one["rule"] is None else str(one["rule"])
    return (
        one["node"],
        shorten(one["policies"]),
        one["direction"],
        rule,
        one["verdict"],
        str(one["packets"]),
        str(one["bytes"]),
    )


def shorten(policies: Sequence[str]) -> str:
    """The first few policies, which may be hundreds; JSON has all of them."""
    more = f",... ({len(policies)})" if len(policies) > _NAMED else ""
    return ",".join(policies[:_NAMED]) + more or "(none applies)"
