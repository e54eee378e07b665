"""The commands ``podwire upgrade node``: what the pods of an upgrade do on their node."""

from pathlib import Path

import click

from podwire.upgrade.nodepods import BIN_DIR, CONF_DIR
from podwire.upgrade.verify.checks import PORT


@click.group()
def node() -> None:
    """Read or change this node (used by the pods of the other commands)."""


_conf_option = click.option("--conf-dir", metavar="DIR", default=CONF_DIR, help="The runtime's network configurations.")
_bin_option = click.option("--bin-dir", metavar="DIR", default=BIN_DIR, help="The runtime's CNI programs.")


@node.command()
@_conf_option
@_bin_option
def read(conf_dir: str, bin_dir: str) -> None:
    """Print the network of this node: configurations, programs, kernel state."""
    from podwire.upgrade.backup import noderead, transfer

    for line in transfer.lines(noderead.read(Path(conf_dir), Path(bin_dir))):
        click.echo(line)


@node.command()
@_conf_option
@click.option("--file", "files", metavar="NAME=BASE64", multiple=True, help="A configuration to write.")
def write(conf_dir: str, files: tuple[str, ...]) -> None:
    """Write network configurations of the container runtime, each by rename."""
    from podwire.runtime.files import write_atomically
    from podwire.upgrade.backup.restore import file_of

    for name, data in map(file_of, files):
        write_atomically(Path(conf_dir, name), data, durable=True)
        click.echo(f"wrote {name}")


@node.command()
@click.option("--port", type=click.IntRange(1, 65535), default=PORT, show_default=True, help="Port, TCP and UDP.")
def serve(port: int) -> None:
    """Answer connections and datagrams with the address of the client."""
    from podwire.upgrade.verify.connections import serve as answer

    answer(port)


@node.command(name="try")
@click.argument("checks", metavar="JSON")
def attempt(checks: str) -> int:
    """Try connections, and print the results as a line of JSON."""
    import msgspec

    from podwire.errors import ConfigError
    from podwire.upgrade.verify import checks as values
    from podwire.upgrade.verify import connections

    try:
        connections_to_try = values.decode(checks)
    except msgspec.DecodeError as failure:
        raise ConfigError("JSON", "", str(failure)) from failure
    results = connections.attempt(connections_to_try)
    click.echo(values.results_line(results))
    return 1 if any(result.problem for result in results) else 0


@node.command()
@_conf_option
def hold(conf_dir: str) -> None:
    """Hold the network configuration of this node by a copy that comes first."""
    from podwire.upgrade.apply import hold as steps

    steps.hold(Path(conf_dir), click.echo)


@node.command()
@_conf_option
@_bin_option
def release(conf_dir: str, bin_dir: str) -> None:
    """Remove the copy that holds the network configuration, when the new one can take its place."""
    from podwire.upgrade.apply import hold as steps

    steps.release(Path(conf_dir), Path(bin_dir), click.echo)
