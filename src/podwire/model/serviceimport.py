"""ServiceImport (``multicluster.x-k8s.io/v1alpha1``): a Service of a set of clusters, KEP 1645."""

from podwire.model.meta import Fact, ObjectMeta
from podwire.model.service import ServicePort

IMPORT_NAME_LABEL = "multicluster.kubernetes.io/service-name"
"""The label of an EndpointSlice that names its ServiceImport."""
SOURCE_CLUSTER_LABEL = "multicluster.kubernetes.io/source-cluster"
"""The label of an EndpointSlice that names the cluster of its endpoints."""


class ServiceImportSpec(Fact, frozen=True):
    """``type`` is ClusterSetIP or Headless."""

    type: str = "ClusterSetIP"
    ips: tuple[str, ...] = ()
    ports: tuple[ServicePort, ...] = ()


class ServiceImport(Fact, frozen=True):
    """A Service that other clusters export."""

    api_version: str = "multicluster.x-k8s.io/v1alpha1"
    kind: str = "ServiceImport"
    metadata: ObjectMeta = ObjectMeta()
    spec: ServiceImportSpec = ServiceImportSpec()
