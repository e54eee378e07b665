"""The request path, without sockets."""

import json
from collections.abc import Callable
from typing import Any

import pytest

CONFIGMAPS = "/api/v1/namespaces/default/configmaps"
PODS = "/api/v1/namespaces/default/pods"
SERVICES = "/api/v1/namespaces/default/services"
INGRESSES = "/apis/networking.k8s.io/v1/namespaces/default/ingresses"
DEPLOYMENTS = "/apis/apps/v1/namespaces/default/deployments"
BACKEND = {"name": "web", "port": {"number": 80}}
BALANCER = {"ingress": [{"ip": "1.2.3.4"}]}
MERGE = "application/merge-patch+json"


def config_map(name: str, **meta: Any) -> dict[str, Any]:
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name, **meta}, "data": {"a": "b"}}


def pod(name: str, **spec: Any) -> dict[str, Any]:
    containers = [{"name": "c", "image": "nginx"}]
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": {"containers": containers, **spec}}


def deployment(name: str) -> dict[str, Any]:
    labels = {"app": name}
    template = {"metadata": {"labels": labels}, "spec": {"containers": [{"name": "c", "image": "nginx"}]}}
    spec = {"replicas": 2, "selector": {"matchLabels": labels}, "template": template}
    return {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": name}, "spec": spec}


def test_create_read_update_delete(play: Callable[..., None]) -> None:
    async def scenario(api: Any) -> None:
        status, created = await api("POST", CONFIGMAPS, config_map("x"))
        assert (status, created["metadata"]["namespace"]) == (201, "default")
        assert created["metadata"]["uid"] and created["metadata"]["creationTimestamp"]
        status, again = await api("POST", CONFIGMAPS, config_map("x"))
        assert (status, again["reason"], again["message"]) == (409, "AlreadyExists", 'configmaps "x" already exists')
        status, result = await api("GET", f"{CONFIGMAPS}/x")
        assert result == created
        status, changed = await api("PUT", f"{CONFIGMAPS}/x", {**created, "data": {"a": "c"}})
        assert int(changed["metadata"]["resourceVersion"]) > int(created["metadata"]["resourceVersion"])
        status, stale = await api("PUT", f"{CONFIGMAPS}/x", {**created, "data": {"a": "d"}})
        assert (status, stale["reason"]) == (409, "Conflict")
        assert stale["message"] == (
            'Operation cannot be fulfilled on configmaps "x": the object has been modified; '
            "please apply your changes to the latest version and try again"
        )
        status, gone = await api("DELETE", f"{CONFIGMAPS}/x")
        assert (status, gone["status"], gone["details"]["uid"]) == (200, "Success", created["metadata"]["uid"])
        status, missing = await api("GET", f"{CONFIGMAPS}/x")
        assert (status, missing["message"]) == (404, 'configmaps "x" not found')

    play(scenario)


def test_an_update_without_a_change_writes_nothing(play: Callable[..., None]) -> None:
    async def scenario(api: Any) -> None:
        _, created = await api("POST", CONFIGMAPS, config_map("x"))
        _, same = await api("PUT", f"{CONFIGMAPS}/x", created)
        assert same["metadata"]["resourceVersion"] == created["metadata"]["resourceVersion"]

    play(scenario)


def test_to_apply_the_same_again_writes_nothing(play: Callable[..., None]) -> None:
    """Also where the stored object has a default inside of what is replaced as a whole."""
    body = deployment("web")
    container = body["spec"]["template"]["spec"]["containers"][0]
    container["env"] = [{"name": "IP", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}}]

    async def scenario(api: Any) -> None:
        path = f"{DEPLOYMENTS}/web?fieldManager=me&force=true"
        _, first = await api("PATCH", path, body, content_type="application/apply-patch+yaml")
        saved = first["spec"]["template"]["spec"]["containers"][0]["env"][0]["valueFrom"]["fieldRef"]
        assert saved == {"apiVersion": "v1", "fieldPath": "status.podIP"}
        _, again = await api("PATCH", path, body, content_type="application/apply-patch+yaml")
        assert again["metadata"] == first["metadata"]
        _, put = await api("PUT", f"{DEPLOYMENTS}/web", {**body, "metadata": {"name": "web"}})
        assert put["metadata"]["generation"] == 1
        container["image"] = "other"
        _, changed = await api("PATCH", path, body, content_type="application/apply-patch+yaml")
        assert changed["metadata"]["generation"] == 2

    play(scenario)


