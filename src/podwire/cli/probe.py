"""The command ``podwire probe``."""

import asyncio

import click

from podwire.cli.options import SECONDS, running_option
from podwire.cli.target import running_cluster
from podwire.errors import ConfigError
from podwire.local import inventory
from podwire.local.probe import plan, result

_HELP = """Test connectivity with real packets.

Sockets are opened inside the pods' own network namespaces, so what is tested is what the pods' programs get.
Without --port each target is tried on the ports that it declares. --from and --to take, also repeated:

\b
all            every running pod outside kube-system
host           this machine; as a target its address on the fabric
shop/web-0     a pod, or the pods of a Deployment by its name
shop/app=web   a label selector in a namespace; */app=web in all
svc/shop/web   a Service by its DNS name; from the host, by its NodePorts

Exit status 1 when something that should be reached is not, or the reverse.

\b
podwire probe --from shop/app=web --to svc/shop/catalog -o json
podwire probe --from host --to svc/shop/web
podwire probe --port 5432/TCP --port 53/UDP
"""


@click.command(help=_HELP)
@running_option
@click.option("--from", "sources", multiple=True, default=("all",), show_default=True, metavar="WORD", help="Sources.")
@click.option("--to", "targets", multiple=True, default=("all",), show_default=True, metavar="WORD", help="Targets.")
@click.option("--port", "ports", multiple=True, metavar="80/TCP", help="Ports to try instead of the declared ones.")
@click.option(
    "--timeout",
    "timeout_s",
    type=SECONDS,
    default=1.0,
    show_default=True,
    metavar="SECONDS",
    help="For one connection.",
)
@click.option("-o", "--output", type=click.Choice(("table", "json")), default="table", show_default=True)
def probe(
    name: str | None,
    sources: tuple[str, ...],
    targets: tuple[str, ...],
    ports: tuple[str, ...],
    timeout_s: float,
    output: str,
) -> int:
    """Runs the probe and prints the results."""
    from podwire.local.probe import session

    inventory.check_root()
    wanted = tuple(plan.parse_port(word) for word in ports)
    results = asyncio.run(session.run(running_cluster(name), (sources, targets, wanted), timeout_s))
    if not results:
        raise ConfigError(
            "podwire probe", "", "there is no port to try between these sources and targets; give one with --port"
        )
    if output == "json":
        for one in results:
            click.echo(result.as_json(one))
    else:
        click.echo(result.as_table(results))
        click.echo("\n" + result.summary(results))
    return 1 if any(one.surprising for one in results) else 0
