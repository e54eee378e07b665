"""The command ``podwire upgrade rehearse``."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from podwire.cli.options import SECONDS, kubeconfig_option, output_option
from podwire.cli.upgrade_apply import PLANNED, read_plan
from podwire.cli.upgrade_plan import target_options, targets_of

if TYPE_CHECKING:
    from podwire.kube.client import Client
    from podwire.upgrade.lossgate import FlowGate
    from podwire.upgrade.rehearsal.nodes import CopiedNode
    from podwire.upgrade.rehearsal.objects import RehearsalSource
    from podwire.upgrade.rehearsal.result import RehearsalResult
    from podwire.upgrade.rehearsal.settings import OwnCommand


@click.command()
@kubeconfig_option
@click.option("--plan", "plan_file", metavar="FILE", help="A plan of `podwire upgrade plan -o json`.")
@click.option("--to", "target", metavar="VERSION", help="Plan for a Kubernetes version, 1.36 or 1.36.1.")
@target_options
@click.option("--name", default="rehearsal", show_default=True, metavar="NAME", help="Name of the local cluster.")
@click.option("--nodes", type=click.IntRange(1, 20), default=3, show_default=True, help="Most nodes of the copy.")
@click.option("--pods", type=click.IntRange(0), default=30, show_default=True, help="Most pods behind Services.")
@click.option(
    "--command", "commands", metavar="IMAGE=COMMAND", multiple=True,
    help="A program of this machine for an image, as in registry.k8s.io/coredns/coredns=/usr/bin/coredns.",
)  # fmt: skip
@click.option(
    "--folder", metavar="FOLDER", default="rehearsal", show_default=True, help="Where the loss proofs are written."
)
@click.option(
    "--interval-ms", type=click.IntRange(1, 1000), default=50, show_default=True, metavar="MS",
    help="Milliseconds between two messages of a flow.",
)  # fmt: skip
@click.option("--timeout", type=SECONDS, default=300.0, show_default=True, help="Time for a pod to be ready.")
@click.option("--no-rollback", is_flag=True, help="Do not try the way back.")
@click.option("--keep", is_flag=True, help="Keep the local cluster.")
@output_option
def rehearse(kubeconfig: str | None, plan_file: str | None, target: str | None, **options: Any) -> int:
    """Try an upgrade in a local copy of the cluster, under numbered flows, and report what was lost.

    The copy is a local cluster with some nodes, the Services, policies and network workloads of the cluster. The
    cluster itself is only read. The exit status is 1 when a message was lost, or a step failed.
    """
    from podwire.cli.output import print_json
    from podwire.errors import ConfigError
    from podwire.local import inventory
    from podwire.upgrade.rehearsal.result import result_text

    if (plan_file is None) == (target is None):
        raise click.UsageError("expected either --plan or --to")
    name = options["name"]
    inventory.check_name(name)
    inventory.check_root()
    if inventory.find(name) is not None:
        todo = f"`podwire down --name {name}` removes it, or choose another name"
        raise ConfigError("--name", "", f"the local cluster {name!r} exists; {todo}")
    result = _rehearsed(kubeconfig, plan_file, target, options)
    if options["output"] == "json":
        print_json(result)
    else:
        click.echo(result_text(result), nl=False)
    return 0 if result.passed else 1


def _rehearsed(
    kubeconfig: str | None, plan_file: str | None, target: str | None, options: dict[str, Any]
) -> "RehearsalResult":
    """Reads the cluster, makes the copy, tries the plan there, and removes the copy.

    Raises: ConfigError, ClusterError.
    """
    import asyncio

    from podwire.cli.interrupt import message_when_interrupted
    from podwire.upgrade.rehearsal import nodes, settings

    name, say = options["name"], partial(click.echo, err=options["output"] == "json")
    commands = settings.parse_commands(options["commands"])
    source = asyncio.run(_read(kubeconfig, plan_file, target, options))
    chosen = nodes.choose_nodes(source.inventory, source.plan, options["nodes"])
    ranges = settings.ranges_of(source.inventory)
    document = settings.configuration(source, ranges, len(chosen), _own_command(), commands)
    with message_when_interrupted(f"`podwire down --name {name}` removes what is left of the copy"):
        try:
            _bring_up(name, document, say)
            return asyncio.run(_try(source, chosen, commands, options, say))
        finally:
            if not options["keep"]:
                _remove(name)


async def _try(
    source: "RehearsalSource",
    nodes: Sequence["CopiedNode"],
    commands: Mapping[str, Sequence[str]],
    options: dict[str, Any],
    say: Callable[[str], None],
) -> "RehearsalResult":
    """The result of the plan in the copy."""
    from podwire.upgrade.lossgate import ProofOptions, flow_gate
    from podwire.upgrade.rehearsal import settings
    from podwire.upgrade.rehearsal.run import Rehearsal, RehearsalOptions

    ranges = settings.ranges_of(source.inventory)
    rehearsal = RehearsalOptions(
        roles=settings.roles_of(source.plan, commands),
        service_cidrs=ranges.services,
        most_pods=options["pods"],
        timeout_s=options["timeout"],
        back=not options["no_rollback"],
    )
    client = _client_of_copy(options["name"])

    async def gate(title: str) -> "FlowGate":
        proof = ProofOptions(
            folder=Path(options["folder"]).absolute(),
            image=settings.PROGRAM,
            title=title,
            interval_ms=options["interval_ms"],
        )
        return await flow_gate(client, proof, say)

    try:
        differences = settings.known_differences(source, ranges, commands)
        return await Rehearsal(client, source, nodes, rehearsal, gate).run(differences)
    finally:
        await client.close()


async def _read(
    kubeconfig: str | None, plan_file: str | None, target: str | None, options: dict[str, Any]
) -> "RehearsalSource":
    """What is copied of the cluster, with the plan.

    Raises: ConfigError when the plan has a blocker, or no step that can be tried.
    """
    from podwire.cli.api import client_of
    from podwire.errors import ConfigError
    from podwire.upgrade.inventory.read import read_inventory
    from podwire.upgrade.plan.compose import make_plan
    from podwire.upgrade.rehearsal.read import read_source

    planned = read_plan(plan_file) if plan_file is not None else None
    targets = targets_of(target, **{key: options[key] for key in PLANNED}) if target is not None else None
    client = client_of(kubeconfig)
    try:
        inventory = await read_inventory(client)
        plan = make_plan(inventory, targets) if targets is not None else planned
        assert plan is not None
        if blockers := [str(finding) for finding in plan.findings if finding.severity == "blocker"]:
            raise ConfigError(f"plan {plan.id}", "findings", "; ".join(blockers))
        if all(step.action == "manual" for step in plan.steps):
            raise ConfigError(f"plan {plan.id}", "steps", "has no step that this command does: there is nothing to try")
        return await read_source(client, inventory, plan)
    finally:
        await client.close()


def _own_command() -> "OwnCommand":
    from podwire.local import builds
    from podwire.upgrade.rehearsal.settings import OwnCommand

    own = builds.own()
    return OwnCommand(command=tuple(builds.command()), environment={"PYTHONPATH": own.root, builds.VARIABLE: own.label})


def _bring_up(name: str, document: dict[str, Any], say: Callable[[str], None]) -> None:
    """Makes the local cluster that is the copy.

    Raises: ConfigError, ClusterError.
    """
    from podwire.local import bring_up
    from podwire.local.config import ClusterConfig, check_config
    from podwire.model.document import convert

    config = convert(document, ClusterConfig, "the copy")
    check_config(config, "the copy")
    bring_up.run(bring_up.UpRequest(name=name, config=config, manifests=()), say)


def _client_of_copy(name: str) -> "Client":
    from podwire.kube.client import Client
    from podwire.kube.config import load_kubeconfig
    from podwire.local import credentials, inventory
    from podwire.runtime.clock import SystemClock

    path = credentials.kubeconfig_path(inventory.existing(name), "admin")
    return Client(load_kubeconfig(path), SystemClock())


def _remove(name: str) -> None:
    from podwire.local import inventory, teardown

    with inventory.locked(name):
        if (topology := inventory.find(name)) is not None:
            teardown.destroy(topology)
        inventory.forget_lock(name)
