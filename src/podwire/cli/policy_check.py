"""The command ``podwire policy check``."""

import click
import msgspec

from podwire.cli.api import request_timeout
from podwire.cli.cluster import name_option, recursive_option
from podwire.cli.policy_objects import PolicyObjects, objects_of_cluster, objects_of_files
from podwire.policy.check.checks import check as find
from podwire.policy.check.finding import NOTE, SEVERITIES, Finding
from podwire.policy.check.phrases import count

_HELP = """Find what is probably not meant in NetworkPolicies and ClusterNetworkPolicies.

Selectors that match nothing, ports that no pod has, rules that have no effect, policies that isolate more or less than
they seem to, and what is usually forgotten. Each finding names the object, the field and its line, says what happens
and what to do. docs/policy-check.md lists all of them. With -f nothing is asked of a cluster: pods come from the
workloads in the files, and what the files do not have is not held against a policy.

An annotation `podwire.io/ignore: service-port,no-dns` of a policy takes out these findings about it.

Exit status 0 when there is no error and no warning (with --strict: no note either), 1 when there is one, 2 when the
files are wrong.

\b
podwire policy check -f manifests/
kubectl kustomize overlays/prod | podwire policy check -f -
podwire policy check --name podwire -o json
"""


@click.command(help=_HELP)
@click.option("-f", "--filename", "files", multiple=True, metavar="PATH", help="A file or folder; - is stdin.")
@recursive_option
@name_option
@request_timeout
@click.option("--kubeconfig", metavar="FILE", help="A cluster that is not a local one.  [default: $KUBECONFIG]")
@click.option("--strict", is_flag=True, help="Notes count too.")
@click.option("-o", "--output", type=click.Choice(("text", "json")), default="text", show_default=True)
@click.pass_context
def check(  # noqa: PLR0913 - one parameter an option, as click calls it
    context: click.Context,
    files: tuple[str, ...],
    recursive: bool,
    name: str,
    kubeconfig: str | None,
    strict: bool,
    output: str,
) -> int:
    """Checks and prints."""
    named = context.get_parameter_source("name") is not click.core.ParameterSource.DEFAULT
    objects = (
        objects_of_files(files, recursive=recursive) if files else objects_of_cluster(name, kubeconfig, named=named)
    )
    found = located(objects)
    if output == "json":
        click.echo(msgspec.json.format(msgspec.json.encode(found), indent=2).decode())
    else:
        for finding in found:
            click.echo(str(finding))
        click.echo(summary(objects, found))
    return 1 if any(counts(finding, strict=strict) for finding in found) else 0


def counts(finding: Finding, *, strict: bool) -> bool:
    """Whether a finding makes the exit status 1; what was not checked never does."""
    return finding.severity != NOTE or (strict and finding.id != "not-checked")


def located(objects: PolicyObjects) -> tuple[Finding, ...]:
    """The findings about a cluster, with the lines of their fields."""
    found = find(objects.world, objects.details)
    lines = (each.where or objects.line(each.kind, each.name, each.field) for each in found)
    return tuple(msgspec.structs.replace(each, where=line) for each, line in zip(found, lines, strict=True))


def summary(objects: PolicyObjects, found: tuple[Finding, ...]) -> str:
    """How much was looked at, and how much was found."""
    world = objects.world
    policies = len(world.policies) + len(world.cluster_policies)
    looked = (
        f"{count(policies, 'policy') if policies == 1 else f'{policies} policies'}, {count(len(world.pods), 'pod')}"
    )
    numbers = (count(sum(each.severity == grave for each in found), grave) for grave in SEVERITIES)
    return f"{looked}: {', '.join(numbers)}"
