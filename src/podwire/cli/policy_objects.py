"""All objects on which the verdicts of policies depend: from files, or from a cluster's API."""

import asyncio
import os
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, TypeVar

import click
import msgspec

from podwire.cli.api import client_of
from podwire.cluster.world import World
from podwire.errors import ApiError, ApiUnreachable, ClusterError, ConfigError, ProtocolError
from podwire.kube.client import Client
from podwire.kube.config import named_kubeconfig
from podwire.kube.optional import list_if_served
from podwire.kube.resources import (
    CLUSTERNETWORKPOLICIES,
    NAMESPACES,
    NETWORKPOLICIES,
    NODES,
    PODS,
    SERVICECIDRS,
    SERVICES,
)
from podwire.local import credentials, inventory
from podwire.model.meta import Fact, Object, key_of
from podwire.policy.check.context import ClusterDetails

T = TypeVar("T")

_APPLIED = "kubectl.kubernetes.io/last-applied-configuration"
"""The annotation in which kubectl keeps the applied manifest."""


class PolicyObjects(NamedTuple):
    """A cluster as policies see it, and the files and lines of its objects."""

    world: World
    details: ClusterDetails
    line: Callable[[str, str, str], str]
    """``file:line`` of a field, by kind, key and path; empty for an object that is in no file."""
    notes: tuple[str, ...]


def objects_of_files(paths: tuple[str, ...], *, recursive: bool = False) -> PolicyObjects:
    """The cluster that files and folders describe; ``recursive`` includes the folders below each folder.

    Prints the documents of folders that are no manifests on standard error.

    Raises: ConfigError naming file, line and field of what is wrong.
    """
    from podwire.local.offline.cluster import describe

    description = describe(paths, recursive=recursive)
    for note in description.passed_over:
        click.echo(note, err=True)
    pods_in_files = {key for kind, key in description.manifests if kind == "Pod"}
    have_addresses = all(
        key_of(pod.metadata) in pods_in_files
        and description.manifests["Pod", key_of(pod.metadata)].body.get("status", {}).get("podIP")
        for pod in description.world.pods
    )
    details = ClusterDetails(
        services=description.services,
        service_cidrs=description.service_cidrs,
        pod_cidrs=description.cluster_cidrs,
        complete=False,
        assumed_addresses=not have_addresses,
        written={f"{kind} {key}": manifest.body for (kind, key), manifest in description.manifests.items()},
        duplicates=description.duplicates,
        unenforced=description.unenforced,
        operated=description.operated,
    )
    return PolicyObjects(description.world, details, description.line, description.notes)


def objects_of_cluster(name: str, kubeconfig: str | None, *, named: bool) -> PolicyObjects:
    """A running cluster: the local cluster of a name, or the cluster of a kubeconfig.

    Raises: ConfigError (exit status 2), also when there is no such cluster or its API does not answer: exit status 1
    stands for findings and differences.
    """
    chosen = kubeconfig or named_kubeconfig(os.environ)
    try:
        if named or not chosen:
            chosen = str(credentials.kubeconfig_path(inventory.existing(name), "admin"))
        return asyncio.run(_read(chosen))
    except (ClusterError, ApiError, ApiUnreachable, ProtocolError) as failure:
        raise ConfigError("the cluster", "", str(failure)) from failure


async def _read(kubeconfig: str) -> PolicyObjects:
    client = client_of(kubeconfig)
    try:
        return await read_objects(client)
    finally:
        await client.close()


async def read_objects(client: Client) -> PolicyObjects:
    """The objects of a cluster.

    Raises: ApiError.
    """
    world = World(
        pods=(await client.list(PODS)).items,
        namespaces=tuple(Object(metadata=namespace.metadata) for namespace in (await client.list(NAMESPACES)).items),
        nodes=(await client.list(NODES)).items,
        policies=(await client.list(NETWORKPOLICIES)).items,
        cluster_policies=await list_if_served(client, CLUSTERNETWORKPOLICIES),
    )
    cidrs = await list_if_served(client, SERVICECIDRS)
    details = ClusterDetails(
        services=(await client.list(SERVICES)).items,
        service_cidrs=tuple(cidr for service_cidr in cidrs for cidr in service_cidr.get("spec", {}).get("cidrs", ())),
        pod_cidrs=tuple(cidr for node in world.nodes for cidr in node.pod_cidrs),
        written={name: body for policy in world.policies for name, body in _written("NetworkPolicy", policy)},
    )
    return PolicyObjects(world, details, lambda _kind, _key, _field: "", ())


def _written(kind: str, policy: Any) -> list[tuple[str, Mapping[str, Any]]]:
    """The manifest that kubectl applied, if there is one and its rules are still those of the object."""
    text = policy.metadata.annotations.get(_APPLIED, "")
    if not text:
        return []
    try:
        body = msgspec.json.decode(text, type=dict[str, Any])
        read: Fact = msgspec.convert(body, type(policy))
    except msgspec.MsgspecError:
        return []
    same = all(_rules(read, section) == _rules(policy, section) for section in ("ingress", "egress"))
    return [(f"{kind} {key_of(policy.metadata)}", body)] if same else []


def _rules(policy: Any, section: str) -> int:
    return len(getattr(policy.spec, section))
