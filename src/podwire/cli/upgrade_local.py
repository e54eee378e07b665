"""The commands ``podwire upgrade local``."""

import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING

import click

from podwire.cli.lazy import LazyGroup
from podwire.cli.options import name_option, without_option

if TYPE_CHECKING:
    from podwire.local.rollout.plan import Direction
    from podwire.local.rollout.run import RolloutOptions

COMMANDS: Mapping[str, tuple[str, str]] = {
    "apply": ("podwire.cli.upgrade_local:apply", "Upgrade a local cluster to another build of podwire."),
    "rollback": ("podwire.cli.upgrade_local:rollback", "Return to the build from before the upgrade."),
    "status": ("podwire.cli.upgrade_local:status", "Show which steps are done."),
}


@click.group(cls=LazyGroup, table=COMMANDS)
def local() -> None:
    """Upgrade podwire itself in a local cluster that was started by `podwire up --version`.

    The command replaces the supervisor, the API server and the controllers, then kubelets and agents node by node, then
    DNS and the gateway, while numbered messages run. After each step all nodes must be ready and no message may be
    lost; otherwise the command returns everything to the old build.
    """


_pause_option = click.option(
    "--pause", "pause_s", type=click.FloatRange(min=0), default=1.0, show_default=True, metavar="SECONDS",
    help="Wait behind each step.",
)  # fmt: skip
_interval_option = click.option(
    "--interval-ms", type=click.IntRange(1, 1000), default=20, show_default=True, metavar="MS",
    help="Milliseconds between two messages of a flow.",
)  # fmt: skip


@click.command()
@name_option
@click.option(
    "--to", "build", metavar="PATH", help="A wheel, or a folder that holds the package.  [default: this build]"
)
@click.option("--canary", default="", metavar="NODE", help="The node that is upgraded first.  [default: the first]")
@_pause_option
@click.option(
    "--canary-pause", "canary_pause_s", type=click.FloatRange(min=0), default=6.0, show_default=True, metavar="SECONDS",
    help="Wait behind each step of the canary; a message is lost when it has no answer in 5 s.",
)  # fmt: skip
@click.option("--most-lost", type=click.IntRange(min=0), default=0, show_default=True, help="Lost messages allowed.")
@click.option(
    "--messages", type=click.IntRange(min=0), default=0, metavar="N", help="Go on until this many messages were sent."
)
@_interval_option
def apply(  # noqa: PLR0913 - one parameter an option, as click calls it
    name: str,
    build: str | None,
    canary: str,
    pause_s: float,
    canary_pause_s: float,
    most_lost: int,
    messages: int,
    interval_ms: int,
) -> int:
    """Upgrade a local cluster to another build of podwire, or continue after an interruption.

    The exit status is 1 when messages were lost or a step failed, and the cluster was returned to the old build.
    """
    from podwire.local.rollout.run import RolloutOptions

    if build is not None and (status := _in_build(name, build)) is not None:
        return status
    options = RolloutOptions(
        canary=canary,
        pause_s=pause_s,
        canary_pause_s=canary_pause_s,
        most_lost=most_lost,
        interval_ms=interval_ms,
        least_messages=messages,
    )
    return _run(name, "apply", options)


@click.command()
@name_option
@_pause_option
@_interval_option
def rollback(name: str, pause_s: float, interval_ms: int) -> int:
    """Return a local cluster to the build from before the upgrade; possible at every step, and after the last one."""
    from podwire.local.rollout.run import RolloutOptions

    return _run(name, "rollback", RolloutOptions(pause_s=pause_s, interval_ms=interval_ms))


@click.command()
@name_option
def status(name: str) -> None:
    """Show which steps are done."""
    from podwire.local import inventory
    from podwire.local.rollout import plan, run

    record = run.read_record(inventory.existing(name))
    if record is None:
        click.echo("there was no upgrade")
        return
    for line in plan.lines(record):
        click.echo(line)


def _run(name: str, direction: "Direction", options: "RolloutOptions") -> int:
    from podwire.local import inventory
    from podwire.local.rollout import run

    def say(line: str) -> None:
        click.echo(line)
        sys.stdout.flush()

    inventory.check_name(name)
    inventory.check_root()
    return run.run(name, direction, options, say)


def _in_build(name: str, build: str) -> int | None:
    """The exit status of this command in another build; None when it is this one."""
    from pathlib import Path

    from podwire.local import builds, inventory

    target = builds.resolve(build, Path(inventory.existing(name).state) / "builds", "--to")
    if target.label == builds.own().label:
        return None
    return builds.run_command(target, without_option(sys.argv[1:], "--to"))
