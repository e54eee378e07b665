"""Webhooks of a scripted HTTPS server: what they get, and what their answers do to a request."""

import asyncio
import json
from typing import Any

import pytest
from tests.unit.embedded.apiserver.admission.scripted_webhook import (
    HOOKS,
    MAPS,
    MERGE,
    RULE,
    Object,
    Play,
    patched,
)

from podwire.embedded.apiserver.calls import Call, UserInfo, parse_target
from podwire.embedded.apiserver.connectoptions import read_options, with_options
from podwire.embedded.apiserver.kinds import KINDS
from podwire.http.message import Request, Response


def _set(key: str, value: str) -> Object:
    return patched({"op": "add", "path": f"/data/{key}", "value": value})


def _map(name: str, **data: str) -> Object:
    return {"metadata": {"name": name, "labels": {"app": name}}, "data": data}


def test_webhook_gets_the_review_of_a_write(play: Play, serve: Any, configure: Any) -> None:
    async def scenario(api: Any) -> None:
        async with serve(lambda *_: {"allowed": True, "warnings": ["take care"]}) as hook:
            await configure(api, hook.url)
            answer = await api.raw("POST", MAPS, json.dumps(_map("a", k="v")).encode())
            assert (answer.status, answer.headers) == (201, (("Warning", '299 - "take care"'),))
            await api("PATCH", f"{MAPS}/a", {"data": {"k": "w"}}, content_type="application/merge-patch+json")
            await api("DELETE", f"{MAPS}/a")
            created, updated, deleted = (asked for _, asked in hook.asked)
        assert created["kind"] == {"group": "", "version": "v1", "kind": "ConfigMap"}
        assert created["resource"] == {"group": "", "version": "v1", "resource": "configmaps"}
        assert (created["name"], created["namespace"], created["operation"]) == ("a", "default", "CREATE")
        assert created["userInfo"] == {"username": "admin", "groups": ["system:masters", "system:authenticated"]}
        assert (created["object"]["data"], created["oldObject"], created["dryRun"]) == ({"k": "v"}, None, False)
        assert created["options"] == {"kind": "CreateOptions", "apiVersion": "meta.k8s.io/v1"}
        assert (updated["operation"], updated["object"]["data"]) == ("UPDATE", {"k": "w"})
        assert (updated["oldObject"]["data"], updated["options"]["kind"]) == ({"k": "v"}, "PatchOptions")
        assert (deleted["operation"], deleted["object"], deleted["oldObject"]["data"]) == ("DELETE", None, {"k": "w"})

    play(scenario)


@pytest.mark.parametrize(
    ("answer", "code", "reason", "message"),
    [
        ({"allowed": False}, 400, "", " without explanation"),
        ({"allowed": False, "status": {"reason": "Odd"}}, 400, "Odd", ": Odd"),
        ({"allowed": False, "status": {"message": "no", "code": 403, "reason": "Forbidden"}}, 403, "Forbidden", ": no"),
    ],
)
def test_denied_request_says_why(
    play: Play, serve: Any, configure: Any, answer: Object, code: int, reason: str, message: str
) -> None:
    async def scenario(api: Any) -> None:
        async with serve(lambda *_: answer) as hook:
            await configure(api, hook.url)
            status, result = await api("POST", MAPS, _map("a"))
            reported = f'admission webhook "hooks.example.com" denied the request{message}'
            assert (status, result["code"], result["message"]) == (code, code, reported)
            assert result["reason"] == (reason or "BadRequest")
            assert (await api("GET", f"{MAPS}/a"))[0] == 404

    play(scenario)


