"""The commands ``podwire policy list`` and ``podwire policy counters``."""

from collections.abc import Mapping, Sequence
from typing import Any

import click

from podwire.cli.options import agent_config_option, kubeconfig_option, name_is_typed, name_option, output_option
from podwire.cli.output import print_json
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
"""The number of policies that a cell names."""
_SHOWN = 10
"""The number of messages about policies that are not in force."""
_LIST_HELP = """Show the policies of a cluster: what they select, where they are in force, and what they drop.

NODES counts the Ready nodes that enforce policies: on how many of them the current version of the policy is in force.
IN-FORCE-FOR is the time since it is in force on all of them; the annotation `podwire.io/enforced` of the policy has the
same. DROPPED counts packets that the policy dropped, AUDITED packets that it would have dropped outside of audit.
Counts of a local cluster are read from the agents on this machine; other counts are read through the API server, from
agents with a health port. Nodes that do not answer are named, and 17+ is the count of the nodes that answered.

\b
podwire policy list
podwire policy list -n shop -o json
podwire policy list --kubeconfig FILE
"""
_COUNTERS_HELP = """Show how many packets each rule dropped, allowed, or would have dropped outside of audit.

POLICY is `namespace/name`, or the name of a cluster policy; without it, all policies are shown. A line without a rule
counts packets that no rule of these policies allows. Of an allowed connection, every packet from the client counts.

\b
podwire policy counters
podwire policy counters shop/db
podwire policy counters --config /etc/podwire/agent.yaml
"""


@click.command("list", help=_LIST_HELP)
@name_option
@request_timeout
@kubeconfig_option
@click.option("-n", "--namespace", metavar="NAME", default="", help="Show only the NetworkPolicies of this namespace.")
@output_option
@click.pass_context
def list_policies(context: click.Context, name: str, kubeconfig: str | None, namespace: str, output: str) -> int:
    """Prints the policies."""
    named = name_is_typed(context)
    topology = local_cluster(name, kubeconfig, named=named)
    world = objects_of_cluster(name, kubeconfig, named=named).world
    counted, problems = None, list[str]()
    try:
        with agents_of(topology, kubeconfig) as agents:
            counted, problems = packets(agents)
    except (ClusterError, ApiError, ApiUnreachable) as failure:
        problems = [str(failure)]
    for text in problems:
        click.echo(f"podwire: {text}", err=True)
    rows = [row for row in policy_rows(world, SystemClock().now(), counted) if _in(row, namespace)]
    if output == "json":
        print_json(rows)
        return 0
    click.echo(columns([HEAD, *(row.cells() for row in rows)]))
    missing = [f"{row.namespace}/{row.name} is not in force on {nodes}" for row in rows for nodes in row.missing]
    for line in missing[:_SHOWN]:
        click.echo(line.removeprefix("/"))
    if len(missing) > _SHOWN:
        click.echo(f"and {len(missing) - _SHOWN} more")
    return 0


def _in(row: PolicyRow, namespace: str) -> bool:
    return not namespace or row.namespace == namespace


def packets(agents: Agents) -> tuple[Packets | None, list[str]]:
    """The counts of the nodes that answer (None where no node answers), and a message for each node that does not.

    Raises: ApiError, ApiUnreachable when no agent can be reached.
    """
    failures: dict[str, str] = {}
    counts: dict[tuple[str, str], int] = {}
    for _, counter in ask_all_nodes(agents, COUNTERS_PAGE, failures):
        for policy in counter["policies"]:
            key = (policy, counter["verdict"])
            counts[key] = counts.get(key, 0) + counter["packets"]
    nodes = len(agents.nodes)
    if not nodes:
        return None, [f"no node says that its agent enforces policies (annotation {NODE_POLICY})"]
    return Packets(counts, not_asked=len(failures)) if len(failures) < nodes else None, complaints(failures)


@click.command(help=_COUNTERS_HELP)
@click.argument("policy", metavar="[POLICY]", default="")
@name_option
@request_timeout
@kubeconfig_option
@agent_config_option
@output_option
@click.pass_context
def counters(  # noqa: PLR0913 - one parameter an option, as click calls it
    context: click.Context, policy: str, name: str, kubeconfig: str | None, config_file: str | None, output: str
) -> int:
    """Prints the counters."""
    named = name_is_typed(context)
    topology = None if config_file is not None else local_cluster(name, kubeconfig, named=named)
    failures: dict[str, str] = {}
    with agents_of(topology, kubeconfig, config_file) as agents:
        pages = list(ask_all_nodes(agents, COUNTERS_PAGE, failures))
    rules = [{"node": node, **counter} for node, counter in pages if not policy or policy in counter["policies"]]
    rules.sort(key=_order)
    for text in complaints(failures):
        click.echo(f"podwire: {text}", err=True)
    status = 1 if failures else 0
    if output == "json":
        print_json(rules)
        return status
    if policy and not rules and not failures:
        hint = "" if "/" in policy else "; name a NetworkPolicy as NAMESPACE/NAME"
        raise ConfigError("POLICY", "", f"no rule of {policy!r} has counted a packet on these nodes{hint}")
    head = ("NODE", "POLICY", "DIRECTION", "RULE", "VERDICT", "PACKETS", "BYTES")
    click.echo(columns([head, *map(_cells, rules)]))
    return status


def _order(counter: Mapping[str, Any]) -> tuple[Any, ...]:
    rule = -1 if counter["rule"] is None else counter["rule"]
    return counter["policies"], counter["direction"], rule, counter["verdict"], len(counter["node"]), counter["node"]


def _cells(counter: Mapping[str, Any]) -> tuple[str, ...]:
    rule = NOTHING if counter["rule"] is None else str(counter["rule"])
    return (
        counter["node"],
        shorten(counter["policies"]),
        counter["direction"],
        rule,
        counter["verdict"],
        str(counter["packets"]),
        str(counter["bytes"]),
    )


def shorten(policies: Sequence[str]) -> str:
    """The first few policies, which may be hundreds; JSON has all of them."""
    more = f",... ({len(policies)})" if len(policies) > _NAMED else ""
    return ",".join(policies[:_NAMED]) + more or "(none applies)"