def test_generated_names_are_free_and_dry_runs_store_nothing(play: Callable[..., None]) -> None:
    async def scenario(api: Any) -> None:
        body = {"metadata": {"generateName": "x-"}}
        _, first = await api("POST", CONFIGMAPS, body)
        assert first["metadata"]["name"].startswith("x-") and len(first["metadata"]["name"]) == 7
        status, _ = await api("POST", f"{CONFIGMAPS}?dryRun=All", config_map("dry"))
        assert status == 201
        assert (await api("GET", f"{CONFIGMAPS}/dry"))[0] == 404
        assert (await api("POST", f"{CONFIGMAPS}?dryRun=no", config_map("dry")))[0] == 400
        await api("DELETE", f"{CONFIGMAPS}/{first['metadata']['name']}?dryRun=All")
        assert (await api("GET", f"{CONFIGMAPS}/{first['metadata']['name']}"))[0] == 200

    play(scenario)


def test_lists_select_by_labels_and_fields(play: Callable[..., None]) -> None:
    async def scenario(api: Any) -> None:
        for name, labels in (("a", {"x": "1"}), ("b", {"x": "2"}), ("c", {})):
            await api("POST", CONFIGMAPS, config_map(name, labels=labels))

        async def names(query: str, path: str = CONFIGMAPS) -> list[str]:
            return [item["metadata"]["name"] for item in (await api("GET", f"{path}?{query}"))[1]["items"]]

        assert await names("labelSelector=x%3D1") == ["a"]
        assert await names("labelSelector=x+in+(1,2)") == ["a", "b"]
        assert await names("labelSelector=!x") == ["c"]
        assert await names("fieldSelector=metadata.name!%3Da") == ["b", "c"]
        assert await names("fieldSelector=metadata.namespace%3Ddefault", "/api/v1/configmaps") == ["a", "b", "c"]
        assert (await api("GET", f"{CONFIGMAPS}?fieldSelector=data.a%3Db"))[1]["message"] == (
            "field label not supported: data.a"
        )

    play(scenario)


def test_pages_are_one_snapshot(play: Callable[..., None]) -> None:
    async def scenario(api: Any) -> None:
        for number in range(5):
            await api("POST", CONFIGMAPS, config_map(f"c{number}"))
        _, page = await api("GET", f"{CONFIGMAPS}?limit=2")
        assert page["metadata"]["remainingItemCount"] == 3
        await api("DELETE", f"{CONFIGMAPS}/c3")
        await api("POST", CONFIGMAPS, config_map("c9"))
        names = []
        token = page["metadata"]["continue"]
        while token:
            _, following = await api("GET", f"{CONFIGMAPS}?limit=2&continue={token}")
            assert following["metadata"]["resourceVersion"] == page["metadata"]["resourceVersion"]
            names += [item["metadata"]["name"] for item in following["items"]]
            token = following["metadata"].get("continue")
        assert names == ["c2", "c3", "c4"]
        status, bad = await api("GET", f"{CONFIGMAPS}?limit=2&continue=eyJpZCI6MX0")
        assert (status, bad["message"]) == (400, "continue key is not valid")

    play(scenario)


def test_status_is_written_by_its_own_subresource_only(play: Callable[..., None]) -> None:
    async def scenario(api: Any) -> None:
        body = deployment("web") | {"status": {"replicas": 9}}
        _, created = await api("POST", DEPLOYMENTS, body)
        assert "replicas" not in created["status"]
        assert created["metadata"]["generation"] == 1
        status = {"metadata": {"labels": {"no": "no"}}, "spec": {"replicas": 7}, "status": {"replicas": 2}}
        _, after = await api("PATCH", f"{DEPLOYMENTS}/web/status", status, content_type=MERGE)
        assert after["status"] == {"replicas": 2}
        assert after["spec"]["replicas"] == 2 and "labels" not in after["metadata"]
        assert after["metadata"]["generation"] == 1
        _, after = await api("PATCH", f"{DEPLOYMENTS}/web", {"spec": {"replicas": 3}}, content_type=MERGE)
        assert after["metadata"]["generation"] == 2 and after["status"] == {"replicas": 2}

    play(scenario)


