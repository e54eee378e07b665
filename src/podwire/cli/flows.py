"""The commands ``podwire flows``."""

import sys
from collections.abc import Mapping

import click

from podwire.cli.lazy import LazyGroup

COMMANDS: Mapping[str, tuple[str, str]] = {
    "serve": ("podwire.cli.flows:serve", "Answer numbered messages on the ports of flows."),
    "send": ("podwire.cli.flows:send", "Send numbered messages to targets and count the answers."),
    "record": ("podwire.cli.flows:record", "Print each change of this node's kernel with its time."),
}


@click.group(cls=LazyGroup, table=COMMANDS)
def flows() -> None:
    """Send numbered messages and count what is lost.

    `podwire migrate` and `podwire upgrade` run these commands in pods on every node; they also work by hand.
    """


@click.command()
def serve() -> None:
    """Answer numbered messages: port 7007 of TCP and UDP, 7008 of HTTP, and 7009, which policies deny."""
    from podwire.flows import serving

    serving.serve()


@click.command()
@click.argument("targets", nargs=-1, metavar="TARGET...", required=True)
@click.option(
    "--interval-ms", type=click.IntRange(1, 60000), default=50, show_default=True, metavar="MS",
    help="Milliseconds between two messages of a flow.",
)  # fmt: skip
def send(targets: tuple[str, ...], interval_ms: int) -> None:
    """Send numbered messages, and print the counts every second as a line of JSON.

    A target is an address, or an object of JSON such as
    {"kind": "http", "address": "192.0.2.7", "port": 80, "path": "ingress", "name": "shop.example"}.
    """
    from podwire.flows import sending

    sending.send(sending.parse_targets(targets), _say, interval_s=interval_ms / 1000)


@click.command()
def record() -> None:
    """Print each change of this node's kernel: devices, addresses, routes, neighbours, rules, and nftables."""
    from podwire.flows import recording

    recording.record(_say)


def _say(line: str) -> None:
    click.echo(line)
    sys.stdout.flush()
