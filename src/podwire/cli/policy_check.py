"""The command ``podwire policy check``."""

import click
import msgspec

from podwire.cli.options import name_option, recursive_option
from podwire.cli.policy_objects import PolicyObjects, objects_of_cluster, objects_of_files
from podwire.cli.request_timeout import request_timeout
from podwire.model.wording import count
from podwire.policy.check.checks import check as find
from podwire.policy.check.finding import NOTE, SEVERITIES, Finding

_HELP = """Find probable mistakes in NetworkPolicies and ClusterNetworkPolicies.

It finds selectors that match nothing, ports that no pod has, rules without effect, policies that isolate more or less
than they seem to, and rules that are often forgotten, such as the rule for DNS. Each finding names the object, the
field and its line, and says what happens and what to do. docs/policy-check.md lists all findings. With -f no cluster is
asked: pods come from the workloads in the files, and a policy is not blamed for objects that the files leave out.

The annotation `podwire.io/ignore: service-port,no-dns` of a policy hides these findings about it.

Exit status 0 without errors and warnings (with --strict: without notes too), 1 with one, 2 when the files are wrong.

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
    """Whether a finding makes the exit status 1; the finding ``not-checked`` never does."""
    return finding.severity != NOTE or (strict and finding.id != "not-checked")


def located(objects: PolicyObjects) -> tuple[Finding, ...]:
    """The findings about a cluster, with the lines of their fields."""
    found = find(objects.world, objects.details)
    lines = (each.where or objects.line(each.kind, each.name, each.field) for each in found)
    return tuple(msgspec.structs.replace(each, where=line) for each, line in zip(found, lines, strict=True))


def summary(objects: PolicyObjects, found: tuple[Finding, ...]) -> str:
    """How many policies and pods were checked, and the number of findings of each severity."""
    world = objects.world
    policies = len(world.policies) + len(world.cluster_policies)
    looked = f"{count(policies, 'policy', 'policies')}, {count(len(world.pods), 'pod')}"
    numbers = (count(sum(each.severity == grave for each in found), grave) for grave in SEVERITIES)
    return f"{looked}: {', '.join(numbers)}"
