"""Requests of users with few rights against a whole server."""

import json
from collections.abc import Callable
from typing import Any

import pytest
from tests.unit.embedded.apiserver.conftest import ADMIN, Harness

RBAC = "/apis/rbac.authorization.k8s.io/v1"
SHOP = "/api/v1/namespaces/shop"
APPLY = "application/apply-patch+yaml"
GROUP = "rbac.authorization.k8s.io"


def certificate(name: str, *groups: str) -> dict[str, Any]:
    return {"subject": (*((("organizationName", group),) for group in groups), (("commonName", name),))}


ANN = certificate("ann", "team")
NODE = certificate("system:node:node-1", "system:nodes")


def rule(verbs: str, resources: str, groups: str = "", **more: Any) -> dict[str, Any]:
    return {
        "apiGroups": groups.split(",") if groups else [""],
        "resources": resources.split(),
        "verbs": verbs.split(),
        **more,
    }


def role(name: str, *rules: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"metadata": {"name": name}, "rules": list(rules), **more}


def bound(name: str, reference: str, user: str = "ann") -> dict[str, Any]:
    kind, _, referred = reference.partition(" ")
    subjects = [{"kind": "User", "name": user, "apiGroup": GROUP}]
    return {
        "metadata": {"name": name},
        "roleRef": {"apiGroup": GROUP, "kind": kind, "name": referred},
        "subjects": subjects,
    }


async def make(api: Harness, path: str, obj: dict[str, Any], **more: Any) -> dict[str, Any]:
    status, result = await api("POST", path, obj, **more)
    assert status == 201, result
    return result


async def grant(api: Harness, *rules: dict[str, Any], namespace: str = "") -> None:
    """Gives ann a role, in the whole cluster or in a namespace."""
    await api("POST", "/api/v1/namespaces", {"metadata": {"name": "shop"}})
    place = f"{RBAC}/namespaces/{namespace}/" if namespace else f"{RBAC}/cluster"
    kind = "Role" if namespace else "ClusterRole"
    await make(api, f"{place}roles", role("granted", *rules))
    await make(api, f"{place}rolebindings", bound("granted", f"{kind} granted"))


async def refusal(api: Harness, method: str, target: str, obj: Any = None, **more: Any) -> str:
    status, failure = await api(method, target, obj, **({"user": ANN} | more))
    assert (status, failure["reason"]) == (403, "Forbidden"), failure
    return str(failure["message"])


@pytest.mark.parametrize(
    ("method", "target", "message"),
    [
        ("GET", f"{SHOP}/pods",
         'pods is forbidden: User "ann" cannot list resource "pods" in API group "" in the namespace "shop"'),
        ("GET", "/apis/apps/v1/deployments",
         'deployments.apps is forbidden: User "ann" cannot list resource "deployments" in API group "apps" at the '
         "cluster scope"),
        ("GET", f"{SHOP}/pods/web-0/log",
         'pods "web-0" is forbidden: User "ann" cannot get resource "pods/log" in API group "" in the namespace '
         '"shop"'),
        ("DELETE", "/api/v1/nodes/node-1",
         'nodes "node-1" is forbidden: User "ann" cannot delete resource "nodes" in API group "" at the cluster scope'),
        ("GET", "/apis/example.com/v1/things",
         'things.example.com is forbidden: User "ann" cannot list resource "things" in API group "example.com" at the '
         "cluster scope"),
        ("GET", "/metrics", 'forbidden: User "ann" cannot get path "/metrics"'),
        ("GET", "/healthz/ping", 'forbidden: User "ann" cannot get path "/healthz/ping"'),
    ],
)  # fmt: skip
def test_a_refusal_says_what_kubernetes_says(play: Callable[..., None], method: str, target: str, message: str) -> None:
    async def scenario(api: Harness) -> None:
        assert await refusal(api, method, target) == message

    play(scenario)


def test_everyone_reads_health_and_users_read_discovery(play: Callable[..., None]) -> None:
    async def scenario(api: Harness) -> None:
        for path in ("/healthz", "/readyz", "/livez", "/version"):
            assert (await api.raw("GET", path, user=None)).status == 200  # type: ignore[union-attr]
        for path in ("/api", "/apis", "/api/v1", "/apis/apps/v1", "/openapi/v2"):
            assert (await api.raw("GET", path, user=ANN)).status == 200  # type: ignore[union-attr]
            assert (await api.raw("GET", path, user=None)).status == 403  # type: ignore[union-attr]

    play(scenario)


