"""The command ``podwire preflight``."""

import asyncio
from pathlib import Path

import click

from podwire.cli.options import kubeconfig_option, output_option


@click.command()
@click.option("--config", "config_file", metavar="FILE", help="Configuration of the node's agent.")
@click.option(
    "--nodes", "on_nodes", is_flag=True, help="Instead: check the nodes of the cluster where podwire is installed."
)
@click.option("--node", "named", metavar="NAME", multiple=True, help="With --nodes: only this node; can be repeated.")
@click.option(
    "-n", "--namespace", default="kube-system", show_default=True, metavar="NAME", help="Namespace of the agents."
)
@kubeconfig_option
@output_option
def preflight(
    config_file: str | None, on_nodes: bool, named: tuple[str, ...], namespace: str, kubeconfig: str | None, output: str
) -> int:
    """Check whether podwire can run on this node, or on the nodes of a cluster.

    The command reads the node and the configuration, and changes nothing. Each line names a problem and what to do. A
    `fault` would break the network of pods or of the node. The exit status is 1 when there is a fault. With --nodes the
    check runs in a pod like the agent's on each node.

    \b
    podwire preflight --config /etc/podwire/agent.yaml
    podwire preflight --nodes
    """
    if bool(config_file) == on_nodes:
        raise click.UsageError("expected exactly one of --config and --nodes")
    if named and not on_nodes:
        raise click.UsageError("--node goes with --nodes")
    if config_file:
        return _check(config_file, output)
    if output == "json":
        raise click.UsageError("-o json goes with --config")
    from podwire.cli.nodecommands import run_on_nodes

    return asyncio.run(run_on_nodes(kubeconfig, namespace, named, lambda commands: commands.preflight()))


def _check(config_file: str, output: str) -> int:
    import msgspec

    from podwire.agent.config import load
    from podwire.install import nodefacts
    from podwire.install.preflight import find
    from podwire.kernel.features import Features

    findings = find(nodefacts.read_facts(load(Path(config_file)), Features()))
    if output == "json":
        click.echo(msgspec.json.format(msgspec.json.encode(findings), indent=2))
    else:
        for finding in findings or ("no problems found",):
            click.echo(str(finding))
    return 1 if any(finding.level == "fault" for finding in findings) else 0
