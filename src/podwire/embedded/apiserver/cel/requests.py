"""The variables of match conditions and admission policies, with their types.

``object``, ``oldObject`` and ``params`` are of any type. Source: ``k8s.io/apiserver/pkg/admission/plugin/cel``
(``compile.go``).
"""

from podwire.embedded.apiserver.cel.environment import MESSAGES

_GROUP_KIND = MESSAGES.put(
    "kubernetes.GroupVersionKind", {"group": "string", "version": "string", "kind": "string"}
)  # fmt: skip
_GROUP_RESOURCE = MESSAGES.put(
    "kubernetes.GroupVersionResource", {"group": "string", "version": "string", "resource": "string"}
)  # fmt: skip
_USER = MESSAGES.put(
    "kubernetes.UserInfo",
    {"username": "string", "uid": "string", "groups": "list(string)", "extra": "map(string,list(string))"},
)
_REQUEST = MESSAGES.put(
    "kubernetes.AdmissionRequest",
    {
        "kind": _GROUP_KIND, "resource": _GROUP_RESOURCE, "subResource": "string", "requestKind": _GROUP_KIND,
        "requestResource": _GROUP_RESOURCE, "requestSubResource": "string", "name": "string", "namespace": "string",
        "operation": "string", "userInfo": _USER, "dryRun": "bool", "options": "dyn",
    },
)  # fmt: skip
_NAMESPACE = MESSAGES.put(
    "kubernetes.Namespace",
    {
        "metadata": MESSAGES.put(
            "kubernetes.NamespaceMetadata",
            {
                "name": "string", "generateName": "string", "namespace": "string", "labels": "map(string,string)",
                "annotations": "map(string,string)", "UID": "string", "creationTimestamp": "timestamp",
                "deletionGracePeriodSeconds": "int", "deletionTimestamp": "timestamp", "generation": "int",
                "resourceVersion": "string", "finalizers": "list(string)",
            },
        ),
        "spec": MESSAGES.put("kubernetes.NamespaceSpec", {"finalizers": "list(string)"}),
        "status": MESSAGES.put(
            "kubernetes.NamespaceStatus",
            {
                "phase": "string",
                "conditions": "list({})".format(
                    MESSAGES.put(
                        "kubernetes.NamespaceCondition",
                        {
                            "status": "string", "type": "string", "lastTransitionTime": "timestamp",
                            "message": "string", "reason": "string",
                        },
                    )
                ),
            },
        ),
    },
)  # fmt: skip
AUTHORIZER = "kubernetes.authorization.Authorizer"


def variables(*, params: bool, authorizer: bool = True) -> dict[str, str]:
    """The types of all variables; ``params`` and ``authorizer`` only where the expression may use them."""
    declarations = {"object": "dyn", "oldObject": "dyn", "request": _REQUEST, "namespaceObject": _NAMESPACE}
    if authorizer:
        declarations["authorizer"] = AUTHORIZER
    return {**declarations, "params": "dyn"} if params else declarations
