"""The command ``podwire probe``."""

import shutil
import sys
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

import click

from podwire.cli.interrupt import says_when_interrupted
from podwire.cli.options import SECONDS, running_option
from podwire.cli.target import running_cluster
from podwire.errors import ConfigError
from podwire.local import inventory

if TYPE_CHECKING:
    from podwire.local.probe.result import ProbeResult

_HELP = """Test connectivity with real packets.

Sockets are opened inside the pods' own network namespaces, so what is tested is what the pods' programs get.
Without --port each target is tried on the ports that it declares. --from and --to take, also repeated:

\b
all            every running pod outside kube-system
host           this machine; as a target its address on the fabric
shop/web-0     a pod, or the pods of a Deployment by its name
shop/app=web   a label selector in a namespace; */app=web in all
svc/shop/web   a Service by its DNS name; from the host, by its NodePorts

Exit status 1 when something that should be reached is not, or the reverse. What is not as expected comes
first. More than 100 results are summed up by workload; --show all prints each of them.

\b
podwire probe --from shop/app=web --to svc/shop/catalog -o json
podwire probe --from host --to svc/shop/web
podwire probe --port 5432/TCP --port 53/UDP
podwire probe --show unexpected
"""

SHOW = ("all", "unexpected", "reached", "failed", "denied", "sums")
"""The words of ``--show``, as in :data:`podwire.local.probe.table.CHOICES`."""


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
@click.option("--show", type=click.Choice(SHOW), help="Only these results, or sums.  [default: all, or sums of many]")
@click.option("-o", "--output", type=click.Choice(("table", "json")), default="table", show_default=True)
def probe(  # noqa: PLR0913 - one parameter an option, as click calls it
    name: str | None,
    sources: tuple[str, ...],
    targets: tuple[str, ...],
    ports: tuple[str, ...],
    timeout_s: float,
    show: str | None,
    output: str,
) -> int:
    """Runs the probe and prints the results."""
    import asyncio

    from podwire.local.probe import plan, result, session, table
    from podwire.runtime.limits import raise_open_files

    inventory.check_root()
    wanted = tuple(plan.parse_port(word) for word in ports)
    raise_open_files()
    progress = _Progress()
    topology, words = running_cluster(name), (sources, targets, wanted)
    with says_when_interrupted("a probe leaves nothing behind"):
        results = asyncio.run(session.run(topology, words, timeout_s, progress.begin))
    progress.end()
    if not results:
        raise ConfigError(
            "podwire probe", "", "there is no port to try between these sources and targets; give one with --port"
        )
    if output == "json":
        for one in table.choose(results, show or ""):
            click.echo(result.as_json(one))
    else:
        click.echo(table.render(results, show or "", _width()))
    return 1 if any(one.surprising for one in results) else 0


def _width() -> int:
    """The width of the terminal; 0 where the output goes elsewhere."""
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else 0


class _Progress:
    """A line on standard error that counts the results of a long probe: rewritten in a terminal, else now and then."""

    def __init__(self) -> None:
        self._terminal = sys.stderr.isatty()
        self._every_s = 0.2 if self._terminal else 10.0
        self._next = 0.0
        self._total = self._done = self._unexpected = 0
        self._shown = False

    def begin(self, total: int) -> Callable[["ProbeResult"], None]:
        """Takes the number of attempts; returns what takes each result."""
        self._total = total
        self._next = time.monotonic() + max(1.0, self._every_s)
        return self._count

    def _count(self, one: "ProbeResult") -> None:
        self._done += 1
        self._unexpected += one.surprising
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
