"""The command ``podwire proxy``: what an operator does with the Service proxy of the machine he is on."""

import click


@click.group()
def proxy() -> None:
    """The Service proxy of this machine."""


@proxy.command()
def cleanup() -> None:
    """Remove all rules of Services from this machine's kernel: podwire's of every mode, and kube-proxy's.

    For a node that shall not forward for Services any more, or before another proxy takes over. Stop the agent first:
    one that runs puts its rules back within a second. Connections that exist end; nothing of others is touched.
    """
    from podwire.proxy import leftovers

    found = leftovers.clear()
    for what in found:
        click.echo(f"removed {what}")
    if not found:
        click.echo("there is nothing to remove")