@pytest.mark.parametrize("path", [SERVICES, INGRESSES])
def test_status_writes_merge_labels_and_annotations(play: Callable[..., None], path: str) -> None:
    async def scenario(api: Any) -> None:
        meta = {"name": "web", "annotations": {"old": "a"}}
        made_spec = {"ports": [{"port": 80}]} if path == SERVICES else {"defaultBackend": {"service": BACKEND}}
        status, created = await api("POST", path, {"metadata": meta, "spec": made_spec})
        assert status == 201, created
        patch = {"metadata": {"annotations": {"new": "b"}}, "status": {"loadBalancer": BALANCER}}
        _, patched = await api("PATCH", f"{path}/web/status", patch, content_type=MERGE)
        assert patched["metadata"]["annotations"] == {"old": "a", "new": "b"}
        patched["metadata"]["annotations"] = {"last": "c"}
        patched["status"]["loadBalancer"]["ingress"] = [{"ip": "5.6.7.8"}]
        _, updated = await api("PUT", f"{path}/web/status", patched)
        assert updated["metadata"]["annotations"] == {"last": "c"}
        assert updated["status"]["loadBalancer"]["ingress"][0]["ip"] == "5.6.7.8"
        assert updated["spec"] == created["spec"]

    play(scenario)


def test_deployment_status_writes_keep_labels_not_annotations(play: Callable[..., None]) -> None:
    async def scenario(api: Any) -> None:
        await api("POST", DEPLOYMENTS, deployment("web"))
        patch = {"metadata": {"labels": {"no": "no"}, "annotations": {"yes": "yes"}}}
        _, after = await api("PATCH", f"{DEPLOYMENTS}/web/status", patch, content_type=MERGE)
        assert "labels" not in after["metadata"] and after["metadata"]["annotations"] == {"yes": "yes"}

    play(scenario)


def test_body_of_delete_replaces_the_query(play: Callable[..., None]) -> None:
    async def scenario(api: Any) -> None:
        await api("POST", CONFIGMAPS, config_map("x"))
        wrong = {"preconditions": {"uid": "another"}}
        assert (await api("DELETE", f"{CONFIGMAPS}/x", wrong))[0] == 409
        query = f"{CONFIGMAPS}/x?propagationPolicy=Foreground"
        assert (await api("DELETE", query, {"dryRun": ["All"], "orphanDependents": True}))[0] == 200
        _, answer = await api("DELETE", query, {"kind": "DeleteOptions", "apiVersion": "v1"})
        assert answer["status"] == "Success"
        assert (await api("GET", f"{CONFIGMAPS}/x"))[0] == 404

    play(scenario)


def test_scale(play: Callable[..., None]) -> None:
    async def scenario(api: Any) -> None:
        await api("POST", DEPLOYMENTS, deployment("web"))
        _, scale = await api("GET", f"{DEPLOYMENTS}/web/scale")
        assert (scale["kind"], scale["spec"], scale["status"]["selector"]) == ("Scale", {"replicas": 2}, "app=web")
        await api("PATCH", f"{DEPLOYMENTS}/web/scale", {"spec": {"replicas": 5}}, content_type=MERGE)
        assert (await api("GET", f"{DEPLOYMENTS}/web"))[1]["spec"]["replicas"] == 5
        status, bad = await api("PATCH", f"{DEPLOYMENTS}/web/scale", {"spec": {"replicas": -1}}, content_type=MERGE)
        assert (status, bad["reason"]) == (422, "Invalid")

    play(scenario)


