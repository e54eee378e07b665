"""Why endpoints are chosen, against the three steps of Kubernetes said in another way."""

from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from podwire.proxy.resolve import Candidate, SelectionReason, choose, explain
from podwire.proxy.servicemap import NodeFacts, ResolvedEndpoint

NODES, ZONES = ("n1", "n2"), ("z1", "z2")
HINTS = st.frozensets(st.sampled_from(ZONES), max_size=2)


@st.composite
def worlds(draw: st.DrawFn) -> tuple[tuple[Candidate, ...], NodeFacts]:
    count = draw(st.integers(0, 5))
    hinted = draw(st.booleans())
    candidates = tuple(
        Candidate(
            endpoint=ResolvedEndpoint(f"10.0.0.{number}", 80, draw(st.booleans())),
            ready=draw(st.booleans()),
            serving=draw(st.booleans()),
            terminating=draw(st.booleans()),
            zones=frozenset([draw(st.sampled_from(ZONES))]) if hinted else draw(HINTS),
            nodes=draw(st.frozensets(st.sampled_from(NODES), max_size=1)),
        )
        for number in range(count)
    )
    return candidates, NodeFacts(name="n1", zone=draw(st.sampled_from(("", "z1", "z3"))))


def by_the_book(
    candidates: tuple[Candidate, ...], node: NodeFacts
) -> tuple[list[ResolvedEndpoint], list[ResolvedEndpoint]]:
    """The endpoints of policy Cluster and of policy Local."""
    ready = [c for c in candidates if c.ready]
    serving = [c for c in candidates if c.terminating and c.serving and not c.ready]
    meant = [
        *([[c for c in ready if node.name in c.nodes]] if all(c.nodes for c in ready) else []),
        *([[c for c in ready if node.zone in c.zones]] if node.zone and all(c.zones for c in ready) else []),
    ]
    cluster = next((subset for subset in meant if subset), ready) or serving
    local = [c for c in ready if c.endpoint.local] or [c for c in serving if c.endpoint.local]
    return [c.endpoint for c in cluster], [c.endpoint for c in local]


@given(worlds())
def test_explained_choice_equals_the_chosen_endpoints(world: tuple[tuple[Candidate, ...], NodeFacts]) -> None:
    candidates, node = world
    explained, choice = explain(candidates, node), choose(candidates, node)
    assert tuple(item.candidate for item in explained) == candidates
    assert tuple(item.candidate.endpoint for item in explained if item.cluster.chosen) == choice.cluster
    assert tuple(item.candidate.endpoint for item in explained if item.local.chosen) == choice.local
    assert (list(choice.cluster), list(choice.local)) == by_the_book(candidates, node)
    assert choice.any == any(c.ready or (c.serving and c.terminating) for c in candidates)


@given(worlds())
def test_each_reason_is_true(world: tuple[tuple[Candidate, ...], NodeFacts]) -> None:
    candidates, node = world
    anyone_ready = any(c.ready for c in candidates)
    for item in explain(candidates, node):
        c = item.candidate
        true = {
            SelectionReason.READY: c.ready,
            SelectionReason.HINTED_FOR_NODE: c.ready and node.name in c.nodes,
            SelectionReason.HINTED_FOR_ZONE: c.ready and node.zone in c.zones,
            SelectionReason.TERMINATING_FALLBACK: not c.ready and c.terminating and c.serving,
            SelectionReason.NOT_READY: not c.ready and not c.terminating,
            SelectionReason.NOT_SERVING: not c.ready and c.terminating and not c.serving,
            SelectionReason.TERMINATING: not c.ready and c.terminating and c.serving and anyone_ready,
            SelectionReason.OTHER_NODE: c.ready and node.name not in c.nodes,
            SelectionReason.OTHER_ZONE: c.ready and node.zone not in c.zones,
            SelectionReason.NOT_LOCAL: not c.endpoint.local,
        }
        assert true[item.cluster]
        assert true[item.local]
        assert item.cluster is not SelectionReason.NOT_LOCAL


def test_the_page_names_every_reason() -> None:
    page = (Path(__file__).parents[4] / "docs/why.md").read_text()
    for why in SelectionReason:
        assert f"`{why.value}`" in page
