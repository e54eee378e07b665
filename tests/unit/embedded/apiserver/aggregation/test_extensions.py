"""A group that another server serves: a real HTTPS server, registered by an APIService."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.unit.embedded.apiserver.aggregation.conftest import GROUP, ROOT, SERVICES, condition, decoded, until

from podwire.http.answer import Streaming
from podwire.http.tls import subject_of

Play = Callable[..., None]

USER = {"subject": ((("organizationName", "devs"),), (("commonName", "ann"),))}
FLUNDERS = f"{ROOT}/namespaces/default/flunders"
MERGE = {"content_type": "application/merge-patch+json"}
AGGREGATED = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList"


def test_request_reaches_the_extension_with_its_user(play_with_proxy: Play, serve: Any, register: Any) -> None:
    async def scenario(api: Any) -> None:
        async with serve() as extension:
            await register(api, extension.port)
            forged = {"x_remote_user": "root", "x_remote_group": "system:masters"}
            forged |= {"impersonate_user": "bob", "impersonate_group": "system:masters"}
            forged |= {"impersonate_extra_example.com%2fteam": "blue"}
            status, result = await api("POST", f"{FLUNDERS}?dryRun=All", {"a": 1}, **forged)
            assert (status, result["kind"]) == (200, "FlunderList")
            asked = extension.by_clients[-1]
        assert (asked.method, asked.target, json.loads(asked.body)) == ("POST", f"{FLUNDERS}?dryRun=All", {"a": 1})
        assert asked.header_values("x-remote-user") == ["bob"]
        assert asked.header_values("x-remote-group") == ["system:masters", "system:authenticated"]
        assert asked.headers["x-remote-extra-example.com%2fteam"] == "blue"
        assert not any(name.startswith("impersonate") for name in asked.headers)
        assert subject_of(asked.peer_certificate) == ("front-proxy-client", ())

    play_with_proxy(scenario)


def test_user_without_rights_is_refused_before_the_extension(play_with_proxy: Play, serve: Any, register: Any) -> None:
    async def scenario(api: Any) -> None:
        async with serve() as extension:
            await register(api, extension.port)
            status, result = await api("GET", FLUNDERS, user=USER)
            assert (
                status == 403
                and 'cannot list resource "flunders" in API group "wardle.example.com"' in result["message"]
            )
            assert not extension.by_clients

    play_with_proxy(scenario)


def test_watch_of_an_extension_is_a_stream(play_with_proxy: Play, serve: Any, register: Any) -> None:
    async def scenario(api: Any) -> None:
        async with serve() as extension:
            await register(api, extension.port)
            answer = await api.raw("GET", f"{FLUNDERS}?watch=true")
            assert isinstance(answer, Streaming)

    play_with_proxy(scenario)


def test_discovery_lists_the_extension_by_its_priority(play_with_proxy: Play, serve: Any, register: Any) -> None:
    async def scenario(api: Any) -> None:
        async with serve() as extension:
            await register(api, extension.port)
            _, groups = await api("GET", "/apis")
            assert [group["name"] for group in groups["groups"]][-2:] == [GROUP, "metrics.k8s.io"]
            _, group = await api("GET", f"/apis/{GROUP}")
            assert group["preferredVersion"] == {"groupVersion": f"{GROUP}/v1", "version": "v1"}
            _, listed = await api("GET", ROOT)
            assert [item["name"] for item in listed["resources"]] == ["flunders", "flunders/status"]
            result = decoded(await api.raw("GET", "/apis", accept=AGGREGATED))["items"][-2]
        (version,) = result["versions"]
        (resource,) = version["resources"]
        assert (version["freshness"], resource["resource"], resource["shortNames"]) == ("Current", "flunders", ["fl"])
        assert resource["responseKind"] == {"group": GROUP, "version": "v1", "kind": "Flunder"}
        assert [sub["subresource"] for sub in resource["subresources"]] == ["status"]

    play_with_proxy(scenario)


def test_openapi_has_the_documents_of_the_extension(play_with_proxy: Play, serve: Any, register: Any) -> None:
    name = "com.example.wardle.v1.Flunder"
    mark = [{"group": GROUP, "version": "v1", "kind": "Flunder"}]
    meta = "io.k8s.apimachinery.pkg.apis.meta.v1.ObjectMeta"
    kind = {"properties": {"metadata": {"$ref": f"#/definitions/{meta}"}}, "x-kubernetes-group-version-kind": mark}
    v2 = {
        "paths": {f"{ROOT}/flunders": {}, "/apis/other/v1/x": {}},
        "definitions": {name: kind, meta: {"type": "object"}},
    }

    async def scenario(api: Any) -> None:
        async with serve() as extension:
            extension.openapi = {
                f"/openapi/v3{ROOT}": {"openapi": "3.0.0", "info": {"title": "Wardle"}},
                "/openapi/v2": v2,
            }
            await register(api, extension.port)
            _, index = await api("GET", "/openapi/v3")
            _, v3 = await api("GET", index["paths"][ROOT[1:]]["serverRelativeURL"])
            assert v3["info"]["title"] == "Wardle"
            _, merged = await api("GET", "/openapi/v2")
        assert f"{ROOT}/flunders" in merged["paths"] and "/apis/other/v1/x" not in merged["paths"]
        assert merged["definitions"][name]["properties"]["metadata"]["$ref"] == f"#/definitions/{meta}_v2"
        assert merged["definitions"][meta] != merged["definitions"][f"{meta}_v2"] == {"type": "object"}

    play_with_proxy(scenario)


def test_extension_with_version_2_alone_is_part_of_version_3(play_with_proxy: Play, serve: Any, register: Any) -> None:
    name = "com.example.wardle.v1.Flunder"
    mark = [{"group": GROUP, "version": "v1", "kind": "Flunder"}]
    kind = {"type": "object", "properties": {"spec": {"type": "string"}}, "x-kubernetes-group-version-kind": mark}
    body = {"name": "body", "in": "body", "schema": {"$ref": f"#/definitions/{name}"}}
    v2 = {
        "paths": {f"{ROOT}/flunders": {"post": {"parameters": [body], "responses": {"200": {}}}}},
        "definitions": {name: kind},
    }

    async def scenario(api: Any) -> None:
        async with serve() as extension:
            extension.openapi = {"/openapi/v2": v2}
            await register(api, extension.port)
            _, index = await api("GET", "/openapi/v3")
            _, v3 = await api("GET", index["paths"][ROOT[1:]]["serverRelativeURL"])
        assert v3["components"]["schemas"] == {name: kind}
        content = v3["paths"][f"{ROOT}/flunders"]["post"]["requestBody"]["content"]
        assert content == {"application/json": {"schema": {"$ref": f"#/components/schemas/{name}"}}}

    play_with_proxy(scenario)


@pytest.mark.parametrize("v2", [{"paths": [1]}, {"definitions": {"x": {"x-kubernetes-group-version-kind": 1}}}])
def test_hostile_document_of_an_extension_hurts_no_other(
    play_with_proxy: Play, serve: Any, register: Any, v2: Any
) -> None:
    async def scenario(api: Any) -> None:
        async with serve() as extension:
            extension.openapi = {"/openapi/v2": v2}
            await register(api, extension.port)
            status, merged = await api("GET", "/openapi/v2")
        assert (status, "io.k8s.api.core.v1.Pod" in merged["definitions"]) == (200, True)

    play_with_proxy(scenario)


def test_extension_that_is_away_is_unavailable(play_with_proxy: Play, serve: Any, register: Any) -> None:
    async def scenario(api: Any) -> None:
        async with serve() as extension:
            await register(api, extension.port)
            port = extension.port
        await api("PATCH", f"{SERVICES}/v1.{GROUP}", {"spec": {"versionPriority": 11}}, **MERGE)
        reported = (await condition(api, "FailedDiscoveryCheck"))["message"]
        assert reported.startswith(f"failing or missing response from https://ext.default.svc:{port}{ROOT}: Get ")
        answer = await api.raw("GET", FLUNDERS)
        assert (answer.status, answer.body) == (503, b"service unavailable\n")
        items = decoded(await api.raw("GET", "/apis", accept=AGGREGATED))["items"]
        assert items[-2]["versions"][0]["freshness"] == "Stale"
        await api("DELETE", f"{SERVICES}/v1.{GROUP}")
        assert (await api("GET", FLUNDERS))[0] == 404
        assert (await api("GET", f"/apis/{GROUP}"))[0] == 404

    play_with_proxy(scenario)


@pytest.mark.parametrize(
    ("service", "reason", "message"),
    [
        (None, "ServiceNotFound", 'service/s in "default" is not present'),
        (80, "ServicePortError", 'service/s in "default" is not listening on port 443'),
        (443, "EndpointsNotFound", 'cannot find endpointslices for service/s in "default"'),
    ],
)
def test_condition_says_what_the_service_lacks(
    play: Play, register: Any, service: int | None, reason: str, message: str
) -> None:
    async def scenario(api: Any) -> None:
        if service:
            body = {"metadata": {"name": "s"}, "spec": {"ports": [{"name": "https", "port": service}]}}
            await api("POST", "/api/v1/namespaces/default/services", body)
        result = await register(api, 0, reason, service={"namespace": "default", "name": "s"})
        assert (result["status"], result["message"]) == ("False", message)
        if reason == "EndpointsNotFound":
            labels = {"kubernetes.io/service-name": "s"}
            endpoints = {"metadata": {"name": "s", "labels": labels}, "addressType": "IPv4", "endpoints": [],
                         "ports": [{"name": "https", "port": 8443}]}  # fmt: skip
            await api("POST", "/apis/discovery.k8s.io/v1/namespaces/default/endpointslices", endpoints)
            reported = (await condition(api, "MissingEndpoints"))["message"]
            assert reported == 'endpointslices for service/s in "default" have no addresses with port name "https"'

    play(scenario)


def test_certificate_of_the_extension_is_checked(play_with_proxy: Play, serve: Any, register: Any) -> None:
    async def scenario(api: Any) -> None:
        async with serve() as extension:
            result = await register(api, extension.port, "FailedDiscoveryCheck", caBundle="")
            assert "tls: failed to verify certificate" in result["message"]
            change = {"spec": {"insecureSkipTLSVerify": True}}
            await api("PATCH", f"{SERVICES}/v1.{GROUP}", change, **MERGE)
            await condition(api, "Passed")
            assert (await api("GET", FLUNDERS))[0] == 200

    play_with_proxy(scenario)


def test_extension_replaces_a_group_of_the_server_itself(play_with_proxy: Play, serve: Any, register: Any) -> None:
    definition = {
        "metadata": {"name": f"flunders.{GROUP}"},
        "spec": {
            "group": GROUP, "scope": "Namespaced", "names": {"plural": "flunders", "kind": "Flunder"},
            "versions": [{"name": version, "served": True, "storage": version == "v1",
                          "schema": {"openAPIV3Schema": {"type": "object"}}} for version in ("v1", "v2")],
        },
    }  # fmt: skip

    async def scenario(api: Any) -> None:
        await api("POST", "/apis/apiextensions.k8s.io/v1/customresourcedefinitions", definition)
        await api.settle()
        _, local = await api("GET", f"{SERVICES}/v1.{GROUP}")
        assert local["status"]["conditions"][0]["reason"] == "Local"
        async with serve() as extension:
            await register(api, extension.port)
            assert (await api("GET", FLUNDERS))[1]["kind"] == "FlunderList"
            assert extension.by_clients
            _, group = await api("GET", f"/apis/{GROUP}")
            assert [item["version"] for item in group["versions"]] == ["v2", "v1"]
        await api("DELETE", f"{SERVICES}/v1.{GROUP}")
        await api.settle()
        assert (await api("GET", FLUNDERS))[1]["apiVersion"] == f"{GROUP}/v1"

    play_with_proxy(scenario)


def test_namespace_waits_for_objects_in_extensions(play_with_proxy: Play, serve: Any, register: Any) -> None:
    async def scenario(api: Any) -> None:
        await api("POST", "/api/v1/namespaces", {"metadata": {"name": "n"}})
        async with serve() as extension:
            await register(api, extension.port)
            extension.objects = [{"metadata": {"name": "a", "finalizers": ["example.com/wait"]}}]
            extension.deletes = False
            await api("DELETE", "/api/v1/namespaces/n")
            await until(api, "/api/v1/namespaces/n", "flunders.wardle.example.com has 1 resource instances")
            extension.deletes = True
            await api("PATCH", "/api/v1/namespaces/n", {"metadata": {"labels": {"look": "again"}}}, **MERGE)
            await until(api, "/api/v1/namespaces/n", "NotFound")
            assert f"{ROOT}/namespaces/n/flunders" in [
                asked.path for asked in extension.asked if asked.method == "DELETE"
            ]

    play_with_proxy(scenario)


def test_namespace_waits_for_an_extension_that_is_away(play: Play, register: Any) -> None:
    async def scenario(api: Any) -> None:
        await register(api, 0, "ServiceNotFound", service={"namespace": "default", "name": "s"})
        await api("POST", "/api/v1/namespaces", {"metadata": {"name": "n"}})
        await api("DELETE", "/api/v1/namespaces/n")
        result = await until(api, "/api/v1/namespaces/n", "NamespaceDeletionDiscoveryFailure")
        conditions = {item["type"]: item for item in result["status"]["conditions"]}
        reported = conditions["NamespaceDeletionDiscoveryFailure"]
        assert (reported["status"], reported["reason"]) == ("True", "DiscoveryFailed")
        assert reported["message"].endswith(
            f"list of server APIs: {GROUP}/v1: stale GroupVersion discovery: {GROUP}/v1"
        )
        await api("DELETE", f"{SERVICES}/v1.{GROUP}")
        await until(api, "/api/v1/namespaces/n", "NotFound")

    play(scenario)


def test_object_with_an_owner_in_an_extension_stays(play: Play, register: Any) -> None:
    owner = {"apiVersion": f"{GROUP}/v1", "kind": "Flunder", "name": "f", "uid": "9d0e"}

    async def scenario(api: Any) -> None:
        await register(api, 0, "ServiceNotFound", service={"namespace": "default", "name": "s"})
        maps = "/api/v1/namespaces/default/configmaps"
        known = {"apiVersion": "v1", "kind": "ConfigMap"}
        await api("POST", maps, {"metadata": {"name": "owned", "ownerReferences": [owner]}})
        await api("POST", maps, {"metadata": {"name": "lost", "ownerReferences": [{**owner, **known}]}})
        await api.settle()
        assert ((await api("GET", f"{maps}/owned"))[0], (await api("GET", f"{maps}/lost"))[0]) == (200, 404)

    play(scenario)


def test_extensions_learn_whom_to_believe(
    play_with_proxy: Play, credentials: Path, proxy_settings: dict[str, Path]
) -> None:
    async def scenario(api: Any) -> None:
        path = "/api/v1/namespaces/kube-system/configmaps/extension-apiserver-authentication"
        _, result = await api("GET", path)
        data = result["data"]
        assert data["client-ca-file"] == (credentials / "ca.crt").read_text()
        assert data["requestheader-client-ca-file"] == proxy_settings["proxy_client_ca"].read_text()
        assert data["requestheader-allowed-names"] == '["front-proxy-client"]'
        assert data["requestheader-extra-headers-prefix"] == '["X-Remote-Extra-"]'
        await api("DELETE", path)
        await api.settle()
        assert (await api("GET", path))[1]["data"] == data

    play_with_proxy(scenario)
