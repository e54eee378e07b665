"""ValidatingAdmissionPolicies: which requests they see, what their expressions decide, and what the client is told."""

import json
from collections.abc import Callable
from typing import Any

import pytest

Object = dict[str, Any]
Play = Callable[..., None]

GROUP = "/apis/admissionregistration.k8s.io/v1"
MAPS = "/api/v1/namespaces/default/configmaps"
DEPLOYMENTS = "/apis/apps/v1/namespaces/default/deployments"
MERGE = {"content_type": "application/merge-patch+json"}
RULE = {"operations": ["CREATE", "UPDATE"], "apiGroups": [""], "apiVersions": ["v1"], "resources": ["configmaps"]}
FEW = {"expression": "object.data.?size.orValue('') != 'huge'"}


def policy(*validations: Object, name: str = "p", rules: Any = (RULE,), match: Any = None, **spec: Any) -> Object:
    return {
        "metadata": {"name": name},
        "spec": {"matchConstraints": {"resourceRules": list(rules), **(match or {})},
                 "validations": list(validations) or [FEW], **spec},
    }  # fmt: skip


def binding(name: str = "b", policy: str = "p", actions: tuple[str, ...] = ("Deny",), **spec: Any) -> Object:
    return {"metadata": {"name": name}, "spec": {"policyName": policy, "validationActions": list(actions), **spec}}


def config_map(name: str, labels: Any = None, **data: str) -> Object:
    return {"metadata": {"name": name, "labels": labels or {}}, "data": data}


async def bind(api: Any, *objects: Object) -> None:
    """Writes policies and bindings."""
    for obj in objects:
        plural = "validatingadmissionpolicies" if "matchConstraints" in obj["spec"] else None
        status, answer = await api("POST", f"{GROUP}/{plural or 'validatingadmissionpolicybindings'}", obj)
        assert status == 201, answer


def denial_text(answer: Object) -> str:
    return str(answer["message"]).partition("denied request: ")[2]


def test_false_validation_refuses_the_request(play: Play) -> None:
    async def scenario(api: Any) -> None:
        await bind(api, policy(), binding())
        assert (await api("POST", MAPS, config_map("small", size="small")))[0] == 201
        status, answer = await api("POST", MAPS, config_map("big", size="huge"))
        message = (
            "configmaps \"big\" is forbidden: ValidatingAdmissionPolicy 'p' with binding 'b' denied request: "
            f"failed expression: {FEW['expression']}"
        )
        assert (status, answer["reason"], answer["message"]) == (422, "Invalid", message)
        assert answer["details"] == {
            "name": "big", "kind": "configmaps", "causes": [{"message": message.partition("forbidden: ")[2]}],
        }  # fmt: skip
        assert (await api("GET", f"{MAPS}/big"))[0] == 404
        status, answer = await api("PATCH", f"{MAPS}/small", {"data": {"size": "huge"}}, **MERGE)
        assert status == 422

    play(scenario)


@pytest.mark.parametrize(
    ("validation", "code", "message"),
    [
        ({"expression": "false", "message": " too big "}, 422, "too big"),
        ({"expression": "false", "message": "m", "messageExpression": "'is ' + object.metadata.name"}, 422, "is a"),
        ({"expression": "false", "message": "m", "messageExpression": "string(object.metadata.none)"}, 422, "m"),
        ({"expression": "false", "message": "m", "messageExpression": "'two\\nlines'"}, 422, "m"),
        ({"expression": "false", "reason": "Forbidden"}, 403, "failed expression: false"),
        ({"expression": "false", "reason": "RequestEntityTooLarge"}, 413, "failed expression: false"),
        (
            {"expression": "object.metadata.none == 'x'"}, 422,
            "expression 'object.metadata.none == 'x'' resulted in error: no such key: none",
        ),
    ],
)  # fmt: skip
def test_refusal_has_the_words_and_code_of_the_policy(play: Play, validation: Object, code: int, message: str) -> None:
    async def scenario(api: Any) -> None:
        await bind(api, policy(validation), binding())
        status, answer = await api("POST", MAPS, config_map("a"))
        assert (status, denial_text(answer)) == (code, message)

    play(scenario)


