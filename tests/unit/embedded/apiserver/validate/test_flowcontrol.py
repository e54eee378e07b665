"""Rules and defaults of flowcontrol.apiserver.k8s.io."""

from collections.abc import Callable
from typing import Any

import pytest

FLOWCONTROL = "/apis/flowcontrol.apiserver.k8s.io/v1"
SCHEMAS = f"{FLOWCONTROL}/flowschemas"
LEVELS = f"{FLOWCONTROL}/prioritylevelconfigurations"
MERGE = "application/merge-patch+json"


def schema(**spec: Any) -> dict[str, Any]:
    return {"metadata": {"name": "x"}, "spec": {"priorityLevelConfiguration": {"name": "p"}, **spec}}


def level(**spec: Any) -> dict[str, Any]:
    return {"metadata": {"name": "x"}, "spec": spec}


REJECT = {"limitResponse": {"type": "Reject"}}
USER = {"kind": "User", "user": {"name": "u"}}
WRONG: list[tuple[str, dict[str, Any], str]] = [
    (SCHEMAS, schema(priorityLevelConfiguration={"name": ""}), "spec.priorityLevelConfiguration.name"),
    (SCHEMAS, schema(matchingPrecedence=10001), "spec.matchingPrecedence"),
    (SCHEMAS, schema(distinguisherMethod={"type": "ByHair"}), "spec.distinguisherMethod"),
    (SCHEMAS, schema(rules=[{"subjects": [USER]}]), "spec.rules[0]"),
    (LEVELS, level(type="Other"), "spec.type"),
    (LEVELS, level(type="Limited"), "spec.limited"),
    (LEVELS, level(type="Exempt", limited=REJECT), "spec.limited"),
    (LEVELS, level(type="Limited", limited={"limitResponse": {"type": "Queue"}}), "spec.limited.limitResponse.queuing"),
]


@pytest.mark.parametrize(("path", "body", "field"), WRONG)
def test_wrong_flow_control_is_refused(play: Callable[..., None], path: str, body: dict[str, Any], field: str) -> None:
    async def scenario(api: Any) -> None:
        status, answer = await api("POST", path, body)
        assert status == 422, answer
        assert [cause["field"] for cause in answer["details"]["causes"]] == [field]

    play(scenario)


def test_flow_control_gets_defaults_and_generations(play: Callable[..., None]) -> None:
    async def scenario(api: Any) -> None:
        _, created = await api("POST", SCHEMAS, schema())
        assert (created["spec"]["matchingPrecedence"], created["metadata"]["generation"]) == (1000, 1)
        _, after = await api("PATCH", f"{SCHEMAS}/x", {"spec": {"matchingPrecedence": 9}}, content_type=MERGE)
        assert after["metadata"]["generation"] == 2
        patch = {"metadata": {"labels": {"a": "b"}}, "status": {"conditions": [{"type": "Dangling", "status": "True"}]}}
        _, after = await api("PATCH", f"{SCHEMAS}/x/status", patch, content_type=MERGE)
        assert after["status"] == patch["status"] and "labels" not in after["metadata"]
        queue = {"limitResponse": {"type": "Queue", "queuing": {}}}
        _, created = await api("POST", LEVELS, level(type="Limited", limited=queue))
        assert created["spec"]["limited"]["nominalConcurrencyShares"] == 30
        assert created["spec"]["limited"]["limitResponse"]["queuing"]["queues"] == 64

    play(scenario)
