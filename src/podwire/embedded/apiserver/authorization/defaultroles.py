"""The roles that every cluster has: those of Kubernetes 1.36 for people, tools and components, and podwire's own.

A role is a tuple of rules, which ``_on`` and ``_at`` write in one line each. Controllers of podwire that patch where
those of Kubernetes update hold both verbs. Roles of controllers that a local cluster does not run are left out.
Source of names and rules: ``k8s.io/kubernetes/plugin/pkg/auth/authorizer/rbac/bootstrappolicy``.
"""

from collections.abc import Mapping

from podwire.embedded.apiserver.authorization.rules import FULL_AUTHORITY, PolicyRule

Rules = tuple[PolicyRule, ...]

_READ = "get list watch"
_FOLLOW = "list watch"
_CHANGE = "create delete deletecollection patch update"
_STATUS = "patch update"
_RBAC = "rbac.authorization.k8s.io"
_CERTIFICATES = "certificates.k8s.io"
_POLICY = "policy.networking.k8s.io"
_OWN = "podwire.io"
_METALLB = "metallb.io"
_METALLB_KINDS = "ipaddresspools l2advertisements bgpadvertisements bgppeers communities bfdprofiles"
_METALLB_STATUSES = "servicel2statuses servicel2statuses/status servicebgpstatuses servicebgpstatuses/status"


def _on(verbs: str, resources: str, groups: str = "core", names: str = "") -> PolicyRule:
    """A rule on resources; the group ``core`` is the one without a name."""
    api_groups = tuple("" if group == "core" else group for group in groups.split())
    return PolicyRule(tuple(verbs.split()), api_groups, tuple(resources.split()), tuple(names.split()))


def _at(urls: str) -> PolicyRule:
    """A rule to GET URLs."""
    return PolicyRule(("get",), non_resource_urls=tuple(urls.split()))


_EVENTS = _on("create patch update", "events", "core events.k8s.io")
_REVIEWS = (
    _on("create", "tokenreviews", "authentication.k8s.io"),
    _on("create", "subjectaccessreviews", "authorization.k8s.io"),
)

_PEOPLE: Mapping[str, Rules] = {
    "cluster-admin": FULL_AUTHORITY,
    "system:basic-user": (
        _on("create", "selfsubjectaccessreviews selfsubjectrulesreviews", "authorization.k8s.io"),
        _on("create", "selfsubjectreviews", "authentication.k8s.io"),
    ),
    "system:discovery": (
        _at("/api /api/* /apis /apis/* /healthz /livez /openapi /openapi/* /readyz /version /version/"),
    ),
    "system:public-info-viewer": (_at("/healthz /livez /readyz /version /version/"),),
    "system:monitoring": (_at("/healthz /healthz/* /livez /livez/* /metrics /metrics/slis /readyz /readyz/*"),),
    "system:service-account-issuer-discovery": (_at("/.well-known/openid-configuration /openid/v1/jwks"),),
}

