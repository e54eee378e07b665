"""The command ``podwire policy diff``."""

from collections.abc import Iterable, Iterator
from typing import NamedTuple, TypeVar

import click
import msgspec

from podwire.cli.options import kubeconfig_option, name_is_typed, name_option, output_option, recursive_option
from podwire.cli.output import print_json
from podwire.cli.policy_objects import PolicyObjects, objects_of_cluster, objects_of_files
from podwire.cli.request_timeout import request_timeout
from podwire.cluster.world import World
from podwire.errors import ConfigError
from podwire.model.meta import Object, key_of
from podwire.model.policy import ClusterNetworkPolicy, NetworkPolicy
from podwire.policy import annotations
from podwire.policy.check.inactive import skipped_note
from podwire.policy.check.phrases import first_names
from podwire.policy.diff.compare import compare
from podwire.policy.diff.render import data, text

T = TypeVar("T", Object, NetworkPolicy, ClusterNetworkPolicy)

_LIVE = "live"

_HELP = """Show which connections another set of policies would allow or deny.

OLD and NEW are files, folders, `-` (standard input), or the word `live` for the running cluster. For each pair of
workloads, nodes and address ranges of policies, the output shows the ports on which connections were allowed and are
now denied, or the reverse, and which rule of which policy decides before and after. All ports and protocols count, not
only declared ports. Policies in audit mode are not in force.

Pods, Namespaces and Nodes come from each side; a side without pods gets the pods of the other side. The objects of -f
are added to both sides. With `live`, the policies and Namespaces of the other side are added to those of the cluster.

The exit status is 0 without a difference, 1 with a difference, and 2 when the input is wrong.

\b
podwire policy diff live manifests/
podwire policy diff old/ new/ -f workloads.yaml
"""


class Sides(NamedTuple):
    """The arguments OLD and NEW, and --prune."""

    old: str
    new: str
    prune: bool = False


@click.command(help=_HELP)
@click.argument("old", metavar="OLD")
@click.argument("new", metavar="NEW")
@click.option("-f", "--filename", "files", multiple=True, metavar="PATH", help="Objects that both sides have.")
@recursive_option
@name_option
@request_timeout
@kubeconfig_option
@click.option("--prune", is_flag=True, help="With `live`: leave out policies that the other side does not have.")
@click.option(
    "--police-own-node", is_flag=True, help="NetworkPolicies also apply to connections from pods to their own node."
)
@output_option
@click.pass_context
def diff(  # noqa: PLR0913 - one parameter an option, as click calls it
    context: click.Context,
    old: str,
    new: str,
    files: tuple[str, ...],
    recursive: bool,
    name: str,
    kubeconfig: str | None,
    prune: bool,
    police_own_node: bool,
    output: str,
) -> int:
    """Prints the differences."""
    named = name_is_typed(context)
    if old == new:
        raise ConfigError(
            "podwire policy diff", "", f"OLD and NEW are both {old}; expected two different sets of policies"
        )

    def objects(side: str) -> PolicyObjects:
        if side == _LIVE:
            return objects_of_cluster(name, kubeconfig, named=named)
        return objects_of_files((*files, side), recursive=recursive)

    before, after = objects(old), objects(new)
    remarks = list(
        dict.fromkeys(skipped_note(policy) for side in (before, after) for policy in side.details.unenforced)
    )
    worlds = combined(before.world, after.world, Sides(old, new, prune), remarks)
    remarks += in_audit(*worlds, Sides(old, new))
    comparison = compare(*worlds, own_node_egress=not police_own_node)
    lines = before.line, after.line
    if output == "json":
        document = {**data(comparison, lines), "notes": remarks}
        print_json(document)
    else:
        for line in (*remarks, *text(comparison, lines)):
            click.echo(line)
    return 1 if comparison.differences else 0


def combined(old: World, new: World, sides: Sides, remarks: list[str]) -> tuple[World, World]:
    """Both sides, completed with the objects that only the other side has; ``remarks`` gets a line for each completion.

    Raises: ConfigError when neither side has pods.
    """
    if sides.old == _LIVE:
        return old, _applied(old, new, sides, remarks)
    if sides.new == _LIVE:
        return _applied(new, old, sides, remarks), new
    if not old.pods and not new.pods:
        raise ConfigError(
            "podwire policy diff", "", "neither OLD nor NEW has pods or workloads; add them to both with -f FILE"
        )
    if not old.pods:
        remarks.append(f"{sides.old} has no pods: compared with those of {sides.new}")
        return _with_pods_of(old, new), new
    if not new.pods:
        remarks.append(f"{sides.new} has no pods: compared with those of {sides.old}")
        return old, _with_pods_of(new, old)
    return old, new


def in_audit(old: World, new: World, sides: Sides) -> Iterator[str]:
    """A note for each side that has policies in audit, which are not in force there."""
    for world, side in ((old, sides.old), (new, sides.new)):
        every: tuple[NetworkPolicy | ClusterNetworkPolicy, ...] = (*world.policies, *world.cluster_policies)
        names = sorted(key_of(p.metadata) for p in every if annotations.in_audit(p.metadata.annotations))
        if names:
            yield f"in audit and so not in force in {side}: {first_names(names)}"


def _with_pods_of(world: World, other: World) -> World:
    namespaces = _by_name(other.namespaces) | _by_name(world.namespaces)
    return msgspec.structs.replace(world, pods=other.pods, nodes=other.nodes, namespaces=tuple(namespaces.values()))


def _applied(live: World, files: World, sides: Sides, remarks: list[str]) -> World:
    """The cluster with the policies and Namespaces of the files added."""
    source = sides.new if sides.old == _LIVE else sides.old
    remarks.append(f"pods are those of the cluster; policies and Namespaces of {source} count as applied to it")
    policies, cluster_policies = _by_name(files.policies), _by_name(files.cluster_policies)
    remaining_policies = [
        *(name for name in _by_name(live.policies) if name not in policies),
        *(name for name in _by_name(live.cluster_policies) if name not in cluster_policies),
    ]
    if not sides.prune:
        policies = _by_name(live.policies) | policies
        cluster_policies = _by_name(live.cluster_policies) | cluster_policies
    if remaining_policies:
        does = "count as deleted" if sides.prune else "stay (with --prune they count as deleted)"
        remarks.append(
            f"policies of the cluster that are not in {source} {does}: {first_names(sorted(remaining_policies))}"
        )
    return msgspec.structs.replace(
        live,
        namespaces=tuple((_by_name(live.namespaces) | _by_name(files.namespaces)).values()),
        policies=tuple(policies.values()),
        cluster_policies=tuple(cluster_policies.values()),
    )


def _by_name(objects: Iterable[T]) -> dict[str, T]:
    return {key_of(item.metadata): item for item in objects}