def test_a_role_opens_what_it_names(play: Callable[..., None]) -> None:
    async def scenario(api: Harness) -> None:
        await grant(
            api, rule("get list watch", "pods"), rule("get", "secrets", resourceNames=["one"]), namespace="shop"
        )
        assert (await api("GET", f"{SHOP}/pods", user=ANN))[0] == 200
        await refusal(api, "GET", "/api/v1/pods")
        await refusal(api, "GET", "/api/v1/namespaces/default/pods")
        assert (await api("GET", f"{SHOP}/secrets/one", user=ANN))[0] == 404
        await refusal(api, "GET", f"{SHOP}/secrets/two")

    play(scenario)


def test_creating_by_put_or_apply_needs_create(play: Callable[..., None]) -> None:
    async def scenario(api: Harness) -> None:
        await grant(api, rule("update patch", "services configmaps"), namespace="shop")
        service = {"apiVersion": "v1", "kind": "Service", "metadata": {"name": "s"}, "spec": {"ports": [{"port": 80}]}}
        result = await refusal(api, "PUT", f"{SHOP}/services/s", service)
        assert 'User "ann" cannot create resource "services"' in result
        applied = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "c"}}
        target = f"{SHOP}/configmaps/c?fieldManager=t"
        assert "cannot create" in await refusal(api, "PATCH", target, applied, content_type=APPLY)
        await make(api, f"{SHOP}/configmaps", applied)
        assert (await api("PATCH", target, applied, user=ANN, content_type=APPLY))[0] == 200

    play(scenario)


def test_a_websocket_to_a_pod_needs_create(play: Callable[..., None]) -> None:
    async def scenario(api: Harness) -> None:
        await grant(api, rule("get", "pods/exec"), namespace="shop")
        target = f"{SHOP}/pods/web-0/exec?command=ls"
        assert "cannot create" in await refusal(api, "GET", target, upgrade="websocket")

    play(scenario)


def test_user_cannot_grant_rights_beyond_their_own(play: Callable[..., None]) -> None:
    async def scenario(api: Harness) -> None:
        await grant(api, rule("get", "pods"), rule("* bind escalate", "roles rolebindings", GROUP), namespace="shop")
        granted = (await api("GET", f"{RBAC}/namespaces/shop/roles/granted"))[1]
        granted["rules"][1]["verbs"] = ["create", "update"]
        await api("PUT", f"{RBAC}/namespaces/shop/roles/granted", granted)
        roles, bindings = f"{RBAC}/namespaces/shop/roles", f"{RBAC}/namespaces/shop/rolebindings"
        await make(api, roles, role("same", rule("get", "pods")), user=ANN)
        assert await refusal(api, "POST", roles, role("more", rule("get list", "pods nodes"))) == (
            'roles.rbac.authorization.k8s.io "more" is forbidden: user "ann" (groups=["team" "system:authenticated"]) '
            "is attempting to grant RBAC permissions not currently held:\n"
            '{APIGroups:[""], Resources:["nodes"], Verbs:["get" "list"]}\n'
            '{APIGroups:[""], Resources:["pods"], Verbs:["list"]}'
        )
        same = (await api("GET", f"{roles}/same"))[1]
        same["rules"][0]["verbs"] = ["delete"]
        assert "not currently held" in await refusal(api, "PUT", f"{roles}/same", same)
        await make(api, bindings, bound("ok", "Role same", "bob"), user=ANN)
        assert "not currently held" in await refusal(api, "POST", bindings, bound("no", "ClusterRole admin", "ann"))
        status, failure = await api("POST", bindings, bound("gone", "Role gone"), user=ANN)
        assert (status, failure["message"]) == (404, 'roles.rbac.authorization.k8s.io "gone" not found')

    play(scenario)


def test_escalate_and_bind_lift_the_check(play: Callable[..., None]) -> None:
    async def scenario(api: Harness) -> None:
        await grant(
            api,
            rule("create escalate", "clusterroles", GROUP),
            rule("create", "clusterrolebindings", GROUP),
            rule("bind", "clusterroles", GROUP, resourceNames=["view"]),
        )
        await make(api, f"{RBAC}/clusterroles", role("all", rule("*", "*", "*")), user=ANN)
        await make(api, f"{RBAC}/clusterrolebindings", bound("v", "ClusterRole view", "bob"), user=ANN)
        await refusal(api, "POST", f"{RBAC}/clusterrolebindings", bound("a", "ClusterRole all"))

    play(scenario)


