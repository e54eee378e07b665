"""The command ``podwire gateway migrate``."""

import asyncio
from typing import TYPE_CHECKING, Any, TypeVar

import click
import msgspec
import yaml

from podwire.cli.options import kubeconfig_option, recursive_option
from podwire.cli.output import print_json
from podwire.errors import ConfigError

if TYPE_CHECKING:
    from podwire.gateway.migrate.plan import MigrationFacts
    from podwire.local.manifests import Manifest

T = TypeVar("T")
_DEFAULT_NAMESPACE = "default"
_HELP = """Translate Ingresses of ingress-nginx into objects of Gateway API.

The command prints one Gateway, HTTPRoutes and ReferenceGrants. On standard error it reports what these objects cannot
express, with object and field. It changes nothing in the cluster: apply the objects, compare both, then move the
clients. docs/gateway.md lists what is translated.

An Ingress with annotations that restrict access (address ranges, passwords, certificates) is left out, because its
routes would be open to all clients; --open-routes includes it.

\b
podwire gateway migrate --gateway web/front > gateway.yaml
podwire gateway migrate -f manifests/ -o json
"""


@click.command(help=_HELP)
@click.option("-f", "--filename", "files", multiple=True, metavar="PATH", help="Manifest file or folder; - is stdin.")
@recursive_option
@kubeconfig_option
@click.option(
    "--gateway", default="default/ingress", show_default=True, metavar="NAMESPACE/NAME", help="Name of the Gateway."
)
@click.option("--gateway-class", default="podwire", show_default=True, metavar="NAME", help="Class of the Gateway.")
@click.option("--ingress-class", "classes", multiple=True, metavar="NAME", help="Only Ingresses of these classes.")
@click.option("-n", "--namespace", "namespaces", multiple=True, metavar="NAME", help="Only these namespaces.")
@click.option("--settings", metavar="NAMESPACE/NAME", default="", help="The ConfigMap of ingress-nginx.")
@click.option(
    "--open-routes", is_flag=True, help="Also translate Ingresses that restrict access; all clients may use the routes."
)
@click.option(
    "-o", "--output", type=click.Choice(("yaml", "json")), default="yaml", show_default=True, help="Output format."
)
def migrate(  # noqa: PLR0913 - one parameter an option, as click calls it
    files: tuple[str, ...],
    recursive: bool,
    kubeconfig: str | None,
    gateway: str,
    gateway_class: str,
    classes: tuple[str, ...],
    namespaces: tuple[str, ...],
    settings: str,
    open_routes: bool,
    output: str,
) -> int:
    """Prints the objects and the report."""
    from podwire.gateway.ingress.classes import default_class
    from podwire.gateway.migrate.plan import migrate as plan_of
    from podwire.gateway.migrate.selection import selected

    for option, text in (("--gateway", gateway), ("--settings", settings)):
        if text and (text.count("/") != 1 or not all(text.split("/"))):
            raise ConfigError(option, "", f"expected NAMESPACE/NAME, got {text!r}")
    if files:
        from podwire.local.manifests import read_manifests

        facts, ingress_classes = _facts_of_files(read_manifests(files, recursive=recursive), settings)
    else:
        facts, ingress_classes = asyncio.run(_facts_of_cluster(kubeconfig, settings))
    chosen = selected(facts.ingresses, default_class(ingress_classes), classes, namespaces)
    facts = msgspec.structs.replace(
        facts, ingresses=chosen, gateway=gateway, gateway_class=gateway_class, open_routes=open_routes
    )
    plan = plan_of(facts)
    if output == "json":
        print_json(plan)
        return 0
    click.echo(yaml.safe_dump_all(plan.objects, sort_keys=False), nl=False)
    for lost in plan.lost:
        click.echo(f"not carried over: {lost.object} {lost.field}: {lost.text}", err=True)
    return 0


def _facts_of_files(manifests: "tuple[Manifest, ...]", settings: str) -> "tuple[MigrationFacts, Any]":
    from podwire.gateway.ingress.settings import read_defaults
    from podwire.gateway.migrate.plan import MigrationFacts
    from podwire.model.ingress import Ingress, IngressClass
    from podwire.model.meta import key_of
    from podwire.model.service import Service

    ingresses = _read(manifests, "networking.k8s.io/v1", "Ingress", Ingress)
    services = _read(manifests, "v1", "Service", Service)
    maps = {
        f"{body['metadata'].get('namespace', _DEFAULT_NAMESPACE)}/{body['metadata']['name']}": body.get("data") or {}
        for body in (manifest.body for manifest in manifests)
        if body["kind"] == "ConfigMap"
    }
    if settings and settings not in maps:
        raise ConfigError("--settings", "", f"no file has the ConfigMap {settings}")
    facts = MigrationFacts(
        ingresses=ingresses,
        gateway="",
        services={key_of(service.metadata): service for service in services},
        defaults=read_defaults(maps.get(settings, {}))[0],
    )
    return facts, _read(manifests, "networking.k8s.io/v1", "IngressClass", IngressClass)


def _read(manifests: "tuple[Manifest, ...]", version: str, kind: str, shape: type[T]) -> tuple[T, ...]:
    """The objects of a kind.

    Raises: ConfigError naming file, line and field.
    """
    result = []
    for manifest in manifests:
        body = manifest.body
        if (body.get("apiVersion"), body["kind"]) != (version, kind):
            continue
        meta = {"namespace": _DEFAULT_NAMESPACE, **body["metadata"]}
        try:
            result.append(msgspec.convert({**body, "metadata": meta}, shape))
        except msgspec.ValidationError as failure:
            raise ConfigError(manifest.source, f"{kind} {meta['name']}", str(failure)) from failure
    return tuple(result)


async def _facts_of_cluster(kubeconfig: str | None, settings: str) -> "tuple[MigrationFacts, Any]":
    from podwire.cli.api import client_of
    from podwire.gateway.ingress.settings import read_defaults
    from podwire.gateway.migrate.plan import MigrationFacts
    from podwire.kube.resources import CONFIGMAPS, INGRESSCLASSES, INGRESSES, SERVICES
    from podwire.model.meta import key_of

    client = client_of(kubeconfig)
    try:
        namespace, _, name = settings.partition("/")
        config_map = await client.get(CONFIGMAPS, name, namespace) if settings else {}
        facts = MigrationFacts(
            ingresses=tuple((await client.list(INGRESSES)).items),
            gateway="",
            services={key_of(item.metadata): item for item in (await client.list(SERVICES)).items},
            defaults=read_defaults(config_map.get("data") or {})[0],
        )
        return facts, tuple((await client.list(INGRESSCLASSES)).items)
    finally:
        await client.close()