_AGGREGATED: Mapping[str, Rules] = {
    "system:aggregate-to-admin": (
        _on("create", "localsubjectaccessreviews", "authorization.k8s.io"),
        _on(f"{_CHANGE} {_READ}", "rolebindings roles", _RBAC),
    ),
    "system:aggregate-to-edit": (
        _on(_READ, "pods/attach pods/exec pods/portforward pods/proxy secrets services/proxy"),
        _on("impersonate", "serviceaccounts"),
        _on(_CHANGE, "pods pods/attach pods/exec pods/portforward pods/proxy"),
        _on("create", "pods/eviction"),
        _on(
            _CHANGE,
            "configmaps events persistentvolumeclaims replicationcontrollers replicationcontrollers/scale secrets "
            "serviceaccounts services services/proxy",
        ),
        _on("create", "serviceaccounts/token"),
        _on(
            _CHANGE,
            "daemonsets deployments deployments/rollback deployments/scale replicasets replicasets/scale "
            "statefulsets statefulsets/scale",
            "apps",
        ),
        _on(_CHANGE, "horizontalpodautoscalers", "autoscaling"),
        _on(_CHANGE, "cronjobs jobs", "batch"),
        _on(
            _CHANGE,
            "daemonsets deployments deployments/rollback deployments/scale ingresses networkpolicies replicasets "
            "replicasets/scale replicationcontrollers/scale",
            "extensions",
        ),
        _on(_CHANGE, "poddisruptionbudgets", "policy"),
        _on(_CHANGE, "ingresses networkpolicies", "networking.k8s.io"),
        _on(f"{_CHANGE} {_READ}", "leases", "coordination.k8s.io"),
        _on(_CHANGE, "resourceclaims resourceclaimtemplates", "resource.k8s.io"),
    ),
    "system:aggregate-to-view": (
        _on(
            _READ,
            "configmaps endpoints persistentvolumeclaims persistentvolumeclaims/status pods replicationcontrollers "
            "replicationcontrollers/scale serviceaccounts services services/status",
        ),
        _on(
            _READ,
            "bindings events limitranges namespaces/status pods/log pods/status replicationcontrollers/status "
            "resourcequotas resourcequotas/status",
        ),
        _on(_READ, "namespaces"),
        _on(_READ, "endpointslices", "discovery.k8s.io"),
        _on(
            _READ,
            "controllerrevisions daemonsets daemonsets/status deployments deployments/scale deployments/status "
            "replicasets replicasets/scale replicasets/status statefulsets statefulsets/scale statefulsets/status",
            "apps",
        ),
        _on(_READ, "horizontalpodautoscalers horizontalpodautoscalers/status", "autoscaling"),
        _on(_READ, "cronjobs cronjobs/status jobs jobs/status", "batch"),
        _on(
            _READ,
            "daemonsets daemonsets/status deployments deployments/scale deployments/status ingresses "
            "ingresses/status networkpolicies replicasets replicasets/scale replicasets/status "
            "replicationcontrollers/scale",
            "extensions",
        ),
        _on(_READ, "poddisruptionbudgets poddisruptionbudgets/status", "policy"),
        _on(_READ, "ingresses ingresses/status networkpolicies", "networking.k8s.io"),
        _on(_READ, "resourceclaims resourceclaims/status resourceclaimtemplates", "resource.k8s.io"),
    ),
}
"""The roles whose rules ``admin``, ``edit`` and ``view`` collect."""

NODE: Rules = (
    _on("create", "tokenreviews", "authentication.k8s.io"),
    _on("create", "localsubjectaccessreviews subjectaccessreviews", "authorization.k8s.io"),
    _on(_READ, "services"),
    _on(f"create {_READ}", "nodes"),
    _on(_STATUS, "nodes/status"),
    _on(_STATUS, "nodes"),
    _on("create patch update", "events"),
    _on(_READ, "pods"),
    _on("create delete", "pods"),
    _on(_STATUS, "pods/status"),
    _on("create", "pods/eviction"),
    _on(_READ, "configmaps secrets"),
    _on("get", "persistentvolumeclaims persistentvolumes"),
    _on("get", "endpoints"),
    _on(f"create {_READ}", "certificatesigningrequests", _CERTIFICATES),
    _on("create delete get patch update", "leases", "coordination.k8s.io"),
    _on("get", "volumeattachments", "storage.k8s.io"),
    _on("create", "serviceaccounts/token"),
    _on("get patch update", "persistentvolumeclaims/status"),
    _on(_READ, "csidrivers", "storage.k8s.io"),
    _on("create delete get patch update", "csinodes", "storage.k8s.io"),
    _on(_READ, "runtimeclasses", "node.k8s.io"),
)
"""What a node may do as far as it is not narrowed to the node's own objects."""

