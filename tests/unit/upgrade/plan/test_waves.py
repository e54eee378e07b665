from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.cases.upgrade_clusters import inventory_of, node, pod

from podwire.errors import ConfigError
from podwire.upgrade.plan.steps import wave_nodes
from podwire.upgrade.plan.waves import WaveNode, WaveOptions, overfull, schedule, wave_size


def fleet(count: int, zones: int = 3) -> list[WaveNode]:
    return [WaveNode(name=f"n{number:04}", zone=f"z{number % zones}") for number in range(count)]


def names(nodes: list[WaveNode], allowed: dict[str, int], **options: object) -> list[str]:
    waves = schedule(nodes, allowed, WaveOptions(**options))  # type: ignore[arg-type]
    return [",".join(wave.nodes) for wave in waves]


def test_canary_comes_first_then_zone_after_zone() -> None:
    assert names(fleet(7), {}, max_unavailable=2) == ["n0000", "n0003,n0006", "n0001,n0004", "n0002,n0005"]


def test_spread_takes_zones_in_turn() -> None:
    assert names(fleet(7), {}, max_unavailable=3, zones="spread") == ["n0000", "n0003,n0001,n0002", "n0006,n0004,n0005"]


def test_control_plane_comes_last_one_at_a_time() -> None:
    nodes = [WaveNode(name=f"c{n}", control_plane=True) for n in range(2)] + fleet(3, 1)
    assert names(nodes, {}, max_unavailable=5) == ["n0000", "n0001,n0002", "c0", "c1"]


def test_nodes_that_are_not_ready_come_last() -> None:
    nodes = [WaveNode(name="broken", ready=False), *fleet(3, 1)]
    assert names(nodes, {}, max_unavailable=2) == ["n0000", "n0001,n0002", "broken"]


def test_budget_limits_a_wave() -> None:
    nodes = [WaveNode(name=f"n{n}", pods={"db": 1}) for n in range(4)] + [WaveNode(name="plain")]
    assert names(nodes, {"db": 2}, max_unavailable=4) == ["plain", "n0,n1", "n2,n3"]


def test_node_that_exceeds_a_budget_is_a_wave_alone() -> None:
    nodes = [*fleet(3, 1), WaveNode(name="full", pods={"db": 3})]
    assert names(nodes, {"db": 1}, max_unavailable=3) == ["n0000", "full", "n0001,n0002"]
    assert str(overfull(nodes, {"db": 1})[0]) == (
        "warning: PodDisruptionBudget db: status.disruptionsAllowed: node full has 3 of its pods and 1 may be "
        "disrupted; spread the pods over more nodes, or expect that they lose their network together"
    )


def test_named_canary_is_first() -> None:
    assert names(fleet(3, 1), {}, canary="n0002", max_unavailable=2) == ["n0002", "n0000,n0001"]
    with pytest.raises(ConfigError, match="--canary: expected a node on which the component runs, got 'x'"):
        names(fleet(3), {}, canary="x")


def test_no_nodes_make_no_waves() -> None:
    assert schedule((), {}, WaveOptions()) == ()


@pytest.mark.parametrize(("value", "nodes", "size"), [("10%", 1000, 100), ("10%", 5, 1), (3, 1000, 3), ("100%", 7, 7)])
def test_size_is_a_number_or_a_percentage(value: int | str, nodes: int, size: int) -> None:
    assert wave_size(WaveOptions(max_unavailable=value), nodes) == size


@pytest.mark.parametrize("value", ["", "0", "0%", "101%", "-1", "1.5", "many", "٣"])
def test_wrong_size_is_refused(value: str) -> None:
    with pytest.raises(ConfigError, match="--max-unavailable: expected a number of nodes"):
        wave_size(WaveOptions(max_unavailable=value), 10)


NODES = st.builds(
    WaveNode,
    name=st.uuids().map(str),
    zone=st.sampled_from(("", "a", "b", "c")),
    ready=st.booleans(),
    control_plane=st.booleans(),
    pods=st.dictionaries(st.sampled_from(("db", "web")), st.integers(1, 3), max_size=2),
)


@given(
    st.lists(NODES, max_size=40, unique_by=lambda node: node.name),
    st.fixed_dictionaries({"db": st.integers(0, 4), "web": st.integers(0, 4)}),
    st.integers(1, 10),
    st.sampled_from(("serial", "spread")),
)
def test_waves_have_every_node_once_within_the_limits(
    nodes: list[WaveNode], allowed: dict[str, int], size: int, zones: str
) -> None:
    waves = schedule(nodes, allowed, WaveOptions(max_unavailable=size, zones=zones))  # type: ignore[arg-type]
    assert sorted(name for wave in waves for name in wave.nodes) == sorted(node.name for node in nodes)
    by_name = {node.name: node for node in nodes}
    for wave in waves:
        assert len(wave.nodes) <= size
        disrupted = Counter[str]()
        for name in wave.nodes:
            disrupted.update(by_name[name].pods)
        assert len(wave.nodes) == 1 or all(count <= allowed[budget] for budget, count in disrupted.items())


def test_pods_of_budgets_are_counted_by_node() -> None:
    labels = {"app": "db", "tier": "back"}
    items = [node("a", "v1.35.2"), node("b", "v1.35.2")]
    items += [pod(f"db-{n}", "a", "db:1", labels, namespace="shop") for n in range(2)]
    items += [
        pod("ended", "b", "db:1", labels, namespace="shop"),
        pod("web", "b", "w:1", {"app": "web"}, namespace="shop"),
    ]
    items[-2]["status"]["phase"] = "Succeeded"
    selectors = {"db": {"matchLabels": labels}, "all": {}, "none": None}
    for name, selector in selectors.items():
        spec = {} if selector is None else {"selector": selector}
        meta = {"name": name, "namespace": "shop"}
        items.append({"kind": "PodDisruptionBudget", "metadata": meta, "spec": spec})
    nodes, allowed = wave_nodes(inventory_of(items, "v1.35.2"), ["a", "b"])
    assert {node.name: dict(node.pods) for node in nodes} == {"a": {"shop/db": 2, "shop/all": 2}, "b": {"shop/all": 1}}
    assert allowed == {"shop/db": 1, "shop/all": 1}
