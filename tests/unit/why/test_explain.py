"""The entry point: explainers that are registered, what they add, and a second look at rules that differ."""

import asyncio
import json

import msgspec
import pytest
from tests.fakes.clock import FakeClock
from tests.unit.why.test_question import OBJECTS, Planned, access

from podwire.model.node import Node
from podwire.proxy.servicemap import ServiceMap
from podwire.trace.nft import Tracer
from podwire.why import answer_text
from podwire.why.answer import Answer, ExplainerFinding, MatchedRule
from podwire.why.cluster import ClusterAccess
from podwire.why.explain import explain
from podwire.why.kernels import NodeKernels
from podwire.why.question import Question, TypedQuestion
from podwire.why.registry import EXPLAINERS
from podwire.why.services.hop import ServiceRules

ASKED = TypedQuestion(source="client", target="svc/shop/web")


async def explain_routing(question: Question, answer: Answer, cluster: ClusterAccess) -> Answer:
    """A part that is explained by one function and one line of the registry."""
    device = cluster.nodes.device(question.node, answer.target.address)
    step = MatchedRule(layer="routing", where="main", rule=f"{answer.target.address} dev {device}")
    finding = ExplainerFinding(part="routing", message=f"leaves {answer.hops[0].node} by {device}", steps=(step,))
    return msgspec.structs.replace(answer, findings=(*answer.findings, finding))


def test_explainer_is_a_function_and_a_registry_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(EXPLAINERS, "routing", "tests.unit.why.test_explain:explain_routing")
    answer = asyncio.run(explain(ASKED, ClusterAccess(objects=OBJECTS, nodes=Planned())))
    assert answer.outcome == "forwarded"
    assert json.loads(msgspec.json.encode(answer))["findings"] == [
        {
            "part": "routing",
            "message": "leaves node-1 by eth0",
            "steps": [{"layer": "routing", "where": "main", "rule": "10.96.0.10 dev eth0"}],
        }
    ]
    lines = list(answer_text.render(answer))
    assert "routing   leaves node-1 by eth0" in lines
    assert lines[lines.index("rules of routing") :][:3] == ["rules of routing", "  main", "      10.96.0.10 dev eth0"]


def test_notes_of_the_cluster_come_last() -> None:
    answer = asyncio.run(explain(ASKED, ClusterAccess(objects=OBJECTS, nodes=Planned(), notes=("from files",))))
    assert answer.notes == ("read node-1", "read node-2", "from files")


class Behind(NodeKernels):
    """Nodes whose kernels get the rules only after a while; ``late`` says how often they are read too early."""

    def __init__(self, late: int) -> None:
        super().__init__(access, FakeClock(), planned=True)
        self.late = late

    def service_rules(self, node: Node, services: ServiceMap) -> ServiceRules:
        rules = super().service_rules(node, services)
        return msgspec.structs.replace(rules, held=Tracer([], rules.machine) if self.late > 0 else rules.planned)

    async def settle(self) -> None:
        self.late -= 1


@pytest.mark.parametrize(("late", "drifted"), [(0, False), (1, False), (2, True)])
def test_rules_that_differ_are_read_a_second_time(late: int, *, drifted: bool) -> None:
    answer = asyncio.run(explain(ASKED, ClusterAccess(objects=OBJECTS, nodes=Behind(late))))
    assert answer.drifted == drifted
