"""Which classes of load balancers and Ingresses podwire serves in a cluster.

A Service of type LoadBalancer, or an Ingress, may cost money where a cloud serves it. The flows of a proof use these
only where podwire serves them, or where the user asks for them.
"""

from typing import Any

import yaml

from podwire.cluster.names import INGRESS_CONTROLLER
from podwire.errors import ApiError, NotFound
from podwire.kube.client import Client
from podwire.kube.resources import CONFIGMAPS, INGRESSCLASSES
from podwire.model.meta import Fact
from podwire.upgrade.inventory.servers import own_version

CONTROLLER = "podwire-controller"
_LOCAL = "+podwire"
"""What the version of a local cluster has."""


class ServedClasses(Fact, frozen=True, kw_only=True):
    """Classes for the flows of a proof: a name, empty for the cluster's default, None: none is used."""

    balancer: str | None = None
    ingress: str | None = None


ANY_CLASS = ServedClasses(balancer="", ingress="")
"""The defaults of the cluster, whoever serves them."""


async def own_classes(client: Client, namespace: str, *, installed: bool) -> ServedClasses:
    """The classes that podwire serves; ``namespace`` has podwire's controller, where podwire is ``installed``.

    A local cluster in which nothing was installed has podwire's controllers as processes, with the default classes.

    Raises: ApiError, ApiUnreachable.
    """
    if not installed and _LOCAL in await own_version(client):
        return ANY_CLASS
    try:
        data = (await client.get(CONFIGMAPS, CONTROLLER, namespace)).get("data") or {}
    except NotFound:
        data = {}
    try:
        classes = (await client.list(INGRESSCLASSES)).items
    except ApiError as failure:
        if failure.code not in (403, 404):
            raise
        classes = ()
    served = [item.metadata.name for item in classes if item.spec.controller == INGRESS_CONTROLLER]
    return ServedClasses(
        balancer=balancer_class(str(data.get("controller.yaml", ""))), ingress=served[0] if served else None
    )


def balancer_class(text: str) -> str | None:
    """The class that podwire's controller serves, by its configuration; None when it serves none."""
    try:
        document: Any = yaml.safe_load(text)
    except (yaml.YAMLError, RecursionError):
        return None
    section = document.get("controller") if isinstance(document, dict) else None
    if not isinstance(section, dict) or "loadbalancer" not in (section.get("parts") or ()):
        return None
    return str(section.get("loadBalancerClass") or "")