def test_aggregation_needs_all_rights(play: Callable[..., None]) -> None:
    async def scenario(api: Harness) -> None:
        await grant(api, rule("create", "clusterroles", GROUP))
        selectors = {"clusterRoleSelectors": [{"matchLabels": {"a": "b"}}]}
        result = await refusal(api, "POST", f"{RBAC}/clusterroles", role("c", aggregationRule=selectors))
        assert result.endswith("must have cluster-admin privileges to use aggregationRule")

    play(scenario)


REVIEWS = "/apis/authorization.k8s.io/v1"


async def review(api: Harness, kind: str, spec: dict[str, Any], **more: Any) -> dict[str, Any]:
    obj = await make(api, f"{REVIEWS}/{kind}", {"spec": spec}, **more)
    return dict(obj["status"])


def test_reviews_answer_as_requests_are_decided(play: Callable[..., None]) -> None:
    async def scenario(api: Harness) -> None:
        await grant(api, rule("list", "pods"), namespace="shop")
        on = {"resourceAttributes": {"verb": "list", "resource": "pods", "namespace": "shop"}}
        reason = 'RBAC: allowed by RoleBinding "granted/shop" of Role "granted" to User "ann"'
        assert await review(api, "selfsubjectaccessreviews", on, user=ANN) == {"allowed": True, "reason": reason}
        assert (await review(api, "subjectaccessreviews", {**on, "user": "ann"}))["allowed"] is True
        assert await review(api, "subjectaccessreviews", {**on, "user": "bob"}) == {"allowed": False}
        assert await review(api, "subjectaccessreviews", {**on, "groups": ["system:masters"]}) == {"allowed": True}
        local = "namespaces/shop/localsubjectaccessreviews"
        assert (await review(api, local, {**on, "user": "ann"}))["allowed"] is True
        path = {"nonResourceAttributes": {"verb": "get", "path": "/healthz"}}
        assert (await review(api, "subjectaccessreviews", {**path, "user": "bob", "groups": []}))["allowed"] is False
        assert (await review(api, "selfsubjectaccessreviews", path, user=ANN))["allowed"] is True
        await refusal(api, "POST", f"{REVIEWS}/subjectaccessreviews", {"spec": {**on, "user": "ann"}})

    play(scenario)


@pytest.mark.parametrize(
    ("kind", "spec", "message"),
    [
        ("selfsubjectaccessreviews", {}, "spec.resourceAttributes: Invalid value: null: exactly one of "),
        ("subjectaccessreviews", {"nonResourceAttributes": {"path": "/"}},
         'spec.user: Invalid value: "": at least one of user or group must be specified'),
        ("namespaces/default/localsubjectaccessreviews",
         {"user": "ann", "resourceAttributes": {"namespace": "shop"}},
         'spec.resourceAttributes.namespace: Invalid value: "shop": must match metadata.namespace'),
    ],
)  # fmt: skip
def test_a_review_that_asks_nothing_is_invalid(
    play: Callable[..., None], kind: str, spec: dict[str, Any], message: str
) -> None:
    async def scenario(api: Harness) -> None:
        status, failure = await api("POST", f"{REVIEWS}/{kind}", {"spec": spec})
        assert status == 422 and message in failure["message"]

    play(scenario)


def test_rules_of_a_user_are_listed(play: Callable[..., None]) -> None:
    async def scenario(api: Harness) -> None:
        await grant(api, rule("get", "pods"), namespace="shop")
        result = await review(api, "selfsubjectrulesreviews", {"namespace": "shop"}, user=ANN)
        assert {"verbs": ["get"], "apiGroups": [""], "resources": ["pods"]} in result["resourceRules"]
        assert any("/version" in rule["nonResourceURLs"] for rule in result["nonResourceRules"])
        assert result["incomplete"] is False
        of_node = await review(api, "selfsubjectrulesreviews", {"namespace": "shop"}, user=NODE)
        assert of_node["incomplete"] is True
        assert of_node["evaluationError"] == "node authorizer does not support user rule resolution"
        status, failure = await api("POST", f"{REVIEWS}/selfsubjectrulesreviews", {"spec": {}}, user=ANN)
        assert (status, failure["message"]) == (400, "no namespace on request")

    play(scenario)


