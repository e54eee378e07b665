"""The commands ``podwire upgrade apply``, ``rollback`` and ``status``."""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from podwire.cli.options import SECONDS, kubeconfig_option, output_option
from podwire.cli.upgrade_backup import bin_option, conf_option, image_option, namespace_option

if TYPE_CHECKING:
    from podwire.upgrade.apply.run import ApplyOptions
    from podwire.upgrade.plan.values import UpgradePlan

_probes_option = click.option("--no-probes", is_flag=True, help="Try no connections after waves.")
_timeout_option = click.option(
    "--timeout", type=SECONDS, default=300.0, show_default=True, metavar="SECONDS", help="Time for a pod to be ready."
)


@click.command()
@kubeconfig_option
@namespace_option
@image_option
@conf_option
@bin_option
@_probes_option
@_timeout_option
@click.option("--plan", "plan_file", metavar="FILE", help="A plan of `podwire upgrade plan -o json`.")
@click.option("--pause", type=SECONDS, metavar="SECONDS", help="Pause between two waves.")
@click.option("--registry", default="", metavar="HOST[/PATH]", help="Registry of all new images.")
@click.option("--image-map", metavar="FILE", help="YAML with mirrors and digests of images.")
@click.option("--require-digests", is_flag=True, help="Refuse new images without a digest.")
@click.option("--force-conflicts", is_flag=True, help="Change fields of controllers that may write them again.")
@click.option("--no-rollback", is_flag=True, help="Leave a step whose gate does not hold as it is.")
def apply(kubeconfig: str | None, plan_file: str | None, **options: Any) -> None:
    """Do the steps of a plan, with gates after each wave of nodes.

    A step whose gate does not hold is rolled back, and the command ends with status 1. A run that was interrupted
    continues with the same command; without --plan it continues the upgrade that is in progress.
    """
    plan = _rewritten(_read(plan_file), options) if plan_file is not None else None
    _run("apply", kubeconfig, options, plan)


@click.command()
@kubeconfig_option
@namespace_option
@image_option
@conf_option
@bin_option
@_timeout_option
def rollback(kubeconfig: str | None, **options: Any) -> None:
    """Take the steps of the last upgrade back, the last one first; possible at every moment of an upgrade."""
    _run("rollback", kubeconfig, options, None)


@click.command()
@kubeconfig_option
@namespace_option
@output_option
def status(kubeconfig: str | None, namespace: str, output: str) -> None:
    """Show how far the upgrade is."""
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


def _read(plan_file: str) -> "UpgradePlan":
    from podwire.errors import ConfigError
    from podwire.upgrade.plan.values import parse_plan

    try:
        return parse_plan(Path(plan_file).read_bytes(), plan_file)
    except OSError as failure:
        raise ConfigError("--plan", "", f"{plan_file} cannot be read: {failure.strerror}") from failure


def _rewritten(plan: "UpgradePlan", options: Mapping[str, Any]) -> "UpgradePlan":
    import yaml

    from podwire.errors import ConfigError
    from podwire.upgrade import imagemap

    tables, file = imagemap.ImageMap(), options["image_map"]
    if file is not None:
        try:
            tables = imagemap.parse_map(yaml.safe_load(Path(file).read_bytes()), file)
        except OSError as failure:
            raise ConfigError("--image-map", "", f"{file} cannot be read: {failure.strerror}") from failure
        except yaml.YAMLError as failure:
            raise ConfigError(file, "", f"is not YAML: {failure}") from failure
    rules = imagemap.ImageRules(
        mirrors=tables.mirrors,
        digests=tables.digests,
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
        image=options["image"],
        folders=NodeFolders(conf_dir=options["cni_conf_dir"], bin_dir=options["cni_bin_dir"]),
        probes=not options.get("no_probes", True),
        take_over=options.get("force_conflicts", False),
        roll_back=not options.get("no_rollback", False),
        step=StepOptions(timeout_s=options["timeout"], pause_s=options.get("pause") or 0.0),
    )


def _run(action: str, kubeconfig: str | None, options: Mapping[str, Any], plan: "UpgradePlan | None") -> None:
    import asyncio

    from podwire.cli.api import client_of
    from podwire.kube.alone import run_alone
    from podwire.upgrade.apply.record import NAME
    from podwire.upgrade.apply.run import UpgradeRun

    client = client_of(kubeconfig)
    settings = _options(options)
    upgrade = UpgradeRun(client, settings, click.echo)

    async def run() -> None:
        try:
            body = (lambda: upgrade.apply(plan)) if action == "apply" else upgrade.rollback
            await run_alone(client, settings.namespace, NAME, body)
        finally:
            await client.close()

    asyncio.run(run())
