"""Gives a new pod the token of its ServiceAccount.

The rules are those of Kubernetes' plugin ServiceAccount. A pod without an account gets ``default``. Every container
gets a projected volume with a token, the cluster's root certificate and the namespace, unless pod or account switch
this off. The account's pull secrets are copied to a pod without pull secrets.
"""

from collections.abc import Mapping
from typing import Any

from podwire.embedded.apiserver import failures, strategies
from podwire.embedded.apiserver.admission.chain import AdmissionContext, AdmissionRequest
from podwire.embedded.apiserver.defaults import pods

_ACCOUNTS = "/serviceaccounts"
_MIRROR = "kubernetes.io/config.mirror"


class ServiceAccountAdmission:
    """Looks up accounts."""

    tables = frozenset({"/pods"})

    def __init__(self, context: AdmissionContext) -> None:
        self._store = context.store

    def mutate(self, request: AdmissionRequest) -> None:
        """Adds account, pull secrets and token.

        Raises: Forbidden when the account does not exist.
        """
        if not request.creates:
            return
        pod, namespace = request.obj, request.call.namespace
        if _MIRROR in (pod["metadata"].get("annotations") or {}):
            return
        spec = pod["spec"]
        name = spec["serviceAccountName"]
        entry = self._store.get(_ACCOUNTS, namespace, name)
        if entry is None:
            problem = f'error looking up service account {namespace}/{name}: serviceaccount "{name}" not found'
            raise failures.forbidden(request.call.kind, request.name, problem)
        account: Mapping[str, Any] = entry.object()
        if not spec.get("imagePullSecrets") and account.get("imagePullSecrets"):
            spec["imagePullSecrets"] = [dict(secret) for secret in account["imagePullSecrets"]]
        automount = spec.get("automountServiceAccountToken")
        if (account.get("automountServiceAccountToken") if automount is None else automount) is not False:
            pods.mount_token(pod, strategies.generate_name(pods.TOKEN_VOLUME))
