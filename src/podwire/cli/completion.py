"""Completion in a shell: the command ``podwire completion``, and the names of clusters and nodes.

The shell runs ``podwire`` with ``_PODWIRE_COMPLETE`` at each press of the tabulator key, so a person waits for it: this
module and those of the completed commands import neither the API client nor YAML. The names come from the folders of
the clusters. Every command imports this module for its options, and needs nothing else of it.
"""

import json
import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import click

from podwire.errors import ConfigError

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

SHELLS = ("bash", "zsh", "fish")
_VARIABLE = "_PODWIRE_COMPLETE"
_FABRIC = ("switch", "router")
_HOST = "host"


def cluster_names(_context: click.Context, _parameter: click.Parameter, start: str) -> "list[CompletionItem]":
    """The local clusters whose names begin with ``start``."""
    from podwire.local import inventory

    return _items(inventory.names(), start)


def node_names(context: click.Context, _parameter: click.Parameter, start: str) -> "list[CompletionItem]":
    """The nodes, switch and router of the cluster that the command is about."""
    return _items(_namespaces(context), start)


def state_names(context: click.Context, _parameter: click.Parameter, start: str) -> "list[CompletionItem]":
    """The arguments of ``podwire state``: nodes, switch, router and this machine."""
    return _items((*_namespaces(context), _HOST), start)


def station_names(context: click.Context, _parameter: click.Parameter, start: str) -> "list[CompletionItem]":
    """The nodes of the cluster, and this machine: the ends of links."""
    nodes = (name for name in _namespaces(context) if name not in _FABRIC)
    return _items((*nodes, _HOST), start)


def _items(names: Iterable[str], start: str) -> "list[CompletionItem]":
    from click.shell_completion import CompletionItem

    return [CompletionItem(name) for name in names if name.startswith(start)]


def _namespaces(context: click.Context) -> list[str]:
    """The names of namespaces, nodes first, by number."""
    from podwire.local import inventory

    existing: set[str] = set()
    for cluster in _chosen_clusters(context):
        existing |= {path.name for path in (inventory.RUN_ROOT / cluster / "netns").glob("*")}
    nodes = [name for name in existing if name.startswith("node-")]
    return sorted(nodes, key=lambda name: (len(name), name)) + [name for name in _FABRIC if name in existing]


def _chosen_clusters(context: click.Context) -> tuple[str, ...]:
    """The cluster of ``--name`` or of ``$KUBECONFIG``, else the default one, else all."""
    from podwire.local import inventory

    names = inventory.names()
    named = context.params.get("name")
    name = named or next(_of_kubeconfig(names), "podwire")
    return (name,) if named or name in names else names


def _of_kubeconfig(names: tuple[str, ...]) -> Iterator[str]:
    """The cluster whose folder holds the file of ``$KUBECONFIG``."""
    from podwire.local import inventory

    chosen = os.environ.get("KUBECONFIG", "").split(":")[0]
    for name in names if chosen else ():
        try:
            state = json.loads((inventory.RUN_ROOT / name / "layout.json").read_bytes())["state"]
        except (OSError, ValueError, KeyError):
            continue
        if Path(chosen).resolve().is_relative_to(Path(state).resolve()):
            yield name


@click.command()
@click.argument("shell", metavar="SHELL", type=click.Choice(SHELLS))
def completion(shell: str) -> None:
    """Print the script for tab completion of commands, options, clusters and nodes.

    SHELL is bash (4.4 or newer), zsh or fish.

    \b
    bash:  source <(podwire completion bash)           # in ~/.bashrc
    zsh:   source <(podwire completion zsh)            # in ~/.zshrc
    fish:  podwire completion fish | source            # in ~/.config/fish/config.fish
    """
    from click.shell_completion import get_completion_class

    shell_class = get_completion_class(shell)
    if shell_class is None:
        raise ConfigError("SHELL", "", f"{shell!r} is not known to click")
    context = click.get_current_context().find_root()
    click.echo(shell_class(context.command, {}, "podwire", _VARIABLE).source())