async def user_info(api: Harness, user: dict[str, Any] | None = ADMIN, **headers: str) -> dict[str, Any]:
    target = "/apis/authentication.k8s.io/v1/selfsubjectreviews"
    return dict((await make(api, target, {}, user=user, **headers))["status"]["userInfo"])


def test_an_administrator_acts_as_others(play: Callable[..., None]) -> None:
    async def scenario(api: Harness) -> None:
        assert await user_info(api, impersonate_user="bob") == {"username": "bob", "groups": ["system:authenticated"]}
        account = "system:serviceaccount:shop:web"
        assert (await user_info(api, impersonate_user=account))["groups"] == [
            "system:serviceaccounts", "system:serviceaccounts:shop", "system:authenticated",
        ]  # fmt: skip
        full = await user_info(
            api,
            ADMIN,
            impersonate_user="bob",
            impersonate_group="team",
            **{"impersonate_uid": "7", "impersonate-extra-example.com%2Fscope": "read"},
        )
        assert full == {
            "username": "bob",
            "uid": "7",
            "groups": ["team", "system:authenticated"],
            "extra": {"example.com/scope": ["read"]},
        }
        status, failure = await api("GET", f"{SHOP}/pods", impersonate_group="team")
        assert status == 500 and "without impersonating a user" in failure["message"]

    play(scenario)


def test_impersonation_needs_a_right_for_each_value(play: Callable[..., None]) -> None:
    async def scenario(api: Harness) -> None:
        await grant(
            api,
            rule("impersonate", "users", resourceNames=["bob"]),
            rule("impersonate", "groups", resourceNames=["team"]),
            rule("impersonate", "userextras/scope", "authentication.k8s.io", resourceNames=["read"]),
        )
        assert (await user_info(api, ANN, impersonate_user="bob"))["username"] == "bob"
        headers = {"impersonate_user": "bob", "impersonate_group": "team", "impersonate_extra_scope": "read"}
        assert (await user_info(api, ANN, **headers))["extra"] == {"scope": ["read"]}
        assert await refusal(api, "GET", "/api", impersonate_user="eve") == (
            'users "eve" is forbidden: User "ann" cannot impersonate resource "users" in API group "" at the cluster '
            "scope"
        )
        masters = {**headers, "impersonate_group": "system:masters"}
        assert 'groups "system:masters" is forbidden' in await refusal(api, "GET", "/api", **masters)
        assert 'resource "userextras/scope"' in await refusal(
            api, "GET", "/api", **{**headers, "impersonate_extra_scope": "x"}
        )
        assert 'resource "uids"' in await refusal(api, "GET", "/api", **headers, impersonate_uid="7")
        account = "system:serviceaccount:shop:web"
        assert 'resource "serviceaccounts" in API group "" in the namespace "shop"' in (
            await refusal(api, "GET", "/api", impersonate_user=account)
        )

    play(scenario)


def pod(name: str, node: str, **spec: Any) -> dict[str, Any]:
    spec = {"nodeName": node, "containers": [{"name": "c", "image": "i"}], **spec}
    return {"metadata": {"name": name}, "spec": spec}


async def refused_node(api: Harness, method: str, target: str, obj: Any = None, **more: Any) -> str:
    return await refusal(api, method, target, obj, user=NODE, **more)


def test_a_node_reads_what_its_pods_use(play: Callable[..., None]) -> None:
    async def scenario(api: Harness) -> None:
        await make(api, "/api/v1/namespaces", {"metadata": {"name": "shop"}})
        for name in ("mine", "other"):
            await make(api, f"{SHOP}/secrets", {"metadata": {"name": name}})
        volumes = [{"name": "v", "secret": {"secretName": "mine"}}]
        await make(api, f"{SHOP}/pods", pod("a", "node-1", volumes=volumes))
        await make(api, f"{SHOP}/pods", pod("b", "node-2", volumes=[{"name": "v", "secret": {"secretName": "other"}}]))
        assert (await api("GET", f"{SHOP}/secrets/mine", user=NODE))[0] == 200
        target = f"{SHOP}/secrets?fieldSelector=metadata.name%3Dmine"
        assert len((await api("GET", target, user=NODE))[1]["items"]) == 1
        assert (await refused_node(api, "GET", f"{SHOP}/secrets/other")).endswith(
            "no relationship found between node 'node-1' and this object"
        )
        await refused_node(api, "GET", f"{SHOP}/secrets")
        await api("DELETE", f"{SHOP}/pods/a?gracePeriodSeconds=0")
        await refused_node(api, "GET", f"{SHOP}/secrets/mine")

    play(scenario)