@pytest.mark.parametrize(
    "expression",
    [
        "request.operation == 'CREATE' && oldObject == null && object.data.k == 'v'",
        "request.userInfo.username == 'admin' && 'system:masters' in request.userInfo.groups && !request.dryRun",
        "request.kind.kind == 'ConfigMap' && request.resource.resource == 'configmaps' && request.name == 'a'",
        "request.namespace == 'default' && !has(request.subResource) && request.requestKind.version == 'v1'",
        "namespaceObject.metadata.name == 'default' && namespaceObject.status.phase == 'Active'",
        "'kubernetes.io/metadata.name' in namespaceObject.metadata.labels",
        "authorizer.group('').resource('pods').namespace('x').check('get').allowed()",
        "!authorizer.serviceAccount('default', 'default').group('').resource('pods').check('get').allowed()",
        "authorizer.path('/healthz').check('get').allowed() && authorizer.requestResource.check('create').allowed()",
        "variables.twice == 2 && variables.next == 3 && (false || variables.keys == ['k'])",
        "has(object.missing) ? variables.broken : true",
        "variables.moment.getFullYear() == 2026 && variables.sum.isGreaterThan(quantity('1'))",
    ],
)
def test_expression_sees_the_request(play: Play, expression: str) -> None:
    variables = [
        {"name": "twice", "expression": "object.data.size() * 2"},
        {"name": "next", "expression": "variables.twice + 1"},
        {"name": "keys", "expression": "object.data.map(k, k)"},
        {"name": "broken", "expression": "object.metadata.none == 'x'"},
        {"name": "moment", "expression": "timestamp('2026-01-01T00:00:00Z')"},
        {"name": "sum", "expression": "quantity('1').add(1)"},
    ]

    async def scenario(api: Any) -> None:
        await bind(api, policy({"expression": expression}, variables=variables), binding())
        status, answer = await api("POST", MAPS, config_map("a", k="v"))
        assert status == 201, answer

    play(scenario)


def test_variable_without_value_fails_its_expressions(play: Play) -> None:
    async def scenario(api: Any) -> None:
        variables = [{"name": "v", "expression": "object.metadata.none"}]
        await bind(api, policy({"expression": "variables.v == 'x'"}, variables=variables), binding())
        _, answer = await api("POST", MAPS, config_map("a"))
        assert denial_text(answer) == (
            "expression 'variables.v == 'x'' resulted in error: composited variable \"v\" fails to evaluate: "
            "no such key: none"
        )

    play(scenario)


