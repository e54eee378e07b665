"""Creates the ServiceAccount ``default`` and the ConfigMap ``kube-root-ca.crt`` in every namespace.

Cost: two writes per namespace. Source: ``k8s.io/kubernetes/pkg/controller/serviceaccount``,
``pkg/controller/certificates/rootcacertpublisher``.
"""

from pathlib import Path
from typing import Any

from podwire.errors import AlreadyExists, NotFound
from podwire.kube.controller import Environment
from podwire.kube.resources import CONFIGMAPS, NAMESPACES, SERVICEACCOUNTS, Json
from podwire.model.meta import Object
from podwire.runtime.supervise import Supervisor

ROOT_CA = "kube-root-ca.crt"
_NOTE = (
    "Contains a CA bundle that can be used to verify the kube-apiserver when using internal endpoints "
    "such as the internal service IP or kubernetes.default.svc. No other usage is guaranteed across distributions "
    "of Kubernetes clusters."
)


class ServiceAccountController:
    """Keeps both objects in every namespace that is not being deleted; without ``ca_file`` only the ServiceAccount."""

    def __init__(self, environment: Environment, ca_file: str) -> None:
        self._client = environment.client
        self._ca = Path(ca_file).read_text() if ca_file else ""
        self._namespaces = environment.of(NAMESPACES)
        self._accounts = environment.of(SERVICEACCOUNTS)
        self._maps = environment.of(CONFIGMAPS)
        self._loop = environment.loop("serviceaccount", self._reconcile)
        self._namespaces.subscribe(self._namespace_changed)
        self._accounts.subscribe(self._content_changed)
        self._maps.subscribe(self._content_changed)

    def start(self, supervisor: Supervisor) -> None:
        """Starts the loop."""
        self._loop.start(supervisor)

    def _namespace_changed(self, key: str, old: Object | None, new: Object | None) -> None:
        if new is not None and (old is None or old.metadata.uid != new.metadata.uid):
            self._loop.touch(key)

    def _content_changed(self, key: str, old: Any, new: Any) -> None:
        namespace, _, name = key.partition("/")
        if old is not None and name in ("default", ROOT_CA) and (new is None or name == ROOT_CA):
            self._loop.touch(namespace)

    async def _reconcile(self, key: str) -> None:
        namespace = self._namespaces.get(key)
        if namespace is None or namespace.metadata.deletion_timestamp is not None:
            return
        if self._accounts.get(f"{key}/default") is None:
            account = {
                "apiVersion": "v1",
                "kind": "ServiceAccount",
                "metadata": {"name": "default", "namespace": key},
            }
            await self._create(SERVICEACCOUNTS, account, key)
        if not self._ca:
            return
        config_map = self._maps.get(f"{key}/{ROOT_CA}")
        data = {"ca.crt": self._ca}
        if config_map is None:
            meta: Json = {
                "name": ROOT_CA,
                "namespace": key,
                "annotations": {"kubernetes.io/description": _NOTE},
            }
            body = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": meta, "data": data}
            await self._create(CONFIGMAPS, body, key)
        elif config_map.get("data") != data:
            await self._client.patch(CONFIGMAPS, ROOT_CA, {"data": data}, key)

    async def _create(self, resource: Any, body: Json, namespace: str) -> None:
        try:
            await self._client.create(resource, body, namespace)
        except (AlreadyExists, NotFound):
            return
