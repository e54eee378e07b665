"""The command ``podwire install``."""

import asyncio
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from podwire.cli.options import SECONDS, kubeconfig_option

if TYPE_CHECKING:
    from podwire.kube.config import ApiConfig
    from podwire.kube.resources import Json


class InstallOptions(NamedTuple):
    """The options of the command, and where the objects come from."""

    source: str
    dry_run: bool
    force: bool
    wait_s: float


@click.command()
@kubeconfig_option
@click.option("--chart", metavar="FOLDER", help="The Helm chart, deploy/helm/podwire; Helm renders it.")
@click.option("--values", "values", metavar="FILE", multiple=True, help="Values of the chart; can be repeated.")
@click.option("--set", "settings", metavar="KEY=VALUE", multiple=True, help="A value of the chart; can be repeated.")
@click.option("--manifest", metavar="FILE", help="In place of a chart: a rendered manifest, as in deploy/manifests.")
@click.option("--dry-run", is_flag=True, help="Show what the API server would do, and change nothing.")
@click.option("--force", is_flag=True, help="Install although the cluster has faults.")
@click.option(
    "--wait", "wait_s", type=SECONDS, default=300.0, show_default=True, help="Limit until all pods are ready."
)
def install(
    kubeconfig: str | None,
    chart: str | None,
    manifest: str | None,
    values: tuple[str, ...],
    settings: tuple[str, ...],
    **options: Any,
) -> int:
    """Install podwire in a cluster, or change the installation.

    The command first checks the cluster: other networks, kube-proxy, another DNS server, ranges that do not fit. With a
    fault it ends with exit status 1 and changes nothing. Then it applies the objects by server-side apply, and waits
    until all pods are ready. You can repeat it. The exit status is 2 when the input is wrong.

    \b
    podwire install --chart deploy/helm/podwire --set api.host=192.0.2.10 --dry-run
    podwire install --manifest deploy/manifests/beside-kube-proxy.yaml
    """
    from podwire.errors import ConfigError
    from podwire.install import cluster
    from podwire.kube.config import load

    if bool(chart) == bool(manifest):
        raise ConfigError("podwire install", "", "expected exactly one of --chart and --manifest")
    if manifest and (values or settings):
        raise ConfigError("--manifest", "", "a manifest is rendered already; --values and --set go with --chart")
    objects = cluster.render(Path(chart), values, settings) if chart else cluster.read_manifest(Path(str(manifest)))
    config = load(kubeconfig, os.environ)
    return asyncio.run(_install(config, objects, InstallOptions(source=chart or str(manifest), **options)))


async def _install(config: "ApiConfig", objects: "tuple[Json, ...]", options: InstallOptions) -> int:
    from podwire.install import cluster, clusterchecks
    from podwire.install.objects import MANAGER
    from podwire.kube.client import Client
    from podwire.runtime.clock import SystemClock

    asked = clusterchecks.chart_settings(objects, options.source)
    client = Client(config, SystemClock(), manager=MANAGER)
    try:
        findings = clusterchecks.find(await cluster.read_facts(client), asked)
        for finding in findings:
            click.echo(str(finding), err=True)
        faults = any(finding.level == "fault" for finding in findings)
        if faults and not (options.force or options.dry_run):
            click.echo("nothing was changed; --force installs although there are faults", err=True)
            return 1
        await cluster.apply(client, objects, click.echo, dry=options.dry_run)
        if not options.dry_run:
            await cluster.wait(client, objects, options.wait_s)
            click.echo("all pods are ready")
        return 1 if faults else 0
    finally:
        await client.close()
