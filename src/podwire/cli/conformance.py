"""The command ``podwire conformance``."""

import os
import signal
import sys
from pathlib import Path

import click

from podwire.cli.completion import cluster_names
from podwire.cli.interrupt import message_when_interrupted
from podwire.errors import ConfigError
from podwire.local import inventory
from podwire.local.config import ClusterConfig, read_config

_FAMILIES = {"4": (4,), "6": (6,), "both": (4, 6)}
_ENDED = 128 + signal.SIGTERM


@click.command()
@click.argument("files", nargs=-1, required=True, metavar="FILE...")
@click.option(
    "--name",
    default="",
    metavar="NAME",
    shell_complete=cluster_names,
    help="A running local cluster.  [default: a new cluster for this run]",
)
@click.option(
    "--config",
    "config_file",
    default="",
    metavar="FILE",
    help="Configuration of the new cluster, as for `podwire up`.",
)
@click.option("--case", "pattern", default="*", metavar="GLOB", help="Only the cases whose id matches.")
@click.option("--family", type=click.Choice(tuple(_FAMILIES)), default="both", show_default=True)
@click.option("-o", "--output", type=click.Choice(("table", "json", "junit")), default="table", show_default=True)
def conformance(  # noqa: PLR0913 - one parameter an option, as click calls it
    files: tuple[str, ...], name: str, config_file: str, pattern: str, family: str, output: str
) -> int:
    """Check policies against files of cases, with real packets.

    A case has namespaces, pods with fixed addresses, and steps. A step changes policies, labels and pods, and lists the
    expected connections. The changes go through the API; when they are in force, all connections of a step are tried at
    once: TCP, UDP and SCTP, in IPv4 and IPv6. A denied connection must time out; a refusal is a failure.

    Progress goes to standard error. Exit status 1 when a check fails, 2 when a file is wrong.

    \b
    podwire conformance cases/*.json
    podwire conformance cases.json --case 'deny-*' --family 6 -o junit
    podwire conformance cases.json --config iptables.yaml
    """
    from podwire.local.conformance import casefile, report, session, strict

    inventory.check_root()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(_ENDED))
    read = [casefile.parse(_read(file), file) for file in files]
    for file in read:
        strict.check(file)
    chosen = session.chosen(read, pattern)
    if name:
        inventory.existing(name)
        if config_file:
            raise ConfigError(
                "--config", "", f"cluster {name!r} has its own configuration; expected either --name or --config"
            )
    request = session.ConformanceRequest(
        files=chosen,
        name=name,
        own_name=f"conformance-{os.getpid()}",
        config=read_config(config_file) if config_file else ClusterConfig(),
        families=_FAMILIES[family],
    )
    message = (
        f"cluster {name!r} still runs, without the namespaces of the cases"
        if name
        else "the cluster of this run is removed"
    )
    with message_when_interrupted(message):
        results = session.run(request, lambda line: click.echo(line, err=True))
    write = {"table": report.table, "json": report.as_json, "junit": report.junit}[output]
    click.echo(write(results))
    return 0 if all(case.passed for case in results) else 1


def _read(file: str) -> bytes:
    try:
        return Path(file).read_bytes()
    except OSError as failure:
        raise ConfigError(file, "", f"cannot be read: {failure.strerror}") from failure
