"""The command ``podwire upgrade verify``."""

from typing import Any

import click

from podwire.cli.options import kubeconfig_option, output_option
from podwire.cli.upgrade_backup import image_option, namespace_option


@click.command()
@kubeconfig_option
@namespace_option
@image_option
@output_option
@click.option("--node", "nodes", metavar="NAME", multiple=True, help="Only from these nodes.")
@click.option("--skip", "skipped", metavar="KIND", multiple=True, help="Leave a kind of connection out.")
@click.option(
    "--egress", "egress", metavar="ADDRESS:PORT", multiple=True,
    help="A TCP port outside of the cluster.  [default: the API server]",
)  # fmt: skip
@click.option(
    "--observer", "observers", metavar="ADDRESS:PORT", multiple=True,
    help="A machine outside on which `podwire upgrade node serve` tells the source address that it sees.",
)  # fmt: skip
@click.option(
    "--source", "sources", metavar="ADDRESS", multiple=True,
    help="A source address that observers outside may see.  [default: the addresses of the node]",
)  # fmt: skip
def verify(
    kubeconfig: str | None,
    output: str,
    nodes: tuple[str, ...],
    skipped: tuple[str, ...],
    egress: tuple[str, ...],
    **options: Any,
) -> int:
    """Test connections of every kind from a temporary pod on every node.

    The pods connect to pods, Services, node ports, DNS, a pod that a NetworkPolicy isolates, and an address outside,
    and check the source address with which they leave. The exit status is 1 when a connection is not as expected.
    """
    import asyncio

    from podwire.cli.api import client_of
    from podwire.cli.output import print_json
    from podwire.errors import ConfigError
    from podwire.upgrade.verify import checks
    from podwire.upgrade.verify.run import VerifyOptions, run

    if unknown := [kind for kind in skipped if kind not in checks.KINDS]:
        raise ConfigError("--skip", "", f"expected one of {', '.join(checks.KINDS)}, got {unknown[0]!r}")
    kinds = tuple(kind for kind in checks.KINDS if kind not in skipped)
    wanted_options = VerifyOptions(
        nodes=nodes,
        kinds=kinds,
        egress=egress,
        observers=options["observers"],
        sources=options["sources"],
        namespace=options["namespace"],
        image=options["node_image"],
    )
    results = asyncio.run(run(client_of(kubeconfig), wanted_options))
    if output == "json":
        print_json(results)
    else:
        click.echo(checks.table(results, kinds), nl=False)
        for entry in results:
            for problem in entry.problems():
                click.echo(problem)
    return 0 if all(entry.passed for entry in results) else 1
