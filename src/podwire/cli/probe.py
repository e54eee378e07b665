"""The command ``podwire probe``."""

import shutil
import sys
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

import click

from podwire.cli.interrupt import message_when_interrupted
from podwire.cli.options import SECONDS, running_option
from podwire.cli.target import running_cluster
from podwire.errors import ConfigError
from podwire.local import inventory

if TYPE_CHECKING:
    from podwire.local.probe.result import ProbeResult

_HELP = """Test connectivity with real packets.

The command makes connections from inside the network namespaces of pods, and compares the results with what the objects
of the cluster, including policies, lead to expect. Without --port it tries each target on the ports that the target
declares. --from and --to can be repeated and take:

\b
all            every running pod outside kube-system
host           this machine; as a target its address on the fabric
shop/web-0     a pod, or the pods of a Deployment by its name
shop/app=web   a label selector in a namespace; */app=web in all
svc/shop/web   a Service by its DNS name; from the host, by its NodePorts

The exit status is 1 when a result is not as expected. Unexpected results come first. More than 100 results are summed
up by workload; --show all prints each result. For connections between nodes that fail unexpectedly, the output has
the route of their packets; --routes shows all routes.

\b
podwire probe --from shop/app=web --to svc/shop/catalog -o json
podwire probe --from host --to svc/shop/web
podwire probe --port 5432/TCP --port 53/UDP
podwire probe --show unexpected
podwire probe --from shop/app=web --to svc/shop/catalog --routes
"""

SHOW = ("all", "unexpected", "reached", "failed", "denied", "sums")
"""The values of ``--show``, as in :data:`podwire.local.probe.table.CHOICES`."""


@click.command(help=_HELP)
@running_option
@click.option(
    "--from",
    "sources",
    multiple=True,
    default=("all",),
    show_default=True,
    metavar="WORD",
    help="Where connections start.",
)
@click.option(
    "--to", "targets", multiple=True, default=("all",), show_default=True, metavar="WORD", help="Where connections go."
)
@click.option("--port", "ports", multiple=True, metavar="80/TCP", help="Port to try instead of the declared ports.")
@click.option(
    "--timeout",
    "timeout_s",
    type=SECONDS,
    default=1.0,
    show_default=True,
    metavar="SECONDS",
    help="How long to wait for one connection.",
)
@click.option(
    "--show", type=click.Choice(SHOW), help="Only these results, or sums.  [default: all, or sums of more than 100]"
)
@click.option(
    "--routes",
    "all_routes",
    is_flag=True,
    help="Also show how packets travel between the nodes: backend, route, device, MTU, tunnel.",
)
@click.option("-o", "--output", type=click.Choice(("table", "json")), default="table", show_default=True)
def probe(  # noqa: PLR0913 - one parameter an option, as click calls it
    name: str | None,
    sources: tuple[str, ...],
    targets: tuple[str, ...],
    ports: tuple[str, ...],
    timeout_s: float,
    show: str | None,
    all_routes: bool,
    output: str,
) -> int:
    """Runs the probe and prints the results."""
    import asyncio

    from podwire.local.probe import plan, result, session, table
    from podwire.runtime.limits import raise_open_files

    inventory.check_root()
    typed_ports = tuple(plan.parse_port(port) for port in ports)
    raise_open_files()
    progress = _Progress()
    topology = running_cluster(name)
    arguments = sources, targets, typed_ports
    with message_when_interrupted("a probe leaves nothing behind"):
        outcome = asyncio.run(session.run(topology, arguments, timeout_s, progress.begin, all_routes=all_routes))
    progress.end()
    results = outcome.results
    if not results:
        raise ConfigError("podwire probe", "", "these sources and targets have no port to try; give a port with --port")
    if output == "json":
        for attempt in table.choose(results, show or ""):
            click.echo(result.as_json(attempt))
        if all_routes and outcome.routes is not None and outcome.routes.by_pair:
            click.echo(outcome.routes.as_json())
    else:
        click.echo(
            table.render(results, show or "", _width(), outcome.routes.text() if outcome.routes is not None else "")
        )
    return 1 if any(attempt.surprising for attempt in results) else 0


def _width() -> int:
    """The width of the terminal; 0 when the output is not a terminal."""
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else 0


class _Progress:
    """A line on standard error that counts the results of a long probe: rewritten in a terminal, else every 10 s."""

    def __init__(self) -> None:
        self._terminal = sys.stderr.isatty()
        self._every_s = 0.2 if self._terminal else 10.0
        self._next = 0.0
        self._total = self._done = self._unexpected = 0
        self._shown = False

    def begin(self, total: int) -> Callable[["ProbeResult"], None]:
        """Takes the number of attempts; returns the function that takes each result."""
        self._total = total
        self._next = time.monotonic() + max(1.0, self._every_s)
        return self._count

    def _count(self, result: "ProbeResult") -> None:
        self._done += 1
        self._unexpected += result.surprising
        if time.monotonic() >= self._next and self._done < self._total:
            self._next = time.monotonic() + self._every_s
            self._show()

    def _show(self) -> None:
        self._shown = True
        line = f"{self._done} of {self._total} connections tried, {self._unexpected} not as expected"
        if self._terminal:
            click.echo(f"\r{line}", err=True, nl=False)
        else:
            click.echo(line, err=True)

    def end(self) -> None:
        """Removes the line from a terminal."""
        if self._shown and self._terminal:
            click.echo("\r\x1b[K", err=True, nl=False)
