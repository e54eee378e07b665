"""The command ``podwire uninstall``."""

from pathlib import Path

import click


@click.command()
@click.option("--config", "config_file", metavar="FILE", required=True, help="Configuration of the node's agent.")
@click.option("--dry-run", is_flag=True, help="Show what would be removed, and remove nothing.")
@click.option("--with-pods", is_flag=True, help="Also remove the network of pods that still run on this node.")
def uninstall(config_file: str, dry_run: bool, with_pods: bool) -> None:
    """Take podwire off this node: its files, rules, devices, routes, processes and state.

    Stop the agent and drain the node first. Objects of other programs stay. Sysctls get back the values from before
    podwire, unless somebody changed them since. The command works after a crash, without the API server, and twice.

    \b
    podwire uninstall --config /etc/podwire/agent.yaml --dry-run
    """
    from podwire.agent.config import load
    from podwire.install import uninstall as removal

    config = load(Path(config_file))
    subjects: list[str] = []

    def say(line: str) -> None:
        subjects.append(line)
        click.echo(line)

    removal.run(config, say, dry=dry_run, with_pods=with_pods)
    if not subjects:
        click.echo("there is nothing to remove")
