"""The command ``podwire proxy``: operations on the Service proxy of this machine."""

import click


@click.group()
def proxy() -> None:
    """The Service proxy of this machine."""


@proxy.command()
def cleanup() -> None:
    """Remove all rules of Services from this machine's kernel: podwire's of every mode, and kube-proxy's.

    Use it on a node that shall not forward for Services any more, or before another proxy takes over. Stop the agent
    first: a running agent puts its rules back within a second. Existing connections to Services end. Rules of other
    programs stay.
    """
    from podwire.proxy import leftovers

    removed = leftovers.clear()
    for rules in removed:
        click.echo(f"removed {rules}")
    if not removed:
        click.echo("there is nothing to remove")


@proxy.command()
def relay() -> None:
    """Run the relay of mode userspace in the foreground, apart from the agent.

    An agent in mode userspace starts a relay by itself, and the relay outlives the agent. In a container, the relay
    would end with the container. There, run this command in a container of its own, with the host's network, before the
    agent starts; the agent finds the relay.
    """
    from podwire.proxy.dataplanes.userspace import process

    try:
        process.stay()
    except OSError as failure:
        raise click.ClickException(f"the relay cannot start: {failure.strerror}") from failure
