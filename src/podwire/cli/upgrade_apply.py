"""The commands ``podwire upgrade apply``, ``rollback`` and ``status``."""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from podwire.cli.options import SECONDS, kubeconfig_option, output_option
from podwire.cli.upgrade_backup import namespace_option, node_options
from podwire.cli.upgrade_plan import digests_of, plan_now, target_options, targets_of

if TYPE_CHECKING:
    from podwire.upgrade.apply.run import ApplyOptions
    from podwire.upgrade.plan.values import UpgradePlan

_REWRITING = ("mirrors", "digests_file")
"""Parameters that also change a plan of a file."""
PLANNED = ("images", *_REWRITING, "max_unavailable", "zones", "canary", "new_defaults")
"""Parameters of the plan that `--to` makes."""
_probes_option = click.option("--no-probes", is_flag=True, help="Try no connections after waves.")
_timeout_option = click.option(
    "--timeout", type=SECONDS, default=300.0, show_default=True, metavar="SECONDS", help="Time for a pod to be ready."
)


@click.command()
@node_options
@_probes_option
@_timeout_option
@click.option("--plan", "plan_file", metavar="FILE", help="The output of `podwire upgrade plan -o json`.")
@click.option("--to", "target", metavar="VERSION", help="Plan for a Kubernetes version, 1.36 or 1.36.1, and apply.")
@target_options
@click.option("--pause", type=SECONDS, metavar="SECONDS", help="Pause between two waves.")
@click.option("--registry", default="", metavar="HOST[/PATH]", help="Registry of all new images.")
@click.option("--require-digests", is_flag=True, help="Refuse new images without a digest.")
@click.option("--force-conflicts", is_flag=True, help="Change fields of controllers that may write them again.")
@click.option("--proof", metavar="FOLDER", help="Run numbered flows meanwhile, and write the loss proof there.")
@click.option(
    "--proof-balancers", is_flag=True,
    help="Flows of the proof also use a load balancer and an Ingress of others, which a cloud may bill.",
)  # fmt: skip
@click.option("--no-rollback", is_flag=True, help="When a gate fails, leave the step as it is.")
def apply(kubeconfig: str | None, plan_file: str | None, target: str | None, **options: Any) -> None:
    """Upgrade wave by wave of nodes, with checks (gates) after each wave.

    When a gate fails, its step is rolled back, and the command ends with exit status 1. To continue a run that was
    interrupted, repeat the command; --plan and --to are not needed then.
    """
    if plan_file is not None and target is not None:
        raise click.UsageError("expected either --plan or --to")
    chosen = {name: options.pop(name) for name in PLANNED}
    plan = None
    if target is not None:
        plan = plan_now(kubeconfig, targets_of(target, **chosen))
    else:
        _refuse_ignored(has_plan=plan_file is not None)
    if plan_file is not None:
        plan = read_plan(plan_file)
    if plan is not None:
        plan = _rewritten(plan, options, chosen)
    _run("apply", kubeconfig, options | {"planned_now": target is not None}, plan)


def _refuse_ignored(*, has_plan: bool) -> None:
    """Refuses options that only say something when this command makes the plan.

    Raises: click.UsageError.
    """
    context = click.get_current_context()
    for parameter in context.command.params:
        name = parameter.name or ""
        is_typed = context.get_parameter_source(name) is not click.core.ParameterSource.DEFAULT
        if name in PLANNED and is_typed and not (has_plan and name in _REWRITING):
            raise click.UsageError(f"{parameter.opts[0]} needs --to, since the plan decides it")


@click.command()
@node_options
@_timeout_option
def rollback(kubeconfig: str | None, **options: Any) -> None:
    """Take back all steps of the last upgrade, the last one first; possible at every moment of an upgrade."""
    _run("rollback", kubeconfig, options, None)


@click.command()
@kubeconfig_option
@namespace_option
@output_option
def status(kubeconfig: str | None, namespace: str, output: str) -> None:
    """Show which steps of the upgrade are done."""
    import asyncio

    from podwire.cli.api import client_of
    from podwire.cli.output import print_json
    from podwire.upgrade.apply import run

    client = client_of(kubeconfig)

    async def read() -> Mapping[str, str]:
        try:
            return await run.status(client, namespace)
        finally:
            await client.close()

    states = asyncio.run(read())
    if output == "json":
        print_json(states)
        return
    for name, state in states.items():
        click.echo(f"{name}: {state}")


def read_plan(plan_file: str) -> "UpgradePlan":
    """The plan of a file.

    Raises: ConfigError.
    """
    from podwire.errors import ConfigError
    from podwire.upgrade.plan.values import parse_plan

    try:
        return parse_plan(Path(plan_file).read_bytes(), plan_file)
    except OSError as failure:
        raise ConfigError("--plan", "", f"{plan_file} cannot be read: {failure.strerror}") from failure


def _rewritten(plan: "UpgradePlan", options: Mapping[str, Any], chosen: Mapping[str, Any]) -> "UpgradePlan":
    from podwire.upgrade import imagemap
    from podwire.upgrade.plan.targets import parse_mirrors

    rules = imagemap.ImageRules(
        mirrors=parse_mirrors(chosen["mirrors"], "--mirror"),
        digests=digests_of(chosen["digests_file"]),
        registry=options["registry"],
        require_digests=options["require_digests"],
    )
    return imagemap.rewritten(plan, rules)


def _options(options: Mapping[str, Any]) -> "ApplyOptions":
    from podwire.upgrade.apply.run import ApplyOptions
    from podwire.upgrade.apply.steps import StepOptions
    from podwire.upgrade.nodepods import NodeFolders

    return ApplyOptions(
        namespace=options["namespace"],
        image=options["node_image"],
        folders=NodeFolders(conf_dir=options["cni_conf_dir"], bin_dir=options["cni_bin_dir"]),
        probes=not options.get("no_probes", True),
        take_over=options.get("force_conflicts", False),
        roll_back=not options.get("no_rollback", False),
        planned_now=options.get("planned_now", False),
        step=StepOptions(timeout_s=options["timeout"], pause_s=options.get("pause") or 0.0),
    )


def _run(action: str, kubeconfig: str | None, options: Mapping[str, Any], plan: "UpgradePlan | None") -> None:
    import asyncio

    from podwire.cli.api import client_of
    from podwire.kube.alone import run_alone
    from podwire.upgrade.apply.record import NAME
    from podwire.upgrade.apply.run import UpgradeRun
    from podwire.upgrade.lossgate import ProofOptions, flow_gate

    client = client_of(kubeconfig)
    settings = _options(options)
    folder = options.get("proof")

    async def run() -> None:
        try:
            gate = None
            if folder:
                proof = ProofOptions(
                    folder=Path(folder),
                    namespace=settings.namespace,
                    image=settings.image,
                    balancers=options["proof_balancers"],
                )
                gate = await flow_gate(client, proof, click.echo)
            upgrade = UpgradeRun(client, settings, gate.say if gate is not None else click.echo, gate)
            body = (lambda: upgrade.apply(plan)) if action == "apply" else upgrade.rollback
            await run_alone(client, settings.namespace, NAME, body)
        finally:
            await client.close()

    asyncio.run(run())