def _answers(uid: str = "?", **fields: Any) -> Response:
    review = {"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "response": {"uid": uid}, **fields}
    return Response(200, json.dumps(review).encode())


@pytest.mark.parametrize(
    ("answer", "problem"),
    [
        (Response(500, b"boom"), 'failed to call webhook: an error on the server ("boom") has prevented the request'),
        (Response(404, b""), "failed to call webhook: the server could not find the requested resource"),
        (Response(200, b"{"), "received invalid webhook response: couldn't get version/kind; json parse error"),
        (_answers(kind="Pod"), "received invalid webhook response: expected webhook response of admission.k8s.io/v1"),
        (_answers(response=None), "received invalid webhook response: webhook response was absent"),
        (_answers(), 'received invalid webhook response: expected response.uid="'),
    ],
)
def test_failing_webhook_fails_the_request_by_its_policy(
    play: Play, serve: Any, configure: Any, answer: Response, problem: str
) -> None:
    async def scenario(api: Any) -> None:
        async with serve(lambda *_: answer) as hook:
            await configure(api, hook.url)
            status, result = await api("POST", MAPS, _map("a"))
            reported = f'Internal error occurred: failed calling webhook "hooks.example.com": {problem}'
            assert (status, result["reason"]) == (500, "InternalError")
            assert result["message"].startswith(reported), result["message"]
            await api("DELETE", f"{HOOKS}/validatingwebhookconfigurations/hooks")
            await configure(api, hook.url, failurePolicy="Ignore")
            assert (await api("POST", MAPS, _map("a")))[0] == 201

    play(scenario)


def test_slow_and_absent_webhooks_fail_in_time(play: Play, serve: Any, configure: Any) -> None:
    async def slow() -> Object:
        await asyncio.sleep(30)
        return {"allowed": True}

    async def scenario(api: Any) -> None:
        async with serve(lambda *_: slow()) as hook:
            await configure(api, hook.url, timeoutSeconds=1)
            _, result = await api("POST", MAPS, _map("a"))
            assert result["message"].endswith(f'Post "{hook.url}/?timeout=1s": context deadline exceeded')
        _, result = await api("POST", MAPS, _map("a"))
        assert result["message"].endswith("connect: connection refused")
        await api("DELETE", f"{HOOKS}/validatingwebhookconfigurations/hooks")
        service = {"service": {"namespace": "default", "name": "none", "path": "/x"}}
        await configure(api, "", clientConfig=service)
        _, result = await api("POST", MAPS, _map("a"))
        assert result["message"].endswith('Post "https://none.default.svc:443/x?timeout=10s": service "none" not found')

    play(scenario)


def test_certificate_of_another_authority_is_refused(play: Play, serve: Any, configure: Any) -> None:
    async def scenario(api: Any) -> None:
        async with serve(lambda *_: {"allowed": True}) as hook:
            await configure(api, hook.url, clientConfig={"url": hook.url})
            _, result = await api("POST", MAPS, _map("a"))
            assert "tls: failed to verify certificate" in result["message"]

    play(scenario)


def test_mutating_webhooks_change_objects_in_order_of_names(play: Play, serve: Any, configure: Any) -> None:
    def script(path: str, asked: Object) -> Object:
        observed = "".join(asked["object"]["data"])
        return _set(path[1], observed)

    async def scenario(api: Any) -> None:
        async with serve(script) as hook:
            await configure(api, f"{hook.url}/b", "Mutating", "second")
            await configure(api, f"{hook.url}/a", "Mutating", "first")
            await configure(api, f"{hook.url}/v", "Validating", "last")
            hook.script = lambda path, asked: {"allowed": True} if path[1] == "v" else script(path, asked)
            _, result = await api("POST", MAPS, _map("m", x=""))
            assert result["data"] == {"x": "", "a": "x", "b": "xa"}
            assert [path[1] for path, _ in hook.asked] == ["a", "b", "v"]
            assert hook.asked[-1][1]["object"]["data"] == result["data"]

    play(scenario)


def test_webhook_is_called_again_after_a_later_change(play: Play, serve: Any, configure: Any) -> None:
    async def scenario(api: Any) -> None:
        async with serve(lambda path, asked: _set(path[1], "".join(sorted(asked["object"]["data"])))) as hook:
            await configure(api, f"{hook.url}/a", "Mutating", "a", reinvocationPolicy="IfNeeded")
            await configure(api, f"{hook.url}/b", "Mutating", "b")
            _, result = await api("POST", MAPS, _map("m", x=""))
            assert result["data"] == {"x": "", "a": "abx", "b": "ax"}
            assert [path[1] for path, _ in hook.asked] == ["a", "b", "a"]

    play(scenario)


def test_bad_patches_fail_the_request(play: Play, serve: Any, configure: Any) -> None:
    cases: tuple[tuple[Object, str], ...] = (
        ({"allowed": True, "patch": "W10="}, "webhook returned response.patch but not response.patchType"),
        ({"allowed": True, "patchType": "JSONPatch"}, "webhook returned response.patchType but not response.patch"),
        ({"allowed": True, "patchType": "Merge", "patch": "W10="}, 'unsupported patch type "Merge"'),
        (patched({"op": "remove", "path": "/nothing"}), "Internal error occurred: "),
        (patched({"op": "replace", "path": "/metadata/name", "value": "z"}), "was changed from m to z"),
    )

    async def scenario(api: Any) -> None:
        async with serve(lambda *_: {}) as hook:
            await configure(api, hook.url, "Mutating")
            for answer, problem in cases:
                hook.script = lambda *_, answer=answer: answer
                status, result = await api("POST", MAPS, _map("m"))
                assert status in (400, 500) and problem in result["message"], result

    play(scenario)


@pytest.mark.parametrize(
    ("fields", "called"),
    [
        ({"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "default"}}}, True),
        ({"namespaceSelector": {"matchLabels": {"team": "x"}}}, False),
        ({"objectSelector": {"matchLabels": {"app": "m"}}}, True),
        ({"objectSelector": {"matchLabels": {"app": "other"}}}, False),
        ({"rules": [{**RULE, "operations": ["UPDATE"]}]}, False),
        ({"rules": [{**RULE, "resources": ["*/*"]}]}, True),
        ({"rules": [{**RULE, "resources": ["configmaps/status"]}]}, False),
        ({"rules": [{**RULE, "scope": "Cluster"}]}, False),
        ({"rules": [{**RULE, "apiGroups": ["apps"]}]}, False),
    ],
)
def test_rules_and_selectors_choose_requests(
    play: Play, serve: Any, configure: Any, fields: Object, called: bool
) -> None:
    async def scenario(api: Any) -> None:
        async with serve(lambda *_: {"allowed": True}) as hook:
            await configure(api, hook.url, **fields)
            assert (await api("POST", MAPS, _map("m")))[0] == 201
            assert bool(hook.asked) is called

    play(scenario)


def test_webhook_may_want_another_version(play: Play, serve: Any, configure: Any) -> None:
    scaler = {
        "metadata": {"name": "s"},
        "spec": {"scaleTargetRef": {"kind": "Deployment", "name": "d"}, "maxReplicas": 3, "minReplicas": 1},
    }
    rule = {**RULE, "apiGroups": ["autoscaling"], "resources": ["horizontalpodautoscalers"]}
    path = "/apis/autoscaling/v2/namespaces/default/horizontalpodautoscalers"

    async def scenario(api: Any) -> None:
        async with serve(lambda *_: patched({"op": "add", "path": "/spec/maxReplicas", "value": 5})) as hook:
            await configure(api, hook.url, "Mutating", rules=[rule])
            _, result = await api("POST", path, scaler)
            assert (result["apiVersion"], result["spec"]["maxReplicas"]) == ("autoscaling/v2", 5)
            asked = hook.asked[0][1]
            assert (asked["object"]["apiVersion"], asked["kind"]["version"]) == ("autoscaling/v1", "v1")
            assert asked["requestKind"]["version"] == "v2"

    play(scenario)


def test_dry_run_calls_only_webhooks_without_side_effects(play: Play, serve: Any, configure: Any) -> None:
    async def scenario(api: Any) -> None:
        async with serve(lambda *_: {"allowed": True}) as hook:
            await configure(api, hook.url, sideEffects="NoneOnDryRun")
            status, _ = await api("POST", f"{MAPS}?dryRun=All", _map("m"))
            assert (status, hook.asked[0][1]["dryRun"]) == (201, True)

    play(scenario)


def test_webhooks_cannot_lock_their_own_configurations(play: Play, serve: Any, configure: Any) -> None:
    rule = {"operations": ["*"], "apiGroups": ["*"], "apiVersions": ["*"], "resources": ["*/*"]}

    async def scenario(api: Any) -> None:
        async with serve(lambda *_: {"allowed": False}) as hook:
            await configure(api, hook.url, rules=[rule])
            assert (await api("POST", MAPS, _map("m")))[0] == 400
            assert (await api("POST", "/api/v1/namespaces", {"metadata": {"name": "n"}}))[0] == 400
            assert (await api("DELETE", f"{HOOKS}/validatingwebhookconfigurations/hooks"))[0] == 200
            assert (await api("POST", MAPS, _map("m")))[0] == 201

    play(scenario)


def test_write_begins_again_when_its_object_changed_meanwhile(play: Play, serve: Any, configure: Any) -> None:
    async def scenario(api: Any) -> None:
        reached, go = asyncio.Event(), asyncio.Event()

        async def hold() -> Object:
            reached.set()
            await go.wait()
            return {"allowed": True}

        async with serve(lambda *_: {"allowed": True}) as hook:
            await api("POST", MAPS, _map("m", a="1"))
            _, old = await api("GET", f"{MAPS}/m")
            await configure(api, hook.url)
            hook.script = lambda *_: hold()
            patch = asyncio.ensure_future(api("PATCH", f"{MAPS}/m", {"data": {"b": "2"}}, **MERGE))
            replace = asyncio.ensure_future(api("PUT", f"{MAPS}/m", old | {"data": {"z": ""}}))
            await reached.wait()
            hook.script = lambda *_: {"allowed": True}
            await api("PATCH", f"{MAPS}/m", {"data": {"c": "3"}}, **MERGE)
            go.set()
            assert (await patch)[1]["data"] == {"a": "1", "b": "2", "c": "3"}
            assert (await replace)[0] == 409

    play(scenario)


def test_two_creations_of_one_name_store_one_object(play: Play, serve: Any, configure: Any) -> None:
    async def scenario(api: Any) -> None:
        async with serve(lambda *_: {"allowed": True}) as hook:
            await configure(api, hook.url)
            answers = await asyncio.gather(*(api("POST", MAPS, _map("m")) for _ in range(4)))
            assert sorted(status for status, _ in answers) == [201, 409, 409, 409]

    play(scenario)


def test_services_created_at_once_get_addresses_of_their_own(play: Play, serve: Any, configure: Any) -> None:
    services = "/api/v1/namespaces/default/services"
    spec = {"type": "NodePort", "ports": [{"port": 80}]}

    async def scenario(api: Any) -> None:
        async with serve(lambda *_: {"allowed": True}) as hook:
            await configure(api, hook.url, rules=[{**RULE, "resources": ["services"]}])
            bodies = [{"metadata": {"name": f"s{n}"}, "spec": spec} for n in range(20)]
            answers = await asyncio.gather(*(api("POST", services, body) for body in bodies))
            assert {status for status, _ in answers} == {201}, answers
            assert len({result["spec"]["clusterIP"] for _, result in answers}) == 20
            assert len({result["spec"]["ports"][0]["nodePort"] for _, result in answers}) == 20

    play(scenario)


def test_evictions_and_scales_are_reviewed_by_their_own_kind(play: Play, serve: Any, configure: Any) -> None:
    deployments = "/apis/apps/v1/namespaces/default/deployments"
    template = {"metadata": {"labels": {"a": "b"}}, "spec": {"containers": [{"name": "c", "image": "i"}]}}
    spec = {"selector": {"matchLabels": {"a": "b"}}, "template": template}
    rule = {**RULE, "apiGroups": ["apps", ""], "resources": ["deployments/scale", "pods/eviction"]}

    async def scenario(api: Any) -> None:
        async with serve(lambda *_: {"allowed": True}) as hook:
            await configure(api, hook.url, rules=[rule])
            await api("POST", deployments, {"metadata": {"name": "d"}, "spec": spec})
            status, _ = await api("PATCH", f"{deployments}/d/scale", {"spec": {"replicas": 3}}, **MERGE)
            await api("POST", "/api/v1/namespaces/default/pods", {"metadata": {"name": "p"}, "spec": template["spec"]})
            await api("POST", "/api/v1/namespaces/default/pods/p/eviction", {"metadata": {"name": "p"}})
            (_, scaled), (_, evicted) = hook.asked
            assert (status, scaled["kind"]["kind"], scaled["object"]["spec"]) == (200, "Scale", {"replicas": 3})
            assert (scaled["subResource"], evicted["subResource"]) == ("scale", "eviction")
            assert (evicted["kind"]["kind"], evicted["operation"]) == ("Eviction", "CREATE")

    play(scenario)


@pytest.mark.parametrize("kind", ["Mutating", "Validating"])
@pytest.mark.parametrize(
    ("conditions", "failure_policy", "status", "calls"),
    [
        (["object.data.k == 'v'", "request.userInfo.username == 'admin'"], "Fail", 201, 1),
        (["true", "object.data.k == 'w'"], "Fail", 201, 0),
        (["object.none == 1", "oldObject != null"], "Fail", 201, 0),
        (["object.none == 1", "true"], "Ignore", 201, 0),
        (["object.none == 1", "true"], "Fail", 403, 0),
        (["!authorizer.requestResource.check('create').allowed()"], "Fail", 201, 0),
    ],
)
def test_match_conditions_choose_requests(
    play: Play,
    serve: Any,
    configure: Any,
    kind: str,
    conditions: list[str],
    failure_policy: str,
    status: int,
    calls: int,
) -> None:
    async def scenario(api: Any) -> None:
        async with serve(lambda *_: {"allowed": True}) as hook:
            value = [{"name": f"c{index}", "expression": text} for index, text in enumerate(conditions)]
            await configure(api, hook.url, kind, matchConditions=value, failurePolicy=failure_policy)
            result, answer = await api("POST", MAPS, _map("a", k="v"))
            assert (result, len(hook.asked)) == (status, calls)
            if status == 403:
                assert answer["message"] == (
                    "configmaps \"a\" is forbidden: expression 'object.none == 1' resulted in error: no such key: none"
                )

    play(scenario)


PODS = "/api/v1/namespaces/default/pods"


@pytest.mark.parametrize(
    ("target", "options"),
    [
        ("exec?command=sh&command=-c&stdin=true&container=c",
         {"kind": "PodExecOptions", "stdin": True, "container": "c", "command": ["sh", "-c"]}),
        ("attach?stdout=1&tty=false", {"kind": "PodAttachOptions", "stdout": True}),
        ("portforward?ports=80,443", {"kind": "PodPortForwardOptions", "ports": [80, 443]}),
        ("proxy/a/b?x=y", {"kind": "PodProxyOptions", "path": "/a/b"}),
    ],
)  # fmt: skip
def test_connections_are_reviewed_with_their_options(
    play: Play, serve: Any, configure: Any, target: str, options: Object
) -> None:
    rule = {**RULE, "operations": ["CONNECT"], "resources": ["pods/*"]}

    async def scenario(api: Any) -> None:
        async with serve(lambda *_: {"allowed": False, "status": {"message": "no shells", "code": 403}}) as hook:
            await configure(api, hook.url, rules=[rule])
            status, result = await api("POST", f"{PODS}/p/{target}")
            assert (status, result["message"]) == (
                403, 'admission webhook "hooks.example.com" denied the request: no shells',
            )  # fmt: skip
            ((_, asked),) = hook.asked
            sub = target.partition("?")[0].partition("/")[0]
            assert (asked["operation"], asked["subResource"], asked["name"]) == ("CONNECT", sub, "p")
            assert asked["kind"] == {"group": "", "version": "v1", "kind": options["kind"]}
            assert (asked["object"], asked["oldObject"]) == ({"apiVersion": "v1", **options}, None)
            hook.script = lambda *_: {"allowed": True}
            status, result = await api("POST", f"{PODS}/p/{target}")
            assert (status, result["message"]) == (404, 'pods "p" not found')

    play(scenario)


def test_changed_options_become_the_query_of_the_connection() -> None:
    request = Request("POST", f"{PODS}/p/exec?command=sh&tty=true", {}, b"")
    call = Call(request, UserInfo("u"), parse_target(request.segments(), KINDS))
    assert read_options(call) == {"kind": "PodExecOptions", "apiVersion": "v1", "tty": True, "command": ["sh"]}
    changed = with_options(call, {"command": ["id", "-u"], "container": "c"})
    assert changed.request.query_pairs() == [("container", "c"), ("command", "id"), ("command", "-u")]
