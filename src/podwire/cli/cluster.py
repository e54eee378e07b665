"""The commands that make, show and remove a local cluster."""

import asyncio
import os
import shlex
from pathlib import Path

import click
import msgspec

from podwire.cli.target import local_cluster
from podwire.errors import ClusterError, ConfigError
from podwire.local import inventory
from podwire.local.config import ClusterConfig, RoutingSection, check_change, check_config, read_config, recall_config
from podwire.local.manifests import read_manifests
from podwire.routing.registry import BACKENDS, DEFAULT

SECONDS = click.FloatRange(min=0, min_open=True)
name_option = click.option(
    "--name", default="podwire", show_default=True, metavar="NAME", help="The cluster; several can run side by side."
)


def _meant(_context: click.Context, _option: click.Parameter, name: str | None) -> str:
    """The name that was typed, or the local cluster that kubectl talks to."""
    found = local_cluster("", None, named=False) if name is None and os.environ.get("KUBECONFIG") else None
    return name or (found.name if found is not None else "podwire")


running_option = click.option(
    "--name",
    metavar="NAME",
    callback=_meant,
    help="The cluster; several can run side by side.  [default: that of $KUBECONFIG, or podwire]",
)
"""For commands that change no cluster."""

recursive_option = click.option("-R", "--recursive", is_flag=True, help="Read the folders below the given folders too.")


@click.command()
@name_option
@click.option("--nodes", type=int, metavar="N", help="How many nodes.  [default: 3, or as many as run]")
@click.option("--segments", type=int, metavar="N", help="L2 segments, joined by a router.  [default: 1]")
@click.option("--backend", metavar="NAME", help=f"Routing backend: {' or '.join(BACKENDS)}.  [default: {DEFAULT}]")
@click.option("--config", "config_file", metavar="FILE", help="Cluster configuration (YAML); options win over it.")
@click.option("-f", "--filename", "files", multiple=True, metavar="PATH", help="Manifest file or folder; - is stdin.")
@recursive_option
@click.option("--state-dir", type=click.Path(path_type=Path), help="Where database and certificates go.")
@click.option("--probe", "with_probe", is_flag=True, help="End with a connectivity table of real packets.")
@click.option(
    "--timeout",
    "timeout_s",
    type=SECONDS,
    default=120.0,
    show_default=True,
    metavar="SECONDS",
    help="For pods to be Ready.",
)
def up(  # noqa: PLR0913 - one parameter an option, as click calls it
    name: str,
    nodes: int | None,
    segments: int | None,
    backend: str | None,
    config_file: str | None,
    files: tuple[str, ...],
    recursive: bool,
    state_dir: Path | None,
    with_probe: bool,
    timeout_s: float,
) -> int:
    """Bring up a local cluster, or change a running one.

    Nodes are network namespaces with their own agent and kubelet; pods are real processes; kubectl works. The command
    can be repeated: it starts what is missing, adds or removes nodes, switches the routing backend, applies the
    manifests again, and leaves the rest running; settings that are not given stay as they are. With -f it waits until
    the applied workloads are Ready.

    \b
    podwire up --nodes 3 -f examples/shop --probe
    export KUBECONFIG=$(podwire kubeconfig)
    kubectl get pods -A -o wide
    """
    from podwire.local import bring_up

    inventory.check_name(name)
    inventory.check_root()
    config = _configured(name, config_file, nodes, segments, backend)
    manifests = read_manifests(files, recursive=recursive)
    request = bring_up.UpRequest(
        name=name, config=config, manifests=manifests, state=state_dir, probe=with_probe, timeout_s=timeout_s
    )
    return bring_up.run(request, _say)


def _say(line: str) -> None:
    click.echo(line)


def _configured(
    name: str, config_file: str | None, nodes: int | None, segments: int | None, backend: str | None
) -> ClusterConfig:
    topology = inventory.find(name)
    known = recall_config(topology) if topology else None
    config = read_config(config_file, known) if config_file else known or ClusterConfig()
    changes: dict[str, object] = {}
    if nodes is not None:
        changes["nodes"] = nodes
    if segments is not None:
        changes["segments"] = segments
    if backend is not None:
        changes["routing"] = RoutingSection(backend=backend)
    config = msgspec.structs.replace(config, **changes)
    source = config_file or "podwire up"
    check_config(config, source)
    if known is not None:
        check_change(known, config, source)
    return config


@click.command()
@name_option
@click.option("--all", "every", is_flag=True, help="Every local cluster of this machine.")
def down(name: str, every: bool) -> None:
    """Remove a local cluster, leaving the machine as it was before.

    Works in any state: also when processes were killed or `podwire up` was interrupted.
    """
    from podwire.local import teardown

    inventory.check_root()
    for one in inventory.names() if every else (name,):
        inventory.check_name(one)
        with inventory.locked(one):
            topology = inventory.find(one)
            if topology is None:
                click.echo(f"there is no cluster {one!r}")
            else:
                teardown.destroy(topology)
                click.echo(f"cluster {one!r} is gone")
            inventory.forget_lock(one)


@click.command()
@running_option
def status(name: str) -> None:
    """Show nodes, data planes and processes of a local cluster."""
    from podwire.local import overview

    topology = inventory.existing(name)
    click.echo(asyncio.run(overview.describe(topology)))


@click.command()
@name_option
@click.option("--text", is_flag=True, help="Print the file itself instead of its path.")
def kubeconfig(name: str, text: bool) -> None:
    """Print the path (or the text) of a cluster's kubeconfig.

    \b
    export KUBECONFIG=$(podwire kubeconfig)
    """
    from podwire.local import credentials

    path = credentials.kubeconfig_path(inventory.existing(name), "admin")
    try:
        found = path.read_text(encoding="utf-8")
    except FileNotFoundError as failure:
        raise ClusterError(f"cluster {name!r} has no kubeconfig yet; run `podwire up`") from failure
    except PermissionError as failure:
        raise ConfigError("podwire", "", f"{path} is for root alone; use sudo") from failure
    click.echo(found if text else str(path), nl=not text)


@click.command("exec", context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False})
@running_option
@click.argument("node")
@click.argument("command", nargs=-1, required=True, type=click.UNPROCESSED)
def execute(name: str, node: str, command: tuple[str, ...]) -> None:
    """Run a command in a node's network namespace.

    NODE is a node's name, or `switch` or `router` for the fabric between the nodes.

    \b
    podwire exec node-1 ip route
    podwire exec node-2 nft list ruleset
    podwire exec node-1 tcpdump -ni eth0
    """
    from podwire.kernel import netns

    inventory.check_root()
    topology = inventory.existing(name)
    place = Path(topology.netns(node))
    if not netns.exists(place):
        found = sorted(p.name for p in place.parent.glob("*") if not p.name.startswith("pod-"))
        raise ConfigError("NODE", "", f"{node!r} is not in cluster {name!r}; there is {', '.join(found)}")
    netns.enter(place)
    try:
        os.execvp(command[0], command)
    except OSError as failure:
        raise ConfigError("COMMAND", "", f"{shlex.join(command)}: {failure.strerror}") from failure
