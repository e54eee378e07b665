"""The command ``podwire policy check``."""

import click
import msgspec

from podwire.cli.options import kubeconfig_option, name_is_typed, name_option, output_option, recursive_option
from podwire.cli.output import print_json
from podwire.cli.policy_objects import PolicyObjects, objects_of_cluster, objects_of_files
from podwire.cli.request_timeout import request_timeout
from podwire.model.wording import count
from podwire.policy.check.checks import check as find
from podwire.policy.check.finding import NOTE, SEVERITIES, Finding

_HELP = """Find probable mistakes in NetworkPolicies and ClusterNetworkPolicies.

It finds selectors that match nothing, ports that no pod has, rules without effect, policies that isolate more or less
than they seem to, and rules that are often forgotten, such as the rule for DNS. Each finding names the object, the
field and its line, and says what happens and what to do. docs/policy-check.md lists all findings. With -f the command
reads no cluster: pods come from the workloads in the files, and objects that are not in the files cause no finding.

The annotation `podwire.io/ignore: service-port,no-dns` of a policy hides these findings about it.

The exit status is 0 without errors and warnings, 1 with an error or a warning (with --strict also with a note), and 2
when the files are wrong.

\b
podwire policy check -f manifests/
kubectl kustomize overlays/prod | podwire policy check -f -
podwire policy check --name podwire -o json
"""


@click.command(help=_HELP)
@click.option("-f", "--filename", "files", multiple=True, metavar="PATH", help="Manifest file or folder; - is stdin.")
@recursive_option
@name_option
@request_timeout
@kubeconfig_option
@click.option("--strict", is_flag=True, help="Notes also set exit status 1.")
@output_option
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
    """Prints the findings."""
    named = name_is_typed(context)
    objects = (
        objects_of_files(files, recursive=recursive) if files else objects_of_cluster(name, kubeconfig, named=named)
    )
    findings = located(objects)
    if output == "json":
        print_json(findings)
    else:
        for finding in findings:
            click.echo(str(finding))
        click.echo(summary(objects, findings))
    return 1 if any(counts(finding, strict=strict) for finding in findings) else 0


def counts(finding: Finding, *, strict: bool) -> bool:
    """Whether a finding makes the exit status 1; the finding ``not-checked`` never does."""
    return finding.severity != NOTE or (strict and finding.id != "not-checked")


def located(objects: PolicyObjects) -> tuple[Finding, ...]:
    """The findings about a cluster, with the lines of their fields."""
    findings = find(objects.world, objects.details)
    return tuple(msgspec.structs.replace(f, where=f.where or objects.line(f.kind, f.name, f.field)) for f in findings)


def summary(objects: PolicyObjects, findings: tuple[Finding, ...]) -> str:
    """How many policies and pods were checked, and the number of findings of each severity."""
    world = objects.world
    policies = len(world.policies) + len(world.cluster_policies)
    checked = f"{count(policies, 'policy', 'policies')}, {count(len(world.pods), 'pod')}"
    numbers = (count(sum(finding.severity == severity for finding in findings), severity) for severity in SEVERITIES)
    return f"{checked}: {', '.join(numbers)}"