def test_bound_pod_gets_the_zone_and_region_of_its_node(play: Callable[..., None]) -> None:
    own = {"topology.kubernetes.io/zone": "z1", "topology.kubernetes.io/region": "r1", "kubernetes.io/os": "linux"}

    async def scenario(api: Any) -> None:
        node = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": "node-1", "labels": own}}
        assert (await api("POST", "/api/v1/nodes", node))[0] == 201
        created = pod("bound")
        created["metadata"]["labels"] = {"app": "web", "topology.kubernetes.io/zone": "elsewhere"}
        await api("POST", PODS, created)
        meta = {"name": "bound", "labels": {"more": "1"}, "annotations": {"why": "free"}}
        binding = {"metadata": meta, "target": {"kind": "Node", "name": "node-1"}}
        assert (await api("POST", f"{PODS}/bound/binding", binding))[0] == 201
        _, result = await api("GET", f"{PODS}/bound")
        expected = {
            "app": "web",
            "more": "1",
            "topology.kubernetes.io/zone": "z1",
            "topology.kubernetes.io/region": "r1",
        }
        assert result["metadata"]["labels"] == expected
        assert result["metadata"]["annotations"] == {"why": "free"}

    play(scenario)


def test_a_pod_on_a_node_is_deleted_in_two_steps(play: Callable[..., None]) -> None:
    async def scenario(api: Any) -> None:
        await api("POST", PODS, pod("free"))
        await api("DELETE", f"{PODS}/free")
        assert (await api("GET", f"{PODS}/free"))[0] == 404
        await api("POST", PODS, pod("bound"))
        binding = {"metadata": {"name": "bound"}, "target": {"kind": "Node", "name": "node-1"}}
        assert (await api("POST", f"{PODS}/bound/binding", binding))[0] == 201
        again = await api("POST", f"{PODS}/bound/binding", binding)
        assert again[0] == 409
        _, marked = await api("DELETE", f"{PODS}/bound")
        assert marked["metadata"]["deletionGracePeriodSeconds"] == 30
        _, marked = await api("DELETE", f"{PODS}/bound?gracePeriodSeconds=5")
        assert marked["metadata"]["deletionGracePeriodSeconds"] == 5
        _, marked = await api("DELETE", f"{PODS}/bound?gracePeriodSeconds=9")
        assert marked["metadata"]["deletionGracePeriodSeconds"] == 5
        await api("DELETE", f"{PODS}/bound", {"gracePeriodSeconds": 0, "preconditions": {"uid": "other"}})
        assert (await api("GET", f"{PODS}/bound"))[0] == 200
        await api("DELETE", f"{PODS}/bound", {"gracePeriodSeconds": 0})
        assert (await api("GET", f"{PODS}/bound"))[0] == 404

    play(scenario)


def test_finalizers_hold_an_object_until_they_are_gone(play: Callable[..., None]) -> None:
    async def scenario(api: Any) -> None:
        await api("POST", CONFIGMAPS, config_map("x", finalizers=["example.com/hold"]))
        _, marked = await api("DELETE", f"{CONFIGMAPS}/x")
        assert marked["metadata"]["deletionTimestamp"]
        await api("PATCH", f"{CONFIGMAPS}/x", {"metadata": {"finalizers": None}}, content_type=MERGE)
        assert (await api("GET", f"{CONFIGMAPS}/x"))[0] == 404

    play(scenario)


def test_dependents_are_deleted_or_kept_with_their_owner(play: Callable[..., None]) -> None:
    async def scenario(api: Any) -> None:
        for policy, remaining in (("Background", 0), ("Foreground", 0), ("Orphan", 2)):
            _, owner = await api("POST", DEPLOYMENTS, deployment("owner"))
            reference = {
                "apiVersion": "apps/v1", "kind": "Deployment", "name": "owner", "blockOwnerDeletion": True,
                "uid": owner["metadata"]["uid"],
            }  # fmt: skip
            for name in ("a", "b"):
                await api("POST", CONFIGMAPS, config_map(name, ownerReferences=[reference]))
            await api("DELETE", f"{DEPLOYMENTS}/owner?propagationPolicy={policy}")
            await api.settle()
            _, result = await api("GET", CONFIGMAPS)
            assert (policy, len(result["items"])) == (policy, remaining)
            assert (await api("GET", f"{DEPLOYMENTS}/owner"))[0] == 404
        assert "ownerReferences" not in result["items"][0]["metadata"]

    play(scenario)


