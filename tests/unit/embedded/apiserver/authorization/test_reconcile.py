import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.unit.embedded.apiserver.conftest import Harness

from podwire.embedded.apiserver.authorization import defaultobjects
from podwire.embedded.apiserver.bootstrap import internal_call
from podwire.embedded.apiserver.kinds import KINDS
from podwire.embedded.apiserver.waits import complete
from podwire.embedded.apiserver.writes import kind_of_table

RBAC = "/apis/rbac.authorization.k8s.io/v1"


def role(name: str, resource: str, **labels: str) -> dict[str, Any]:
    rule = {"apiGroups": ["example.com"], "resources": [resource], "verbs": ["get"]}
    return {"metadata": {"name": name, "labels": labels}, "rules": [rule]}


def resources(result: dict[str, Any]) -> set[str]:
    return {name for rule in result["rules"] or () for name in rule["resources"]}


async def get(api: Harness, path: str) -> dict[str, Any]:
    status, result = await api("GET", f"{RBAC}/{path}")
    assert status == 200, result
    return result


def test_default_roles_exist_from_the_start(play: Callable[..., None], no_state: Path) -> None:
    async def scenario(api: Harness) -> None:
        view, edit, admin = [resources(await get(api, f"clusterroles/{name}")) for name in ("view", "edit", "admin")]
        assert "pods/log" in view and "secrets" not in view
        assert view < edit and "secrets" in edit and "roles" not in edit
        assert edit < admin and "roles" in admin
        binding = await get(api, "clusterrolebindings/cluster-admin")
        assert [subject["name"] for subject in binding["subjects"]] == ["system:masters"]
        await get(api, "namespaces/kube-system/rolebindings/podwire:agent")

    play(scenario, state=no_state)


def test_a_restart_completes_default_roles(play: Callable[..., None]) -> None:
    async def spoil(api: Harness) -> None:
        await api("DELETE", f"{RBAC}/clusterroles/system:discovery")
        dns = await get(api, "clusterroles/system:kube-dns")
        dns["rules"] = [{"apiGroups": [""], "resources": ["nodes"], "verbs": ["get"]}]
        assert (await api("PUT", f"{RBAC}/clusterroles/system:kube-dns", dns))[0] == 200
        remaining = await get(api, "clusterroles/system:heapster")
        remaining["metadata"]["annotations"]["rbac.authorization.kubernetes.io/autoupdate"] = "false"
        remaining["rules"] = []
        assert (await api("PUT", f"{RBAC}/clusterroles/system:heapster", remaining))[0] == 200
        binding = await get(api, "clusterrolebindings/system:monitoring")
        await api("DELETE", f"{RBAC}/clusterrolebindings/system:monitoring")
        binding = {
            "metadata": {"name": "system:monitoring"},
            "subjects": [],
            "roleRef": binding["roleRef"] | {"name": "x"},
        }
        assert (await api("POST", f"{RBAC}/clusterrolebindings", binding))[0] == 201

    async def look(api: Harness) -> None:
        await get(api, "clusterroles/system:discovery")
        assert resources(await get(api, "clusterroles/system:kube-dns")) == {"nodes", "endpoints", "services"}
        assert not (await get(api, "clusterroles/system:heapster")).get("rules")
        binding = await get(api, "clusterrolebindings/system:monitoring")
        assert (binding["roleRef"]["name"], len(binding["subjects"])) == ("system:monitoring", 1)

    play(spoil)
    play(look)


def test_an_aggregated_role_follows_its_parts(play: Callable[..., None]) -> None:
    async def scenario(api: Harness) -> None:
        selector = {"matchLabels": {"team": "a"}}
        whole = {"metadata": {"name": "whole"}, "aggregationRule": {"clusterRoleSelectors": [selector]}, "rules": []}
        for obj in (whole, role("one", "ones", team="a"), role("two", "twos", team="a"), role("three", "threes")):
            assert (await api("POST", f"{RBAC}/clusterroles", obj))[0] == 201
        await api.settle()
        assert resources(await get(api, "clusterroles/whole")) == {"ones", "twos"}
        await api("DELETE", f"{RBAC}/clusterroles/one")
        await api("PUT", f"{RBAC}/clusterroles/three", role("three", "threes", team="a"))
        await api.settle()
        assert resources(await get(api, "clusterroles/whole")) == {"threes", "twos"}

    play(scenario)


def test_view_collects_roles_of_custom_resources(play: Callable[..., None]) -> None:
    async def scenario(api: Harness) -> None:
        label = {"rbac.authorization.k8s.io/aggregate-to-view": "true"}
        await api("POST", f"{RBAC}/clusterroles", role("widgets", "widgets", **label))
        await api.settle()
        for name in ("view", "edit", "admin"):
            assert "widgets" in resources(await get(api, f"clusterroles/{name}"))

    play(scenario)


def test_default_objects_are_as_the_request_path_stores_them(play: Callable[..., None]) -> None:
    async def scenario(api: Harness) -> None:
        store, writer = api.server.store, api.server.writer
        now = writer.now()
        for table, expected in defaultobjects.objects():
            kind, meta = kind_of_table(KINDS, table), expected["metadata"]
            assert kind is not None
            namespace, name = meta.get("namespace", ""), meta["name"]
            created = defaultobjects.as_created(copy.deepcopy(expected), kind.kind, "podwire-apiserver", now)
            entry = store.get(table, namespace, name)
            assert entry is not None
            store.delete(entry)
            written = complete(writer.create(internal_call(kind, namespace, name), expected)).entry
            assert written is not None
            result = written.object()
            assert list(created) == list(result)
            for obj in (created, result):
                obj["metadata"] |= {"uid": "", "creationTimestamp": "", "resourceVersion": ""}
                obj["metadata"]["managedFields"][0]["time"] = ""
            assert created == result

    play(scenario)
