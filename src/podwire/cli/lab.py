"""The command ``podwire lab``: changes the conditions of the links of a running local cluster."""

from collections.abc import Callable
from typing import TYPE_CHECKING

import click

from podwire.cli import completion
from podwire.cli.options import output_option, running_option
from podwire.cli.output import print_json
from podwire.cli.target import running_cluster
from podwire.local import inventory

if TYPE_CHECKING:
    from podwire.local.lab.change import LabChange

_station = click.argument("station", metavar="STATION", shell_complete=completion.station_names)


@click.group()
def lab() -> None:
    """Cut, slow down and heal the links between the nodes of a local cluster.

    STATION names a link: the link of a node, of `host` (this machine with the API server), or, in a cluster of several
    segments, of `segment-1` (the router's link to that segment). Changes stay until `heal` or `down`. The devices at
    both ends stay up.

    \b
    podwire lab cut node-2           # no packet reaches node-2
    podwire lab cut node-1 node-2    # no packet passes between these two nodes
    podwire lab loss node-2 5        # percent of the frames, in each direction
    podwire lab mtu node-2 1400
    podwire lab heal
    """


@lab.command()
@running_option
@_station
@click.argument("other", required=False, metavar="[NODE]", shell_complete=completion.station_names)
def cut(name: str | None, station: str, other: str | None) -> None:
    """Cut the link of a station, or two nodes from each other."""
    if other is None:
        _change(name, lambda change: change.set_link(station, cut=True))
    else:
        _change(name, lambda change: change.cut_pair(station, other))


@lab.command()
@running_option
@_station
@click.argument("percent", type=float, metavar="PERCENT")
def loss(name: str | None, station: str, percent: float) -> None:
    """Lose frames at random, PERCENT of them in each direction."""
    _change(name, lambda change: change.set_link(station, loss_percent=percent))


@lab.command()
@running_option
@_station
@click.argument("milliseconds", type=float, metavar="MILLISECONDS")
def delay(name: str | None, station: str, milliseconds: float) -> None:
    """Delay frames in each direction; needs a kernel with netem."""
    _change(name, lambda change: change.set_link(station, delay_ms=milliseconds))


@lab.command()
@running_option
@_station
@click.argument("size", type=int, metavar="BYTES")
def mtu(name: str | None, station: str, size: int) -> None:
    """Set the MTU of both ends of a link; 0 restores the default."""
    _change(name, lambda change: change.set_link(station, mtu=size))


@lab.command()
@running_option
@click.argument("stations", nargs=-1, metavar="[STATION]...", shell_complete=completion.station_names)
def heal(name: str | None, stations: tuple[str, ...]) -> None:
    """Restore links to the conditions in the configuration; without a STATION all links.

    If two nodes were cut from each other, name one of them.
    """

    _change(name, lambda change: change.heal(stations))


@lab.command()
@running_option
@output_option
def show(name: str | None, output: str) -> None:
    """Show the links that are cut, lossy, slow or narrow."""
    from podwire.local.lab.record import read_conditions

    inventory.check_root()
    conditions = read_conditions(running_cluster(name))
    if output == "json":
        print_json(conditions)
    else:
        _print_lines(conditions.lines())


def _print_lines(lines: tuple[str, ...]) -> None:
    for line in lines or ("all links are as usual",):
        click.echo(line)


def _change(name: str | None, make: Callable[["LabChange"], None]) -> None:
    """Makes a change under the cluster's lock and prints the resulting conditions."""
    from podwire.local.lab.change import LabChange

    inventory.check_root()
    topology = running_cluster(name)
    with inventory.locked(topology.name):
        change = LabChange(topology)
        make(change)
        change.commit()
    _print_lines(change.conditions.lines())
