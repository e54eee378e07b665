"""The command ``podwire udp``: the process of the routing backend udp in this network namespace."""

import click

from podwire.kernel import udptunnel

_DEVICE = "podwire-udp"


@click.command()
def udp() -> None:
    """Show the peers of the routing backend udp on this machine, and how many packets its process carried and dropped.

    On a node of a local cluster: `podwire exec NODE podwire udp`. The agent starts the process, and gives it its peers.
    """
    click.echo(udptunnel.ask(None, _DEVICE, "show"))
    click.echo(udptunnel.counters(None, _DEVICE))