@pytest.mark.parametrize(
    ("match", "denied"),
    [
        ({"objectSelector": {"matchLabels": {"app": "x"}}}, True),
        ({"objectSelector": {"matchLabels": {"app": "y"}}}, False),
        ({"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "default"}}}, True),
        ({"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "other"}}}, False),
        ({"excludeResourceRules": [{**RULE, "resourceNames": ["a"]}]}, False),
        ({"excludeResourceRules": [{**RULE, "resourceNames": ["b"]}]}, True),
        ({"resourceRules": [{**RULE, "resourceNames": ["b"]}]}, False),
        ({"resourceRules": [{**RULE, "operations": ["DELETE"]}]}, False),
        ({"resourceRules": [{**RULE, "scope": "Cluster"}]}, False),
    ],
)
@pytest.mark.parametrize("bound", [False, True])
def test_policy_is_for_matching_requests(play: Play, match: Object, denied: bool, bound: bool) -> None:  # noqa: FBT001
    async def scenario(api: Any) -> None:
        refusal = {"expression": "false"}
        if bound:
            await bind(api, policy(refusal), binding(matchResources=match))
        else:
            await bind(api, policy(refusal, match=match), binding())
        status, _ = await api("POST", MAPS, config_map("a", {"app": "x"}))
        assert status == (422 if denied else 201)

    play(scenario)


def test_policy_covers_equivalent_versions(play: Play) -> None:
    async def scenario(api: Any) -> None:
        rule = {"operations": ["CREATE"], "apiGroups": ["autoscaling"], "apiVersions": ["v2"],
                "resources": ["horizontalpodautoscalers"]}  # fmt: skip
        same = {"expression": "request.kind.version == 'v2' && request.requestKind.version == 'v1' && "
                              "object.apiVersion == 'autoscaling/v2'"}  # fmt: skip
        await bind(api, policy(same, {"expression": "false", "message": "seen"}, rules=[rule]), binding())
        scaler = {"metadata": {"name": "a"}, "spec": {"maxReplicas": 2, "scaleTargetRef": {"kind": "X", "name": "x"}}}
        target = "/apis/autoscaling/v1/namespaces/default/horizontalpodautoscalers"
        assert denial_text((await api("POST", target, scaler))[1]) == "seen"

    play(scenario)


def test_deletion_has_the_old_object_only(play: Play) -> None:
    async def scenario(api: Any) -> None:
        remaining = {"expression": "object != null || !has(oldObject.data.keep)", "message": "is kept"}
        await bind(api, policy(remaining, rules=[{**RULE, "operations": ["*"]}]), binding())
        await api("POST", MAPS, config_map("a", keep="yes"))
        assert denial_text((await api("DELETE", f"{MAPS}/a"))[1]) == "is kept"

    play(scenario)


def test_binding_may_warn_or_do_nothing(play: Play) -> None:
    async def scenario(api: Any) -> None:
        await bind(api, policy(), binding("b", actions=("Warn", "Audit")), binding("c", actions=("Audit",)))
        answer = await api.raw("POST", MAPS, json.dumps(config_map("a", size="huge")).encode())
        warning = (
            "Validation failed for ValidatingAdmissionPolicy 'p' with binding 'b': failed expression: "
            f"{FEW['expression']}"
        )
        assert (answer.status, answer.headers) == (201, (("Warning", f'299 - "{warning}"'),))

    play(scenario)


def test_policy_without_binding_does_nothing(play: Play) -> None:
    async def scenario(api: Any) -> None:
        await bind(api, policy({"expression": "false"}))
        assert (await api("POST", MAPS, config_map("a")))[0] == 201
        await bind(api, binding())
        assert (await api("POST", MAPS, config_map("b")))[0] == 422
        await api("DELETE", f"{GROUP}/validatingadmissionpolicybindings/b")
        assert (await api("POST", MAPS, config_map("b")))[0] == 201

    play(scenario)


def test_changed_policy_is_in_force_at_once(play: Play) -> None:
    async def scenario(api: Any) -> None:
        await bind(api, policy({"expression": "false"}), binding())
        assert (await api("POST", MAPS, config_map("a")))[0] == 422
        change = {"spec": {"validations": [{"expression": "true"}]}}
        await api("PATCH", f"{GROUP}/validatingadmissionpolicies/p", change, **MERGE)
        assert (await api("POST", MAPS, config_map("a")))[0] == 201

    play(scenario)


LIMIT = {
    "expression": "object.data.size() <= int(params.data.most)",
    "messageExpression": "'most is ' + params.data.most",
}
KIND: Object = {"paramKind": {"apiVersion": "v1", "kind": "ConfigMap"}}


@pytest.mark.parametrize(
    ("reference", "message"),
    [
        ({"name": "limit", "namespace": "kube-system"}, "most is 1"),
        ({"name": "limit"}, "most is 0"),
        ({"selector": {"matchLabels": {"limit": "yes"}}, "namespace": "kube-system"}, "most is 1"),
        ({"selector": {}, "namespace": "kube-public", "parameterNotFoundAction": "Allow"}, ""),
        ({"name": "missing", "parameterNotFoundAction": "Allow"}, ""),
        ({"name": "missing"}, "failed to configure binding: no params found for policy binding with `Deny` "
                              "parameterNotFoundAction"),
    ],
)  # fmt: skip
def test_parameters_are_found_by_name_or_selector(play: Play, reference: Object, message: str) -> None:
    async def scenario(api: Any) -> None:
        limit = config_map("limit", {"limit": "yes"}, most="1")
        await api("POST", "/api/v1/namespaces/kube-system/configmaps", limit)
        await api("POST", MAPS, config_map("limit", most="0"))
        await bind(api, policy(LIMIT, **KIND), binding(paramRef=reference))
        status, answer = await api("POST", MAPS, config_map("a", k="v", l="w"))
        assert (status, denial_text(answer) if status != 201 else "") == (422 if message else 201, message)

    play(scenario)


def test_unknown_parameter_kind_follows_the_failure_policy(play: Play) -> None:
    async def scenario(api: Any) -> None:
        kind: Object = {"paramKind": {"apiVersion": "rules.example.com/v1", "kind": "Limit"}}
        await bind(api, policy(LIMIT, **kind), binding(paramRef={"name": "x"}))
        _, answer = await api("POST", MAPS, config_map("a"))
        assert denial_text(answer) == (
            "failed to configure binding: paramKind kind `&ParamKind{APIVersion:rules.example.com/v1,Kind:Limit,}` "
            "not known"
        )
        await api("PATCH", f"{GROUP}/validatingadmissionpolicies/p", {"spec": {"failurePolicy": "Ignore"}}, **MERGE)
        assert (await api("POST", MAPS, config_map("a")))[0] == 201

    play(scenario)


@pytest.mark.parametrize(
    ("conditions", "failure_policy", "status"),
    [
        (["true"], "Fail", 422),
        (["true", "false"], "Fail", 201),
        (["object.none == 1", "false"], "Fail", 201),
        (["object.none == 1"], "Fail", 422),
        (["object.none == 1"], "Ignore", 201),
        (["params == null"], "Fail", 422),
        (["authorizer.group('').resource('pods').check('get').allowed()"], "Fail", 422),
    ],
)
def test_match_conditions_choose_requests(play: Play, conditions: list[str], failure_policy: str, status: int) -> None:
    async def scenario(api: Any) -> None:
        value = [{"name": f"c{index}", "expression": text} for index, text in enumerate(conditions)]
        spec: Object = {**KIND, "matchConditions": value, "failurePolicy": failure_policy}
        await bind(api, policy({"expression": "false"}, **spec), binding())
        assert (await api("POST", MAPS, config_map("a")))[0] == status

    play(scenario)


def test_failed_evaluation_may_be_ignored(play: Play) -> None:
    async def scenario(api: Any) -> None:
        checks = ({"expression": "object.none == 1"}, {"expression": "object.metadata.name != 'b'"})
        await bind(api, policy(*checks, failurePolicy="Ignore"), binding())
        assert (await api("POST", MAPS, config_map("a")))[0] == 201
        assert (
            denial_text((await api("POST", MAPS, config_map("b")))[1])
            == "failed expression: object.metadata.name != 'b'"
        )

    play(scenario)


def test_failed_annotation_refuses_whatever_the_action(play: Play) -> None:
    async def scenario(api: Any) -> None:
        annotations = [{"key": "k", "valueExpression": "object.metadata.labels.x"}]
        await bind(api, policy({"expression": "true"}, auditAnnotations=annotations), binding(actions=("Audit",)))
        _, answer = await api("POST", MAPS, config_map("a"))
        assert denial_text(answer) == "expression 'object.metadata.labels.x' resulted in error: no such key: labels"
        assert (await api("POST", MAPS, config_map("a", {"x": "y"})))[0] == 201

    play(scenario)


def test_policies_and_bindings_are_never_refused(play: Play) -> None:
    async def scenario(api: Any) -> None:
        rule = {**RULE, "apiGroups": ["*"], "apiVersions": ["*"], "resources": ["*"], "operations": ["*"]}
        await bind(api, policy({"expression": "false"}, rules=[rule]), binding())
        assert (await api("DELETE", f"{GROUP}/validatingadmissionpolicybindings/b"))[0] == 200
        assert (await api("POST", MAPS, config_map("a")))[0] == 201

    play(scenario)


def test_first_denial_counts(play: Play) -> None:
    async def scenario(api: Any) -> None:
        await bind(
            api, policy({"expression": "false", "message": "second"}, name="q"), binding("a", "q"),
            policy({"expression": "true"}, {"expression": "false", "message": "first"}), binding("z"),
        )  # fmt: skip
        _, answer = await api("POST", MAPS, config_map("a"))
        assert answer["message"].endswith("ValidatingAdmissionPolicy 'p' with binding 'z' denied request: first")

    play(scenario)


def test_images_of_an_environment_come_from_its_registry(play: Play) -> None:
    async def scenario(api: Any) -> None:
        labels = "namespaceObject.metadata.labels"
        variables = [
            {"name": "stage", "expression": f"'stage' in {labels} ? {labels}['stage'] : 'live'"},
            {"name": "exempt", "expression": "has(object.metadata.labels) && 'exempt' in object.metadata.labels"},
            {"name": "images", "expression": "object.spec.template.spec.containers.map(c, c.image)"},
            {"name": "wrong", "expression": "variables.images.filter(i, !i.startsWith(variables.stage + '.'))"},
        ]
        check = {
            "expression": "variables.exempt || variables.wrong.size() == 0",
            "messageExpression": "variables.wrong.join(', ') + ' is not from the registry of ' + variables.stage",
        }
        rule = {**RULE, "apiGroups": ["apps"], "resources": ["deployments"]}
        await bind(api, policy(check, rules=[rule], variables=variables), binding())

        def deployment(image: str, **more: str) -> Object:
            app = {"app": "x"}
            pod = {"metadata": {"labels": app}, "spec": {"containers": [{"name": "c", "image": image}]}}
            return {
                "metadata": {"name": "d", "labels": more},
                "spec": {"selector": {"matchLabels": app}, "template": pod},
            }

        _, answer = await api("POST", DEPLOYMENTS, deployment("test.example.com/a"))
        assert denial_text(answer) == "test.example.com/a is not from the registry of live"
        change = {"metadata": {"labels": {"stage": "test"}}}
        await api("PATCH", "/api/v1/namespaces/default", change, **MERGE)
        assert (await api("POST", f"{DEPLOYMENTS}?dryRun=All", deployment("test.example.com/a")))[0] == 201
        assert (await api("POST", f"{DEPLOYMENTS}?dryRun=All", deployment("other/a", exempt="yes")))[0] == 201
        assert (await api("POST", DEPLOYMENTS, deployment("other/a")))[0] == 422

    play(scenario)
