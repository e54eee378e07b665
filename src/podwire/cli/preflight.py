"""The command ``podwire preflight``."""

from pathlib import Path

import click

from podwire.cli.options import output_option


@click.command()
@click.option("--config", "config_file", metavar="FILE", required=True, help="Configuration of the node's agent.")
@output_option
def preflight(config_file: str, output: str) -> int:
    """Check whether podwire can run on this node.

    The command reads the node and the configuration, and changes nothing. Each line names a problem and what to do. A
    `fault` would break the network of pods or of the node. The exit status is 1 when there is a fault.
    """
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
