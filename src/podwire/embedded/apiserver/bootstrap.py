"""Creates the objects of a new cluster: namespaces, priority classes, the default StorageClass, the Service
``kubernetes``.

Missing objects are created, and existing ones are left alone. Only the ``kubernetes`` Service and its endpoints are
updated to the advertised addresses. A namespace gets its ServiceAccount ``default`` together with its creation, not
later from a controller, so that it accepts pods at once.
"""

from typing import Any

from podwire.cluster.names import FOLDER_PROVISIONER
from podwire.embedded.apiserver.calls import Call, ResourcePath, UserInfo
from podwire.embedded.apiserver.kinds import KINDS, ResourceKind
from podwire.embedded.apiserver.settings import ApiServerSettings
from podwire.embedded.apiserver.store import ObjectChange, Store
from podwire.embedded.apiserver.waits import complete
from podwire.embedded.apiserver.writes import Writer
from podwire.http.message import Request
from podwire.model.service import EndpointSlice
from podwire.model.storage import DEFAULT_CLASS

Object = dict[str, Any]

SYSTEM = UserInfo("system:apiserver", ("system:masters",))

_NAMESPACES = ("default", "kube-system", "kube-public", "kube-node-lease")
_PRIORITIES = {"system-node-critical": 2000001000, "system-cluster-critical": 2000000000}
_ACCOUNTS = KINDS["", "v1", "serviceaccounts"]
_SLICES = KINDS["discovery.k8s.io", "v1", "endpointslices"]


def internal_call(kind: ResourceKind, namespace: str, name: str = "", subresource: str = "") -> Call:
    """A call of the server on itself."""
    request = Request("POST", "/", {"user-agent": "podwire-apiserver/1"}, b"")
    call = Call(request, SYSTEM, ResourcePath(kind, namespace, name, subresource))
    call.internal = True
    return call


def fill(store: Store, writer: Writer, settings: ApiServerSettings) -> None:
    """Creates the missing objects."""

    def ensure(kind: ResourceKind, namespace: str, name: str, obj: Object) -> None:
        if store.get(kind.table, namespace, name) is None:
            complete(writer.create(internal_call(kind, namespace, name), obj))

    for name in _NAMESPACES:
        ensure(KINDS["", "v1", "namespaces"], "", name, {"metadata": {"name": name}})
    for name, value in _PRIORITIES.items():
        ensure(
            KINDS["scheduling.k8s.io", "v1", "priorityclasses"], "", name,
            {
                "metadata": {"name": name}, "value": value, "globalDefault": False,
                "description": "Used for system critical pods.",
            },
        )  # fmt: skip
    ensure(
        KINDS["networking.k8s.io", "v1", "servicecidrs"], "", "kubernetes",
        {"metadata": {"name": "kubernetes"}, "spec": {"cidrs": list(settings.service_cidrs)}},
    )  # fmt: skip
    ensure(
        KINDS["storage.k8s.io", "v1", "storageclasses"], "", "standard",
        {
            "metadata": {"name": "standard", "annotations": {DEFAULT_CLASS: "true"}},
            "provisioner": FOLDER_PROVISIONER, "reclaimPolicy": "Delete", "volumeBindingMode": "Immediate",
            "allowVolumeExpansion": True,
        },
    )  # fmt: skip
    address = settings.kubernetes_ip()
    ensure(
        KINDS["", "v1", "services"], "default", "kubernetes",
        {
            "metadata": {
                "name": "kubernetes", "labels": {"component": "apiserver", "provider": "kubernetes"},
            },
            "spec": {
                "type": "ClusterIP", "clusterIP": address, "clusterIPs": [address],
                "ipFamilies": ["IPv6" if ":" in address else "IPv4"], "ipFamilyPolicy": "SingleStack",
                "ports": [
                    {
                        "name": "https", "protocol": "TCP", "port": 443,
                        "targetPort": settings.advertise_port,
                    }
                ],
            },
        },
    )  # fmt: skip
    if settings.advertise:
        _put_endpoints(store, writer, settings)


def _put_endpoints(store: Store, writer: Writer, settings: ApiServerSettings) -> None:
    family = "IPv6" if ":" in settings.advertise[0] else EndpointSlice().address_type
    addresses = [address for address in settings.advertise if (":" in address) == (family == "IPv6")]
    port: Object = {"name": "https", "port": settings.advertise_port, "protocol": "TCP"}
    objects: tuple[tuple[ResourceKind, Object], ...] = (
        (
            KINDS["", "v1", "endpoints"],
            {
                "metadata": {
                    "name": "kubernetes", "labels": {"endpointslice.kubernetes.io/skip-mirror": "true"},
                },
                "subsets": [{"addresses": [{"ip": address} for address in addresses], "ports": [port]}],
            },
        ),
        (
            _SLICES,
            {
                "metadata": {"name": "kubernetes", "labels": {"kubernetes.io/service-name": "kubernetes"}},
                "addressType": family,
                "endpoints": [{"addresses": [address], "conditions": {"ready": True}} for address in addresses],
                "ports": [port],
            },
        ),
    )  # fmt: skip
    for kind, obj in objects:
        old = store.get(kind.table, "default", "kubernetes")
        call = internal_call(kind, "default", "kubernetes")
        if old is None:
            complete(writer.create(call, obj))
        else:
            obj["metadata"]["resourceVersion"] = str(old.version)
            complete(writer.update(call, obj))


class DefaultAccounts:
    """Creates the ServiceAccount ``default`` of every namespace, with the namespace and, where missing, at the
    start."""

    def __init__(self, store: Store, writer: Writer) -> None:
        self._store = store
        self._writer = writer

    def start(self) -> None:
        """Creates missing accounts, and follows changes from then on."""
        for entry in self._store.entries("/namespaces"):
            if entry.fields.get("status.phase") != "Terminating":
                self._ensure(entry.name)
        self._store.on_change.append(self.observe)

    def observe(self, change: ObjectChange) -> None:
        """Takes a committed change; a watcher that sees the new namespace finds its account."""
        if change.type == "ADDED" and change.entry.table == "/namespaces":
            self._ensure(change.entry.name)

    def _ensure(self, namespace: str) -> None:
        if self._store.get(_ACCOUNTS.table, namespace, "default") is None:
            complete(self._writer.create(internal_call(_ACCOUNTS, namespace), {"metadata": {"name": "default"}}))
