"""The chain of admission plugins that every write passes.

First the mutating plugins run one after the other, then the object is validated, then the validating plugins run. The
order is that of Kubernetes (``pkg/kubeapiserver/options/plugins.go``).

A plugin is a class that takes an :class:`AdmissionContext`, with one or both of these methods:

- ``mutate(request)`` changes ``request.obj`` in place, or sets it to another object. The object has its defaults.
- ``validate(request)`` looks at the object as it will be stored.

Both raise ApiError to refuse the write. A plugin for a few kinds names their tables in its attribute ``tables``, and
runs for these alone. A plugin without ``tables`` runs for every write, so it must return quickly when it has nothing to
do. A plugin that has to wait returns a generator (see :mod:`podwire.embedded.apiserver.waits`); other plugins return
None. When a plugin sets ``request.again``, all mutating plugins run a second time.
"""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Literal

import msgspec

from podwire.embedded.apiserver.authorization.authorizer import Authorizer
from podwire.embedded.apiserver.calls import Call
from podwire.embedded.apiserver.dial import ServiceDialer
from podwire.embedded.apiserver.kinds import Key, ResourceKind
from podwire.embedded.apiserver.schema.data import SchemaNode
from podwire.embedded.apiserver.store import Store, StoredObject
from podwire.embedded.apiserver.waits import Waits
from podwire.errors import ApiError
from podwire.runtime.clock import Clock
from podwire.runtime.registry import Registry

Object = dict[str, Any]
Operation = Literal["CREATE", "UPDATE", "DELETE", "CONNECT"]

PLUGINS: Registry[Any] = Registry(
    "admission plugin",
    "admission",
    {
        "LimitRanger": "podwire.embedded.apiserver.admission.limitranger:LimitRanger",
        "ServiceAccount": "podwire.embedded.apiserver.admission.serviceaccount:ServiceAccountAdmission",
        "NodeRestriction": "podwire.embedded.apiserver.authorization.noderestriction:NodeRestriction",
        "Priority": "podwire.embedded.apiserver.admission.priority:PriorityAdmission",
        "PodSecurity": "podwire.embedded.apiserver.admission.podsecurity.plugin:PodSecurityAdmission",
        "DefaultStorageClass": "podwire.embedded.apiserver.admission.storage:DefaultStorageClass",
        "StorageObjectInUseProtection": "podwire.embedded.apiserver.admission.storage:StorageObjectInUseProtection",
        "CertificateRequests": "podwire.embedded.apiserver.admission.certificates:CertificateRequestAdmission",
        "PersistentVolumeClaimResize": "podwire.embedded.apiserver.admission.storage:ClaimResize",
        "RuntimeClass": "podwire.embedded.apiserver.admission.runtimeclass:RuntimeClassAdmission",
        "MutatingAdmissionPolicy": ("podwire.embedded.apiserver.admission.policies.mutating:MutatingAdmissionPolicy"),
        "MutatingAdmissionWebhook": "podwire.embedded.apiserver.admission.webhooks:MutatingAdmissionWebhook",
        "ValidatingAdmissionPolicy": (
            "podwire.embedded.apiserver.admission.policies.validating:ValidatingAdmissionPolicy"
        ),
        "ValidatingAdmissionWebhook": "podwire.embedded.apiserver.admission.webhooks:ValidatingAdmissionWebhook",
        "PolicyParameterAccess": "podwire.embedded.apiserver.admission.policies.parameters:PolicyParameterAccess",
        "RoleEscalation": "podwire.embedded.apiserver.authorization.escalation:EscalationCheck",
        "ResourceQuota": "podwire.embedded.apiserver.admission.quota.plugin:ResourceQuotaAdmission",
    },
)
"""Every plugin by its name, in the order in which plugins run."""


class AdmissionContext(msgspec.Struct, frozen=True):
    """The dependencies of plugins."""

    store: Store
    kinds: Mapping[Key, ResourceKind]
    authorizer: Authorizer
    clock: Clock
    decode: Callable[[Call, Object], Object]
    """A changed object, with its defaults and without unknown fields; raises ApiError 400."""
    schema: Callable[[ResourceKind], SchemaNode]
    """The schema of a kind's objects."""
    endpoints: ServiceDialer
    """Opens connections to Services."""
    convert: Callable[[ResourceKind, Sequence[Object]], Awaitable[list[Object] | ApiError]]
    """Custom objects in the version of a kind, where a webhook converts them."""
    view: Callable[[ResourceKind, StoredObject], Waits[Object]]
    """A stored object in the version of a kind; raises ApiError when a conversion webhook fails."""


class AdmissionRequest:
    """One write on its way to the store."""

    __slots__ = ("again", "call", "invoked", "obj", "old", "operation", "options", "repeated", "table", "waited")

    def __init__(
        self,
        call: Call,
        operation: Operation,
        obj: Object | None,
        old: Object | None = None,
        options: Mapping[str, Any] | None = None,
    ) -> None:
        self.call = call
        self.table = call.kind.table
        """The store's table of the kind, ``/pods``."""
        self.operation = operation
        self.obj: Object = obj if obj is not None else {}
        """The new object, or the body of a subresource; empty for a deletion."""
        self.old: Object = old if old is not None else {}
        """The object in the store; empty for a creation."""
        self.options = options or {}
        """The DeleteOptions of a deletion."""
        self.again = False
        """Whether the mutating plugins shall run a second time."""
        self.repeated = False
        """Whether the mutating plugins are running for the second time."""
        self.waited = False
        """Whether other writes may have been made since the request began."""
        self.invoked: dict[str, Any] = {}
        """What plugins keep from the first run for the second, by plugin name."""

    @property
    def creates(self) -> bool:
        """Whether the request creates an object of the kind itself, not of a subresource."""
        return self.operation == "CREATE" and not self.call.subresource

    @property
    def name(self) -> str:
        """The name of the object; empty when it has none yet."""
        return self.call.name or str((self.obj.get("metadata") or {}).get("name") or "")


Step = Callable[[AdmissionRequest], Waits[None] | None]


class _Steps:
    """The plugins that have one of the two methods, by the table of a request."""

    def __init__(self, plugins: Sequence[Any], method: str) -> None:
        self._asked = [
            (getattr(plugin, "tables", None), getattr(plugin, method)) for plugin in plugins if hasattr(plugin, method)
        ]
        self._by_table: dict[str, tuple[Step, ...]] = {}

    def ask(self, request: AdmissionRequest) -> Waits[None]:
        table = request.table
        steps = self._by_table.get(table)
        if steps is None:
            chosen = (step for tables, step in self._asked if tables is None or table in tables)
            steps = self._by_table[table] = tuple(chosen)
        for step in steps:
            waits = step(request)
            if waits is not None:
                request.waited = True
                yield from waits


class AdmissionChain:
    """Runs all plugins."""

    def __init__(self, context: AdmissionContext) -> None:
        plugins = [PLUGINS.load(name)(context) for name in PLUGINS]
        self._mutating = _Steps(plugins, "mutate")
        self._validating = _Steps(plugins, "validate")

    def mutate(self, request: AdmissionRequest) -> Waits[None]:
        """Lets the plugins complete and change the object.

        Raises: ApiError when a plugin refuses the request.
        """
        yield from self._mutating.ask(request)
        if request.again:
            request.repeated = True
            yield from self._mutating.ask(request)

    def validate(self, request: AdmissionRequest) -> Waits[None]:
        """Lets the plugins look at the object as it will be stored.

        Raises: ApiError when a plugin refuses the request.
        """
        yield from self._validating.ask(request)
