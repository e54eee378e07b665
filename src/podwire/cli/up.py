"""The command ``podwire up``."""

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from podwire.cli.interrupt import message_when_interrupted
from podwire.cli.options import SECONDS, name_option, recursive_option, without_option
from podwire.errors import ConfigError
from podwire.local import inventory
from podwire.runtime.memory import importing

if TYPE_CHECKING:
    from podwire.local.config import ClusterConfig


class _BackendOption(click.Option):
    """The option ``--backend``, whose help and completion name the backends of the registry."""

    def get_help_record(self, ctx: click.Context) -> tuple[str, str] | None:
        """The option and its help."""
        from podwire.routing.registry import BACKENDS, DEFAULT

        return "--backend NAME", f"Routing backend: {' or '.join(BACKENDS)}.  [default: {DEFAULT}]"


def _backends(_context: click.Context, _parameter: click.Parameter, start: str) -> list[str]:
    from podwire.routing.registry import BACKENDS

    return [name for name in BACKENDS if name.startswith(start)]


@click.command()
@name_option
@click.option("--nodes", type=int, metavar="N", help="Number of nodes.  [default: 3, or as before]")
@click.option(
    "--segments",
    type=int,
    metavar="N",
    help="Number of L2 segments between the nodes; a router joins them.  [default: 1]",
)
@click.option("--backend", cls=_BackendOption, shell_complete=_backends)
@click.option(
    "--config",
    "config_file",
    type=click.Path(),
    metavar="FILE",
    help="Configuration of the cluster (YAML); options override it.",
)
@click.option(
    "-f",
    "--filename",
    "files",
    type=click.Path(),
    multiple=True,
    metavar="PATH",
    help="Manifest file or folder; - is stdin.",
)
@recursive_option
@click.option(
    "--version", "build", metavar="PATH",
    help="Run the cluster in another build of podwire: a wheel, or a folder that holds the package.",
)  # fmt: skip
@click.option("--state-dir", type=click.Path(path_type=Path), help="Folder for the database and the certificates.")
@click.option("--probe", "with_probe", is_flag=True, help="At the end, test connections between all pods.")
@click.option(
    "--timeout",
    "timeout_s",
    type=SECONDS,
    default=120.0,
    show_default=True,
    metavar="SECONDS",
    help="How long to wait until pods are Ready.",
)
def up(  # noqa: PLR0913 - one parameter an option, as click calls it
    name: str,
    nodes: int | None,
    segments: int | None,
    backend: str | None,
    config_file: str | None,
    files: tuple[str, ...],
    recursive: bool,
    build: str | None,
    state_dir: Path | None,
    with_probe: bool,
    timeout_s: float,
) -> int:
    """Make a local cluster, or change a running one.

    Each node is a network namespace with its own agent and kubelet, pods are real processes, and kubectl works as
    usual. You can repeat the command: it starts what is missing, adds or removes nodes, changes the routing backend,
    applies the manifests again, and leaves everything else running. Options that you leave out keep their values. The
    command returns when all nodes are ready for traffic, and with -f when the applied workloads are Ready.

    \b
    podwire up --nodes 3 -f examples/shop --probe
    export KUBECONFIG=$(podwire kubeconfig)
    kubectl get pods -A -o wide
    """
    with importing():
        from podwire.local import bring_up
        from podwire.local.manifests import read_manifests

    inventory.check_name(name)
    inventory.check_root()
    if (status := _elsewhere(name, build, state_dir)) is not None:
        return status
    config = _configured(name, config_file, nodes, segments, backend)
    _check_state_dir(name, state_dir)
    manifests = read_manifests(files, recursive=recursive)
    request = bring_up.UpRequest(
        name=name, config=config, manifests=manifests, state=state_dir, probe=with_probe, timeout_s=timeout_s
    )
    message = (
        f"cluster {name!r} may be incomplete: `podwire up --name {name}` completes it, `podwire down --name {name}`"
    )
    with message_when_interrupted(f"{message} removes it"):
        return bring_up.run(request, click.echo)


def _elsewhere(name: str, build: str | None, state_dir: Path | None) -> int | None:
    """The exit status of this command in another build: the named one, or that of the existing cluster; None: here."""
    from podwire.local import builds

    topology = inventory.find(name)
    state = Path(topology.state) if topology is not None else (state_dir or inventory.STATE_ROOT) / name
    known = builds.recall(state)
    if build is not None:
        target = builds.resolve(build, state / "builds", "--version")
    elif known is None or known.root == builds.own_root() or builds.VARIABLE in os.environ:
        return None
    else:
        builds.check(known)
        target = known
    running = known.label if known is not None else "the build that `podwire up` started it in"
    if topology is not None and (known is None or known.label != target.label):
        problem = f"{target.label}: the cluster runs {running}; `podwire upgrade local` takes it to another build"
        raise ConfigError("--version", "", problem)
    builds.remember(state, target)
    status = builds.run_command(target, without_option(sys.argv[1:], "--version"))
    if inventory.find(name) is None:
        builds.forget(state)
    return status


def _configured(
    name: str, config_file: str | None, nodes: int | None, segments: int | None, backend: str | None
) -> "ClusterConfig":
    import msgspec

    from podwire.kernel.features import Features
    from podwire.local.backendcheck import check_backend
    from podwire.local.config import (
        ClusterConfig,
        RoutingSection,
        check_change,
        check_config,
        read_config,
        recall_config,
    )

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
    check_backend(config, known, source, Features().lacks)
    return config


def _check_state_dir(name: str, state_dir: Path | None) -> None:
    """Raises: ConfigError when the cluster exists with its state in another folder."""
    topology = inventory.find(name)
    if state_dir is None or topology is None:
        return
    if (state_dir / name).resolve() != Path(topology.state).resolve():
        problem = f"cannot change while the cluster exists, whose state is in {Path(topology.state).parent}"
        raise ConfigError("--state-dir", "", f"{problem}; run `podwire down --name {name}` first")
