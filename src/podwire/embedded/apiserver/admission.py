"""Admission of new Pods: sets the priority, and mounts the token of the ServiceAccount.

The rules are those of Kubernetes' plugins Priority and ServiceAccount. A pod without an account gets ``default``. Every
container gets a projected volume with a token, the cluster's root certificate and the namespace, unless pod or account
switch this off. The account's pull secrets are copied to a pod without pull secrets.
"""

from collections.abc import Mapping
from typing import Any

from podwire.embedded.apiserver import failures, strategies
from podwire.embedded.apiserver.calls import Call
from podwire.embedded.apiserver.defaults import pods
from podwire.embedded.apiserver.kinds import KINDS
from podwire.embedded.apiserver.store import Store

Object = dict[str, Any]

_PRIORITIES = "scheduling.k8s.io/priorityclasses"
_ACCOUNTS = KINDS["", "v1", "serviceaccounts"]
_MIRROR = "kubernetes.io/config.mirror"


class AdmissionPlugins:
    """Completes new pods from stored objects (account, priority class)."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def complete(self, call: Call, pod: Object) -> None:
        """Adds priority, account and token to a new pod, in place.

        Raises: Forbidden when its priority class or its account does not exist.
        """
        self._set_priority(call, pod)
        if _MIRROR not in (pod["metadata"].get("annotations") or {}):
            self._set_account(call, pod)

    def _set_priority(self, call: Call, pod: Object) -> None:
        """Sets the priority of the pod's class, or of the default class when the pod names no class, or 0."""
        spec = pod["spec"]
        name = spec.get("priorityClassName")
        if name:
            entry = self._store.get(_PRIORITIES, "", str(name))
            if entry is None:
                problem = f"no PriorityClass with name {name} was found"
                raise failures.forbidden(call.kind, pod["metadata"].get("name", ""), problem)
            found: Object = entry.object()
        else:
            classes = (entry.object() for entry in self._store.entries(_PRIORITIES))
            found = next((c for c in classes if c.get("globalDefault")), {"value": 0})
        spec["priority"] = found.get("value", 0)
        spec["preemptionPolicy"] = found.get("preemptionPolicy") or "PreemptLowerPriority"

    def _set_account(self, call: Call, pod: Object) -> None:
        spec = pod["spec"]
        name = spec["serviceAccountName"]
        entry = self._store.get(_ACCOUNTS.table, call.namespace, name)
        if entry is None:
            problem = (
                f'error looking up service account {call.namespace}/{name}: serviceaccount "{name}" not found'
            )  # fmt: skip
            raise failures.forbidden(call.kind, pod["metadata"].get("name", ""), problem)
        account: Mapping[str, Any] = entry.object()
        if not spec.get("imagePullSecrets") and account.get("imagePullSecrets"):
            spec["imagePullSecrets"] = [dict(secret) for secret in account["imagePullSecrets"]]
        wanted = spec.get("automountServiceAccountToken")
        if (account.get("automountServiceAccountToken") if wanted is None else wanted) is not False:
            pods.mount_token(pod, strategies.generate_name(pods.TOKEN_VOLUME))