def test_namespace_is_deleted_with_its_objects(play: Callable[..., None]) -> None:
    async def scenario(api: Any) -> None:
        await api("POST", "/api/v1/namespaces", {"metadata": {"name": "t"}})
        path = "/api/v1/namespaces/t/configmaps"
        await api("POST", path, config_map("free"))
        await api("POST", path, config_map("held", finalizers=["example.com/hold"]))
        _, marked = await api("DELETE", "/api/v1/namespaces/t")
        assert marked["status"]["phase"] == "Terminating"
        await api.settle()
        status, refused = await api("POST", path, config_map("late"))
        assert (status, refused["details"]["causes"][0]["reason"]) == (403, "NamespaceTerminating")
        _, waiting = await api("GET", "/api/v1/namespaces/t")
        assert "example.com/hold in 1 resource instances" in waiting["status"]["conditions"][1]["message"]
        await api("PATCH", f"{path}/held", {"metadata": {"finalizers": None}}, content_type=MERGE)
        await api.settle()
        assert (await api("GET", "/api/v1/namespaces/t"))[0] == 404

    play(scenario)


def test_evictions_respect_the_budget(play: Callable[..., None]) -> None:
    async def scenario(api: Any) -> None:
        ready = {"status": {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}}
        for name in ("a", "b"):
            body = pod(name, nodeName="node-1")
            body["metadata"]["labels"] = {"app": "x"}
            await api("POST", PODS, body)
            await api("PATCH", f"{PODS}/{name}/status", ready, content_type=MERGE)
        budgets = "/apis/policy/v1/namespaces/default/poddisruptionbudgets"
        spec = {"minAvailable": 1, "selector": {"matchLabels": {"app": "x"}}}
        await api("POST", budgets, {"metadata": {"name": "x"}, "spec": spec})
        status = {"disruptionsAllowed": 1, "currentHealthy": 2, "desiredHealthy": 1, "expectedPods": 2}
        await api("PATCH", f"{budgets}/x/status", {"status": status | {"observedGeneration": 1}}, content_type=MERGE)
        eviction = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": "a"}}
        assert (await api("POST", f"{PODS}/a/eviction", eviction))[0] == 201
        _, leaving = await api("GET", f"{PODS}/a")
        target = next(c for c in leaving["status"]["conditions"] if c["type"] == "DisruptionTarget")
        assert (target["status"], target["reason"]) == ("True", "EvictionByEvictionAPI")
        code, refused = await api("POST", f"{PODS}/b/eviction", eviction | {"metadata": {"name": "b"}})
        assert (code, refused["reason"]) == (429, "TooManyRequests")
        assert refused["details"]["causes"][0]["reason"] == "DisruptionBudget"

    play(scenario)


def test_each_user_has_the_permissions_of_its_roles(play: Callable[..., None]) -> None:
    async def scenario(api: Any) -> None:
        assert (await api("GET", "/version", user=None))[0] == 200
        assert (await api("GET", "/api/v1/pods", user=None))[0] == 403
        assert (await api("GET", "/api", user=None))[0] == 403
        _, refused = await api("POST", CONFIGMAPS, config_map("x"), user=None)
        assert refused["message"] == (
            'configmaps is forbidden: User "system:anonymous" cannot create resource "configmaps" '
            'in API group "" in the namespace "default"'
        )
        assert (await api("GET", "/api/v1/pods", user=None, authorization="Bearer nonsense"))[0] == 401
        accounts = "/api/v1/namespaces/default/serviceaccounts"
        await api("POST", accounts, {"metadata": {"name": "robot"}})
        _, request = await api("POST", f"{accounts}/robot/token", {"spec": {"expirationSeconds": 600}})
        bearer = "Bearer " + request["status"]["token"]
        _, review = await api(
            "POST", "/apis/authentication.k8s.io/v1/selfsubjectreviews", {}, user=None, authorization=bearer
        )
        assert review["status"]["userInfo"]["username"] == "system:serviceaccount:default:robot"
        token = {"spec": {"token": request["status"]["token"]}}
        _, review = await api("POST", "/apis/authentication.k8s.io/v1/tokenreviews", token)
        assert review["status"]["authenticated"] is True
        await api("DELETE", f"{accounts}/robot")
        assert (await api("GET", "/api/v1/pods", user=None, authorization=bearer))[0] == 401
        head, claims, signature = request["status"]["token"].split(".")
        forged = f"Bearer {head}.{claims}x.{signature}"
        assert (await api("GET", "/api/v1/pods", user=None, authorization=forged))[0] == 401

    play(scenario)


