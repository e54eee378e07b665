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


@proxy.command()
def relay() -> None:
    """Run the relay of mode userspace in the foreground, apart from the agent.

    An agent in that mode starts a relay by itself, which outlives it. In a container it would end with the container:
    there this runs in one of its own, with the host's network, before the agent. The agent finds it.
    """
    from podwire.proxy.dataplanes.userspace import process

    try:
        process.stay()
    except OSError as failure:
        raise click.ClickException(f"the relay cannot start: {failure.strerror}") from failure