_TOOLS: Mapping[str, Rules] = {
    "system:auth-delegator": _REVIEWS,
    "system:heapster": (_on(_READ, "events namespaces nodes pods"), _on(_READ, "deployments", "extensions")),
    "system:kube-aggregator": (_on(_READ, "endpoints services"),),
    "system:kube-dns": (_on(_FOLLOW, "endpoints services"),),
    "system:kubelet-api-admin": (
        _on(_READ, "nodes"),
        _on("proxy", "nodes"),
        _on("*", "nodes/log nodes/metrics nodes/proxy nodes/stats"),
    ),
    "system:node": NODE,
    "system:node-bootstrapper": (_on(f"create {_READ}", "certificatesigningrequests", _CERTIFICATES),),
    "system:node-problem-detector": (_on("get", "nodes"), _on("patch", "nodes/status"), _EVENTS),
    "system:node-proxier": (
        _on(_FOLLOW, "endpoints services"),
        _on(_READ, "nodes"),
        _EVENTS,
        _on(_FOLLOW, "endpointslices", "discovery.k8s.io"),
        _on(_FOLLOW, "servicecidrs", "networking.k8s.io"),
    ),
    "system:persistent-volume-provisioner": (
        _on(f"create delete {_READ}", "persistentvolumes"),
        _on(f"update {_READ}", "persistentvolumeclaims"),
        _on(_READ, "storageclasses", "storage.k8s.io"),
        _on("watch", "events"),
        _EVENTS,
    ),
    "system:certificates.k8s.io:certificatesigningrequests:nodeclient": (
        _on("create", "certificatesigningrequests/nodeclient", _CERTIFICATES),
    ),
    "system:certificates.k8s.io:certificatesigningrequests:selfnodeclient": (
        _on("create", "certificatesigningrequests/selfnodeclient", _CERTIFICATES),
    ),
    **{
        f"system:certificates.k8s.io:{signer}-approver": (
            _on("approve", "signers", _CERTIFICATES, f"kubernetes.io/{signer}"),
        )
        for signer in ("kube-apiserver-client", "kube-apiserver-client-kubelet", "kubelet-serving", "legacy-unknown")
    },
}

_COMPONENTS: Mapping[str, Rules] = {
    "system:kube-controller-manager": (
        _EVENTS,
        _on("create", "leases", "coordination.k8s.io"),
        _on("get update", "leases", "coordination.k8s.io", "kube-controller-manager"),
        _on("create", "secrets serviceaccounts"),
        _on("delete", "secrets"),
        _on("get", "configmaps namespaces secrets serviceaccounts"),
        _on("update", "secrets serviceaccounts"),
        *_REVIEWS,
        _on(_FOLLOW, "*", "*"),
        _on("create", "serviceaccounts/token"),
    ),
    "system:kube-scheduler": (
        _EVENTS,
        _on("create", "leases", "coordination.k8s.io"),
        _on("get update", "leases", "coordination.k8s.io", "kube-scheduler"),
        _on(_READ, "nodes"),
        _on(f"delete {_READ}", "pods"),
        _on("create", "bindings pods/binding"),
        _on(_STATUS, "pods/status"),
        _on(_READ, "replicationcontrollers services"),
        _on(_READ, "replicasets", "apps extensions"),
        _on(_READ, "statefulsets", "apps"),
        _on(_READ, "poddisruptionbudgets", "policy"),
        _on(_READ, "persistentvolumeclaims persistentvolumes"),
        *_REVIEWS,
        _on(_READ, "csinodes", "storage.k8s.io"),
        _on(_READ, "namespaces"),
        _on(_READ, "csidrivers", "storage.k8s.io"),
        _on(_READ, "csistoragecapacities", "storage.k8s.io"),
    ),
    "system:volume-scheduler": (
        _on(f"{_STATUS} {_READ}", "persistentvolumes"),
        _on(_READ, "storageclasses", "storage.k8s.io"),
        _on(f"{_STATUS} {_READ}", "persistentvolumeclaims"),
    ),
    "podwire:agent": (
        _on(_READ, "nodes pods namespaces services"),
        _on("patch", "nodes nodes/status"),
        _on(_READ, "endpointslices", "discovery.k8s.io"),
        _on(_READ, "networkpolicies servicecidrs clusternetworkpolicies", f"networking.k8s.io {_POLICY}"),
        _on(_READ, "bgpconfigurations bgppeers bgpfilters ippools", "projectcalico.org"),
        _on(_READ, "egresspolicies", _OWN),
        _on(f"create delete patch {_READ}", "ipamblocks", _OWN),
        _on(_READ, _METALLB_KINDS, _METALLB),
        _on(f"create delete patch {_READ}", _METALLB_STATUSES, _METALLB),
        _EVENTS,
    ),
    "podwire:policystatus": (
        _on("patch", "networkpolicies clusternetworkpolicies", f"networking.k8s.io {_POLICY}"),
        _EVENTS,
    ),
    "podwire:ipamblocks": (_on(f"delete patch {_READ}", "ipamblocks", _OWN),),
    "podwire:egress": (_on("patch", "egresspolicies/status", _OWN), _EVENTS),
    "podwire:loadbalancer": (
        _on(f"patch {_READ}", "ipaddresspools ipaddresspools/status", _METALLB),
        _on(_READ, "namespaces"),
        _on(f"patch {_READ}", "services"),
        _on("patch", "services/status"),
        _EVENTS,
    ),
}