def test_tables_and_metadata_only(play: Callable[..., None]) -> None:
    async def scenario(api: Any) -> None:
        await api("POST", PODS, pod("p"))
        accept = "application/json;as=Table;v=v1;g=meta.k8s.io,application/json"
        _, table = await api("GET", PODS, accept=accept)
        assert [column["name"] for column in table["columnDefinitions"][:5]] == [
            "Name", "Ready", "Status", "Restarts", "Age",
        ]  # fmt: skip
        assert table["rows"][0]["cells"][:4] == ["p", "0/1", "Pending", "0"]
        assert table["rows"][0]["object"]["kind"] == "PartialObjectMetadata"
        _, metadata = await api(
            "GET", f"{PODS}/p", accept="application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1"
        )
        assert set(metadata) == {"kind", "apiVersion", "metadata"}
        assert (await api("GET", PODS, accept="application/vnd.kubernetes.protobuf"))[0] == 406
        result = await api.raw("GET", f"{PODS}/p", accept="application/yaml")
        assert result.content_type == "application/yaml" and b"kind: Pod" in result.body

    play(scenario)


def test_events_have_two_views(play: Callable[..., None]) -> None:
    async def scenario(api: Any) -> None:
        reference = {"kind": "Pod", "namespace": "default", "name": "p"}
        event = {
            "metadata": {"name": "e"}, "regarding": reference, "note": "hello", "reason": "Started",
            "type": "Normal", "eventTime": "2026-01-02T03:04:05.000006Z", "reportingController": "x",
            "reportingInstance": "y", "action": "Start",
        }  # fmt: skip
        path = "/apis/events.k8s.io/v1/namespaces/default/events"
        status, created = await api("POST", path, event)
        assert (status, created["note"], created["apiVersion"]) == (201, "hello", "events.k8s.io/v1")
        query = "fieldSelector=involvedObject.name%3Dp,involvedObject.kind%3DPod"
        _, result = await api("GET", f"/api/v1/namespaces/default/events?{query}")
        assert [(e["message"], e["involvedObject"]) for e in result["items"]] == [("hello", reference)]
        _, result = await api("GET", f"{path}?fieldSelector=regarding.name%3Dp")
        assert len(result["items"]) == 1

    play(scenario)


def test_objects_are_kept_after_a_restart(play: Callable[..., None]) -> None:
    versions: list[int] = []

    async def first(api: Any) -> None:
        await api("POST", CONFIGMAPS, config_map("x"))
        await api("POST", CONFIGMAPS, config_map("y"))
        await api("DELETE", f"{CONFIGMAPS}/y")
        versions.append(api.server.store.version)

    async def second(api: Any) -> None:
        _, result = await api("GET", CONFIGMAPS)
        assert [item["metadata"]["name"] for item in result["items"]] == ["x"]
        _, created = await api("POST", CONFIGMAPS, config_map("z"))
        assert int(created["metadata"]["resourceVersion"]) > versions[0]
        status, gone = await api("GET", f"{CONFIGMAPS}?watch=true&resourceVersion=1")
        assert (status, gone["reason"]) == (410, "Expired")

    play(first)
    play(second)


def test_discovery_in_both_forms(play: Callable[..., None]) -> None:
    async def scenario(api: Any) -> None:
        accept = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList,application/json"
        result = await api.raw("GET", "/apis", accept=accept)
        assert result.content_type == "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList"
        groups = {item["metadata"]["name"]: item for item in json.loads(result.body)["items"]}
        names = {resource["resource"] for resource in groups["apps"]["versions"][0]["resources"]}
        _, legacy = await api("GET", "/apis/apps/v1")
        assert names == {r["name"] for r in legacy["resources"] if "/" not in r["name"]}
        assert (await api("GET", "/apis"))[1]["kind"] == "APIGroupList"
        assert (await api("GET", "/api"))[1]["versions"] == ["v1"]
        assert (await api("GET", "/apis/nothing.example.com/v1"))[0] == 404

    play(scenario)