def test_a_node_writes_its_own_objects_alone(play: Callable[..., None]) -> None:
    async def scenario(api: Harness) -> None:
        await make(api, "/api/v1/namespaces", {"metadata": {"name": "shop"}})
        uids = {}
        for name, node in (("a", "node-1"), ("b", "node-2")):
            uids[name] = (await make(api, f"{SHOP}/pods", pod(name, node)))["metadata"]["uid"]
        patch = {"status": {"phase": "Running"}}
        merge = "application/merge-patch+json"
        assert (await api("PATCH", f"{SHOP}/pods/a/status", patch, user=NODE, content_type=merge))[0] == 200
        await refused_node(api, "PATCH", f"{SHOP}/pods/b/status", patch, content_type=merge)
        await refused_node(api, "DELETE", f"{SHOP}/pods/b")
        assert "can only create mirror pods" in await refused_node(api, "POST", f"{SHOP}/pods", pod("c", "node-1"))
        await make(api, "/api/v1/nodes", {"metadata": {"name": "node-1"}}, user=NODE)
        assert 'node "node-1" is not allowed to modify node "node-2"' in (
            await refused_node(api, "POST", "/api/v1/nodes", {"metadata": {"name": "node-2"}})
        )
        labels = {"metadata": {"labels": {"node-role.kubernetes.io/master": ""}}}
        assert "not allowed to modify labels" in (
            await refused_node(api, "PATCH", "/api/v1/nodes/node-1", labels, content_type=merge)
        )
        taints = {"spec": {"taints": [{"key": "a", "effect": "NoSchedule"}]}}
        assert "not allowed to modify taints" in (
            await refused_node(api, "PATCH", "/api/v1/nodes/node-1", taints, content_type=merge)
        )
        leases = "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases"
        await make(api, leases, {"metadata": {"name": "node-1"}}, user=NODE)
        await refused_node(api, "POST", leases, {"metadata": {"name": "node-2"}})
        token = f"{SHOP}/serviceaccounts/default/token"
        assert "not bound to a pod" in await refused_node(api, "POST", token, {"spec": {}})
        reference = {"kind": "Pod", "apiVersion": "v1", "name": "b", "uid": uids["b"]}
        assert "different node" in await refused_node(api, "POST", token, {"spec": {"boundObjectRef": reference}})
        reference = {**reference, "name": "a", "uid": uids["a"]}
        await make(api, token, {"spec": {"boundObjectRef": reference}}, user=NODE)

    play(scenario)


def test_an_account_holds_what_its_groups_hold(play: Callable[..., None]) -> None:
    async def scenario(api: Harness) -> None:
        await make(api, "/api/v1/namespaces", {"metadata": {"name": "shop"}})
        subjects = [{"kind": "Group", "name": "system:serviceaccounts:shop", "apiGroup": GROUP}]
        binding = {**bound("all", "ClusterRole view"), "subjects": subjects}
        await make(api, f"{RBAC}/namespaces/shop/rolebindings", binding)
        request = await make(api, f"{SHOP}/serviceaccounts/default/token", {"spec": {}})
        bearer = {"authorization": "Bearer " + request["status"]["token"]}
        assert (await api("GET", f"{SHOP}/pods", user=None, **bearer))[0] == 200
        result = await refusal(api, "GET", f"{SHOP}/secrets", user=None, **bearer)
        assert result.startswith('secrets is forbidden: User "system:serviceaccount:shop:default" cannot list')

    play(scenario)


def test_wrong_credentials_are_401_and_others_anonymous(play: Callable[..., None]) -> None:
    async def scenario(api: Harness) -> None:
        status, failure = await api("GET", "/version", user=None, authorization="Bearer nonsense")
        assert (status, failure["message"], failure["reason"]) == (401, "Unauthorized", "Unauthorized")
        assert (await api("GET", "/version", user=None, authorization="Basic YTpi"))[0] == 200
        refused = await api.raw("GET", "/api", user=None)
        assert json.loads(refused.body)["details"] == {}  # type: ignore[union-attr]

    play(scenario)