CONTROLLERS: Mapping[str, Rules] = {
    "certificate-controller": (
        _on(f"delete {_READ}", "certificatesigningrequests", _CERTIFICATES),
        _on(_STATUS, "certificatesigningrequests/status", _CERTIFICATES),
        _on(
            "sign",
            "signers",
            _CERTIFICATES,
            "kubernetes.io/kube-apiserver-client kubernetes.io/kube-apiserver-client-kubelet "
            "kubernetes.io/kubelet-serving kubernetes.io/legacy-unknown",
        ),
        _EVENTS,
    ),
    "clusterrole-aggregation-controller": (_on(f"escalate {_STATUS} {_READ}", "clusterroles", _RBAC),),
    "cronjob-controller": (
        _on(f"update {_READ}", "cronjobs", "batch"),
        _on(f"create delete {_STATUS} {_READ}", "jobs", "batch"),
        _on(_STATUS, "cronjobs/status", "batch"),
        _on("update", "cronjobs/finalizers", "batch"),
        _on("delete list watch", "pods"),
        _EVENTS,
    ),
    "daemon-set-controller": (
        _on(_READ, "daemonsets", "apps extensions"),
        _on(_STATUS, "daemonsets/status", "apps extensions"),
        _on("update", "daemonsets/finalizers", "apps extensions"),
        _on(_FOLLOW, "nodes"),
        _on("create delete list patch watch", "pods"),
        _on("create", "pods/binding"),
        _on(f"create delete {_STATUS} {_READ}", "controllerrevisions", "apps"),
        _EVENTS,
    ),
    "deployment-controller": (
        _on(f"{_STATUS} {_READ}", "deployments", "apps extensions"),
        _on(_STATUS, "deployments/status", "apps extensions"),
        _on("update", "deployments/finalizers", "apps extensions"),
        _on(f"create delete {_STATUS} {_READ}", "replicasets", "apps extensions"),
        _on(f"update {_READ}", "pods"),
        _EVENTS,
    ),
    "disruption-controller": (
        _on(_READ, "deployments", "apps extensions"),
        _on(_READ, "replicasets", "apps extensions"),
        _on(_READ, "replicationcontrollers"),
        _on(_READ, "poddisruptionbudgets", "policy"),
        _on(_READ, "statefulsets", "apps"),
        _on(_STATUS, "poddisruptionbudgets/status", "policy"),
        _on(_STATUS, "pods/status"),
        _on("get", "*/scale", "*"),
        _EVENTS,
    ),
    "endpoint-controller": (
        _on(_READ, "pods services"),
        _on(f"create delete update {_READ}", "endpoints"),
        _on("create", "endpoints/restricted"),
        _EVENTS,
    ),
    "endpointslice-controller": (
        _on(_READ, "nodes pods services"),
        _on("update", "services/finalizers"),
        _on(f"create delete update {_READ}", "endpointslices", "discovery.k8s.io"),
        _EVENTS,
    ),
    "endpointslicemirroring-controller": (
        _on(_READ, "endpoints services"),
        _on("update", "services/finalizers"),
        _on("update", "endpoints/finalizers"),
        _on(f"create delete update {_READ}", "endpointslices", "discovery.k8s.io"),
        _EVENTS,
    ),
    "generic-garbage-collector": (_on(f"delete {_STATUS} {_READ}", "*", "*"), _EVENTS),
    "horizontal-pod-autoscaler": (
        _on(_READ, "horizontalpodautoscalers", "autoscaling"),
        _on(_STATUS, "horizontalpodautoscalers/status", "autoscaling"),
        _on("get update", "*/scale", "*"),
        _on("list", "pods"),
        _on("list", "pods", "metrics.k8s.io"),
        _on("get list", "*", "custom.metrics.k8s.io"),
        _on("get list", "*", "external.metrics.k8s.io"),
        _EVENTS,
    ),
    "job-controller": (
        _on(f"delete {_STATUS} {_READ}", "jobs", "batch"),
        _on(_STATUS, "jobs/status", "batch"),
        _on("update", "jobs/finalizers", "batch"),
        _on("create delete list patch watch", "pods"),
        _EVENTS,
    ),
    "namespace-controller": (
        _on(f"delete {_READ}", "namespaces"),
        _on("update", "namespaces/finalize namespaces/status"),
        _on(f"delete deletecollection {_READ}", "*", "*"),
    ),
    "node-controller": (
        _on(f"delete {_STATUS} {_READ}", "nodes"),
        _on(_STATUS, "nodes/status"),
        _on(_STATUS, "pods/status"),
        _on(f"delete {_READ}", "pods"),
        _EVENTS,
    ),
    "persistent-volume-binder": (
        _on(f"create delete {_STATUS} {_READ}", "persistentvolumes"),
        _on(_STATUS, "persistentvolumes/status"),
        _on(f"{_STATUS} {_READ}", "persistentvolumeclaims"),
        _on(_STATUS, "persistentvolumeclaims/status"),
        _on(f"create delete {_READ}", "pods"),
        _on(_READ, "storageclasses", "storage.k8s.io"),
        _on(_FOLLOW, "nodes"),
        _EVENTS,
        _on("watch", "events"),
    ),
    "replicaset-controller": (
        _on(f"update {_READ}", "replicasets", "apps extensions"),
        _on(_STATUS, "replicasets/status", "apps extensions"),
        _on("update", "replicasets/finalizers", "apps extensions"),
        _on("create delete list patch watch", "pods"),
        _EVENTS,
    ),
    "replication-controller": (
        _on(f"update {_READ}", "replicationcontrollers"),
        _on(_STATUS, "replicationcontrollers/status"),
        _on("update", "replicationcontrollers/finalizers"),
        _on("create delete list patch watch", "pods"),
        _EVENTS,
    ),
    "root-ca-cert-publisher": (_on("create patch update", "configmaps"), _EVENTS),
    "service-account-controller": (_on("create", "serviceaccounts"), _EVENTS),
    "service-controller": (
        _on(f"{_STATUS} {_READ}", "services"),
        _on(_STATUS, "services/status"),
        _on(_FOLLOW, "nodes"),
        _EVENTS,
    ),
    "statefulset-controller": (
        _on(_FOLLOW, "pods"),
        _on(_READ, "statefulsets", "apps"),
        _on(_STATUS, "statefulsets/status", "apps"),
        _on("update", "statefulsets/finalizers", "apps"),
        _on("create delete get patch update", "pods"),
        _on(f"create delete {_STATUS} {_READ}", "controllerrevisions", "apps"),
        _on(f"create {_READ}", "persistentvolumeclaims"),
        _on("delete patch update", "persistentvolumeclaims"),
        _on("update", "pods/finalizers"),
        _EVENTS,
    ),
}
"""The roles of single controllers, by the controller's name: ``system:controller:NAME``."""

