"""The default roles hold what podwire's components do, and no more than that in what would open a cluster."""

import pytest

from podwire.embedded.apiserver.authorization import defaultobjects
from podwire.embedded.apiserver.authorization.policy import RolePolicy
from podwire.embedded.apiserver.authorization.rules import RequestAttributes
from podwire.embedded.apiserver.calls import UserInfo

SIGNED_IN = "system:authenticated"
MANAGER = UserInfo("system:kube-controller-manager", (SIGNED_IN,))
SCHEDULER = UserInfo("system:kube-scheduler", (SIGNED_IN,))
AGENT = UserInfo("podwire:agent:node-1", ("podwire:agents", SIGNED_IN))
NOBODY = UserInfo("ann", (SIGNED_IN,))
ANONYMOUS = UserInfo("system:anonymous", ("system:unauthenticated",))

DISCOVERY, NETWORKING, RBAC = "discovery.k8s.io", "networking.k8s.io", "rbac.authorization.k8s.io"


def known() -> RolePolicy:
    policy = RolePolicy()
    for table, obj in defaultobjects.objects():
        policy.put(table, obj)
    return policy


def ask(text: str) -> RequestAttributes:
    """``verb resource[.group] [namespace/name]``, or ``verb /path``."""
    verb, subject, place = (*text.split(), "")[:3]
    if subject.startswith("/"):
        return RequestAttributes(verb, path=subject)
    target, _, group = subject.partition(".")
    plural, _, subresource = target.partition("/")
    namespace, _, name = place.partition("/")
    return RequestAttributes(verb, group, "v1", plural, subresource, namespace, name)


@pytest.mark.parametrize(
    ("user", "actions"),
    [
        (
            MANAGER,
            [
                "list pods", "watch anything.example.com", "create pods shop/", "patch pods shop/p",
                "delete pods shop/p",
                "patch deployments.apps shop/d", "patch deployments/status.apps shop/d",
                "create replicasets.apps shop/",
                "delete replicasets.apps shop/r", "patch replicasets/status.apps shop/r",
                "patch replicasets.apps shop/r",
                "patch statefulsets/status.apps shop/s", "patch daemonsets/status.apps shop/d",
                "create controllerrevisions.apps shop/", "get controllerrevisions.apps shop/c",
                "patch replicationcontrollers/status shop/r", "create persistentvolumeclaims shop/",
                "patch persistentvolumeclaims shop/c", "create jobs.batch shop/", "delete jobs.batch shop/j",
                "patch jobs/status.batch shop/j", "patch cronjobs/status.batch shop/c", "patch nodes /n",
                "patch nodes/status /n", "patch pods/status shop/p", "create endpoints shop/",
                "update endpoints shop/e",
                f"create endpointslices.{DISCOVERY} shop/", f"delete endpointslices.{DISCOVERY} shop/e",
                "patch services shop/s", "patch services/status shop/s", "create serviceaccounts shop/",
                "create configmaps shop/", "patch configmaps shop/c", "create events shop/", "patch events shop/e",
                "patch poddisruptionbudgets/status.policy shop/b", f"patch networkpolicies.{NETWORKING} shop/p",
                "patch clusternetworkpolicies.policy.networking.k8s.io /p",
                "update leases.coordination.k8s.io kube-system/podwire-controller", "get /readyz",
            ],
        ),
        (
            SCHEDULER,
            ["create pods/binding shop/p", "patch pods/status shop/p", "create events shop/", "patch events shop/e"],
        ),
        (
            AGENT,
            [
                "watch nodes", "list pods", "list namespaces", "watch services", f"list endpointslices.{DISCOVERY}",
                f"watch networkpolicies.{NETWORKING}", "list clusternetworkpolicies.policy.networking.k8s.io",
                f"list servicecidrs.{NETWORKING}", "patch nodes /node-1", "patch nodes/status /node-1",
                "list configmaps kube-system/podwire-config", "create configmaps kube-system/",
                "patch configmaps kube-system/x", "delete configmaps kube-system/x", "create events default/",
                "patch events shop/e",
            ],
        ),
        (NOBODY, ["get /api/v1", "get /openapi/v3", "create selfsubjectaccessreviews.authorization.k8s.io"]),
        (ANONYMOUS, ["get /version", "get /readyz"]),
    ],
)  # fmt: skip
def test_a_component_may_do_its_work(user: UserInfo, actions: list[str]) -> None:
    policy = known()
    assert [text for text in actions if not policy.decide(user, ask(text)).allowed] == []


@pytest.mark.parametrize(
    ("user", "actions"),
    [
        (MANAGER, [f"create clusterrolebindings.{RBAC}", "create pods/exec shop/p", "impersonate users /x"]),
        (SCHEDULER, ["create pods shop/", "list secrets", "patch nodes /n", "list configmaps shop/"]),
        (
            AGENT,
            [
                "list secrets",
                "create pods shop/",
                "patch pods shop/p",
                "list configmaps kube-system/",
                "delete nodes /n",
            ],
        ),
        (NOBODY, ["list pods", "get /metrics", "list namespaces"]),
        (ANONYMOUS, ["get /api", "get /openapi/v2", "create selfsubjectreviews.authentication.k8s.io"]),
    ],
)
def test_a_component_may_do_nothing_else(user: UserInfo, actions: list[str]) -> None:
    policy = known()
    assert [text for text in actions if policy.decide(user, ask(text)).allowed] == []