_METRICS: Mapping[str, Rules] = {"system:aggregated-metrics-reader": (_on(_READ, "pods nodes", "metrics.k8s.io"),)}
"""The role of metrics-server's manifests."""

CLUSTER_ROLES: Mapping[str, Rules] = {
    **_PEOPLE,
    **_AGGREGATED,
    **_TOOLS,
    **_METRICS,
    **_COMPONENTS,
    **{f"system:controller:{name}": rules for name, rules in CONTROLLERS.items()},
}
"""Every default ClusterRole with its own rules."""

COLLECTING = ("admin", "edit", "view")
"""The ClusterRoles whose rules come from the roles with the label ``aggregate-to-NAME``, each in the one before."""

AGGREGATE_TO: Mapping[str, tuple[str, ...]] = {
    **{f"system:aggregate-to-{name}": (name,) for name in COLLECTING},
    "system:aggregated-metrics-reader": ("view", "edit", "admin"),
    "edit": ("admin",),
    "view": ("edit",),
}
"""Which ClusterRoles collect the rules of another one."""

ROLES: Mapping[tuple[str, str], Rules] = {
    ("kube-system", "extension-apiserver-authentication-reader"): (
        _on(_READ, "configmaps", names="extension-apiserver-authentication"),
    ),
    ("kube-system", "system::leader-locking-kube-controller-manager"): (
        _on("create list update get watch", "leases", "coordination.k8s.io"),
    ),
    ("kube-system", "system::leader-locking-kube-scheduler"): (
        _on("create list update get watch", "leases", "coordination.k8s.io"),
    ),
    # The records of who holds each address of a load balancer.
    ("kube-system", "podwire:loadbalancer"): (_on(f"create update {_READ}", "configmaps"),),
    # The settings of the network, passwords of BGP, the report of the policies in force, and Leases of egress nodes.
    ("kube-system", "podwire:agent"): (
        _on(_READ, "configmaps", names="podwire-config"),
        _on(_READ, "secrets", names="bgp-secrets"),
        _on("create delete get patch", "configmaps"),
        _on(f"create delete patch {_READ}", "leases", "coordination.k8s.io"),
    ),
}
"""Every default Role by namespace and name."""

_USER, _GROUP, _ACCOUNT = "User", "Group", "ServiceAccount"
_MANAGER = (_USER, "system:kube-controller-manager")
_EVERYBODY = ((_GROUP, "system:authenticated"), (_GROUP, "system:unauthenticated"))
_SIGNED_IN = ((_GROUP, "system:authenticated"),)
_AGENTS = (_GROUP, "podwire:agents")

Subjects = tuple[tuple[str, str], ...]

CLUSTER_ROLE_BINDINGS: Mapping[str, Subjects] = {
    "cluster-admin": ((_GROUP, "system:masters"),),
    "system:monitoring": ((_GROUP, "system:monitoring"),),
    "system:discovery": _SIGNED_IN,
    "system:basic-user": _SIGNED_IN,
    "system:public-info-viewer": _EVERYBODY,
    "system:node-proxier": ((_USER, "system:kube-proxy"),),
    "system:kube-controller-manager": (_MANAGER,),
    "system:kube-dns": ((_ACCOUNT, "kube-dns"),),
    "system:kube-scheduler": ((_USER, "system:kube-scheduler"),),
    "system:volume-scheduler": ((_USER, "system:kube-scheduler"),),
    "system:node": (),
    "system:service-account-issuer-discovery": ((_GROUP, "system:serviceaccounts"),),
    "podwire:agent": (_AGENTS,),
    "podwire:policystatus": (_MANAGER,),
    "podwire:ipamblocks": (_MANAGER,),
    "podwire:egress": (_MANAGER,),
    "podwire:loadbalancer": (_MANAGER,),
    # One process runs all controllers, under one name; the accounts are those that Kubernetes' controllers have.
    **{f"system:controller:{name}": ((_ACCOUNT, name), _MANAGER) for name in CONTROLLERS},
}
"""Subjects of every default ClusterRoleBinding, which has the name of its role; accounts are in kube-system."""

ROLE_BINDINGS: Mapping[tuple[str, str], tuple[str, Subjects]] = {
    ("kube-system", "system::extension-apiserver-authentication-reader"): (
        "extension-apiserver-authentication-reader",
        ((_USER, "system:kube-controller-manager"), (_USER, "system:kube-scheduler")),
    ),
    ("kube-system", "system::leader-locking-kube-controller-manager"): (
        "system::leader-locking-kube-controller-manager",
        (_MANAGER, (_ACCOUNT, "kube-controller-manager")),
    ),
    ("kube-system", "system::leader-locking-kube-scheduler"): (
        "system::leader-locking-kube-scheduler",
        ((_USER, "system:kube-scheduler"), (_ACCOUNT, "kube-scheduler")),
    ),
    ("kube-system", "podwire:agent"): ("podwire:agent", (_AGENTS,)),
    ("kube-system", "podwire:loadbalancer"): ("podwire:loadbalancer", (_MANAGER,)),
}
"""Role and subjects of every default RoleBinding by namespace and name."""
