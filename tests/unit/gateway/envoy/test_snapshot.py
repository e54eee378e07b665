"""The order in which an engine gets resources: what is named comes before what names it, and goes after it."""

import random
from collections.abc import Iterator

import pytest

from podwire.gateway.envoy.clusters import Json
from podwire.gateway.envoy.resources import CLUSTER, ENDPOINTS, FILTER, HOST, LISTENER, ROUTES, SECRET, Resources
from podwire.gateway.envoy.snapshot import EngineRefusal, EngineState, ResourceSnapshot, ResourceUpdate


def _resources(*names: str, endpoints: int = 1) -> Resources:
    """Clusters, their endpoints, and a table with virtual hosts of names."""
    return {
        CLUSTER: {name: {"name": name, "type": "EDS"} for name in names},
        ENDPOINTS: {name: {"clusterName": name, "endpoints": [{"priority": 0}] * endpoints} for name in names},
        ROUTES: {"table": {"name": "table"}},
        HOST: {f"table/{name}": {"name": f"table/{name}", "domains": [name]} for name in names},
    }


@pytest.fixture
def refusals() -> list[EngineRefusal]:
    return []


@pytest.fixture
def snapshot() -> ResourceSnapshot:
    return ResourceSnapshot()


@pytest.fixture
def engine(snapshot: ResourceSnapshot, refusals: list[EngineRefusal]) -> EngineState:
    state = EngineState(snapshot, refusals.append)
    state.request(CLUSTER)
    state.request(LISTENER)
    state.request(ROUTES, subscribe=["table"])
    state.request(HOST)
    return state


def _acknowledge(state: EngineState, response: ResourceUpdate, error: str = "") -> None:
    """The engine's answer; it asks for the endpoints of new clusters, as Envoy does."""
    state.request(response.kind, nonce=response.nonce, error=error)
    if response.kind == CLUSTER and response.resources:
        state.request(ENDPOINTS, subscribe=list(response.resources))


def _exchange(state: EngineState) -> Iterator[tuple[str, tuple[str, ...], tuple[str, ...]]]:
    while responses := state.responses():
        for response in responses:
            yield response.kind.rsplit(".", 1)[1], tuple(response.resources), response.removed
            _acknowledge(state, response)


def test_routes_wait_until_clusters_have_their_endpoints(snapshot: ResourceSnapshot, engine: EngineState) -> None:
    snapshot.replace(_resources("a"))
    (first, routes) = engine.responses(), engine.responses()
    assert [response.kind for response in first] == [CLUSTER]
    assert not routes
    _acknowledge(engine, first[0])
    (endpoints,) = engine.responses()
    assert endpoints.kind == ENDPOINTS
    assert not engine.responses()
    _acknowledge(engine, endpoints)
    (table,) = engine.responses()
    assert table.kind == ROUTES
    assert not engine.responses(), "virtual hosts wait for their table"
    _acknowledge(engine, table)
    assert [response.kind for response in engine.responses()] == [HOST]


def test_a_removed_cluster_goes_after_the_routes(snapshot: ResourceSnapshot, engine: EngineState) -> None:
    snapshot.replace(_resources("a", "b"))
    list(_exchange(engine))
    snapshot.replace(_resources("b"))
    assert list(_exchange(engine)) == [
        ("VirtualHost", (), ("table/a",)),
        ("ClusterLoadAssignment", (), ("a",)),
        ("Cluster", (), ("a",)),
    ]
    assert engine.in_step


def test_only_what_changed_is_sent(snapshot: ResourceSnapshot, engine: EngineState) -> None:
    snapshot.replace(_resources("a", "b"))
    list(_exchange(engine))
    before = _resources("a", "b")
    assert snapshot.replace_some(ENDPOINTS, {"b": _resources("b", endpoints=2)[ENDPOINTS]["b"]})
    assert list(_exchange(engine)) == [("ClusterLoadAssignment", ("b",), ())]
    assert not snapshot.replace_some(CLUSTER, before[CLUSTER])
    snapshot.replace(_resources("a", "b", "c"))
    assert list(_exchange(engine)) == [
        ("Cluster", ("c",), ()),
        ("ClusterLoadAssignment", ("b",), ()),
        ("ClusterLoadAssignment", ("c",), ()),
        ("VirtualHost", ("table/c",), ()),
    ]


def test_a_table_gets_its_hosts_when_asked_for_anew(snapshot: ResourceSnapshot, engine: EngineState) -> None:
    snapshot.replace(_resources("a", "b"))
    list(_exchange(engine))
    engine.request(ROUTES, unsubscribe=["table"])
    snapshot.replace(_resources("a", "b", "c"))
    assert ("VirtualHost", ("table/c",), ()) not in list(_exchange(engine))
    engine.request(ROUTES, subscribe=["table"])
    assert list(_exchange(engine)) == [
        ("RouteConfiguration", ("table",), ()),
        ("VirtualHost", ("table/a", "table/b", "table/c"), ()),
    ]
    assert engine.in_step


def test_hosts_wait_until_the_engine_asks_for_them(snapshot: ResourceSnapshot) -> None:
    state = EngineState(snapshot, lambda _refusal: None)
    state.request(CLUSTER)
    state.request(ROUTES, subscribe=["table"])
    snapshot.replace(_resources("a"))
    assert not any(kind == "VirtualHost" for kind, _, _ in _exchange(state))
    assert not state.in_step
    state.request(HOST, subscribe=["table"])
    assert list(_exchange(state)) == [("VirtualHost", ("table/a",), ())]
    assert state.in_step


def test_an_engine_that_returns_keeps_its_hosts(snapshot: ResourceSnapshot) -> None:
    snapshot.replace(_resources("a", "b"))
    state = EngineState(snapshot, lambda _refusal: None)
    versions = {name: packed.version for name, packed in snapshot.of(HOST).items()}
    state.request(CLUSTER, versions={name: packed.version for name, packed in snapshot.of(CLUSTER).items()})
    state.request(HOST, versions=versions | {"table/b": "old"})
    state.request(ROUTES, subscribe=["table"])
    state.request(ENDPOINTS, subscribe=["a", "b"])
    assert [names for kind, names, _ in _exchange(state) if kind == "VirtualHost"] == [("table/b",)]


def test_a_refused_host_keeps_back_no_other(
    snapshot: ResourceSnapshot, engine: EngineState, refusals: list[EngineRefusal]
) -> None:
    snapshot.replace(_resources("a"))
    list(_exchange(engine))
    snapshot.replace(_resources("a", *(f"h{number}" for number in range(8))))
    while responses := engine.responses():
        for response in responses:
            _acknowledge(engine, response, "no" if "table/h5" in response.resources else "")
    assert [refusal.names for refusal in refusals] == [("table/h5",)]
    assert engine.refused == {(HOST, "table/h5"): "no"}
    assert engine.in_step


def test_a_refused_response_is_reported_and_not_repeated(
    snapshot: ResourceSnapshot, engine: EngineState, refusals: list[EngineRefusal]
) -> None:
    snapshot.replace(_resources("a"))
    list(_exchange(engine))
    snapshot.replace(_resources("a", "b"))
    for response in engine.responses():
        _acknowledge(engine, response)
    for response in engine.responses():
        _acknowledge(engine, response)
    (hosts,) = engine.responses()
    _acknowledge(engine, hosts, error="invalid regex")
    assert refusals == [EngineRefusal(kind=HOST, names=("table/b",), message="invalid regex")]
    assert not engine.responses()


def test_a_listener_goes_with_the_response_that_brings_another(snapshot: ResourceSnapshot, engine: EngineState) -> None:
    snapshot.replace({LISTENER: {"old": {"name": "old"}}})
    list(_exchange(engine))
    snapshot.replace({LISTENER: {"new": {"name": "new"}}})
    assert list(_exchange(engine)) == [("Listener", ("new",), ("old",))], "the new one may have the same address"
    assert engine.in_step


def test_an_engine_that_returns_gets_only_what_differs(snapshot: ResourceSnapshot) -> None:
    snapshot.replace(_resources("a", "b"))
    state = EngineState(snapshot, lambda _refusal: None)
    versions = {name: packed.version for name, packed in snapshot.of(CLUSTER).items()}
    state.request(CLUSTER, versions=versions | {"a": "old"})
    (response,) = state.responses()
    assert tuple(response.resources) == ("a",)


def test_a_name_without_a_resource_is_answered_as_removed(snapshot: ResourceSnapshot, engine: EngineState) -> None:
    snapshot.replace({})
    engine.request(SECRET, subscribe=["absent"])
    responses = {response.kind: response for response in engine.responses()}
    assert responses[SECRET].removed == ("absent",)
    _acknowledge(engine, responses[SECRET])
    snapshot.replace({SECRET: {"absent": {"name": "absent"}}})
    assert [tuple(response.resources) for response in engine.responses()] == [("absent",)]


def test_engines_keep_their_resources_until_the_first_lists(snapshot: ResourceSnapshot) -> None:
    state = EngineState(snapshot, lambda _refusal: None)
    state.request(CLUSTER, versions={"a": "old"})
    assert not state.responses()
    assert not state.in_step
    assert snapshot.replace({})
    assert [response.removed for response in state.responses()] == [("a",)]


def test_nothing_is_removed_while_routes_are_refused(
    snapshot: ResourceSnapshot, engine: EngineState, refusals: list[EngineRefusal]
) -> None:
    snapshot.replace(_resources("a"))
    list(_exchange(engine))
    snapshot.replace(_resources("b"))
    kinds = []
    while responses := engine.responses():
        for response in responses:
            kinds.append(response.kind)
            _acknowledge(engine, response, "no" if response.kind == HOST and response.resources else "")
    assert kinds == [CLUSTER, ENDPOINTS, HOST, HOST]
    assert [refusal.kind for refusal in refusals] == [HOST]
    snapshot.replace(_resources("c"))
    assert list(_exchange(engine))[-3:] == [
        ("VirtualHost", (), ("table/b",)),
        ("ClusterLoadAssignment", (), ("a", "b")),
        ("Cluster", (), ("a", "b")),
    ]


def test_a_resource_that_cannot_be_read_keeps_back_nothing_else(
    snapshot: ResourceSnapshot, engine: EngineState
) -> None:
    snapshot.replace(_resources("a", "b"))
    list(_exchange(engine))
    wrong = _resources("a", "b", "c")
    wrong[CLUSTER]["a"] = {"name": "a", "connectTimeout": "soon"}
    snapshot.replace(wrong)
    assert list(snapshot.unreadable) == [(CLUSTER, "a")]
    assert set(snapshot.of(CLUSTER)) == {"a", "b", "c"}
    assert ("Cluster", ("c",), ()) in list(_exchange(engine))
    assert engine.in_step
    snapshot.replace(_resources("a", "b", "c"))
    assert not snapshot.unreadable


def test_clusters_of_a_table_that_cannot_be_read_stay(snapshot: ResourceSnapshot, engine: EngineState) -> None:
    snapshot.replace(_resources("a", "b"))
    list(_exchange(engine))
    wrong = _resources("b")
    wrong[HOST]["table/b"]["domains"] = "none"
    snapshot.replace(wrong)
    assert list(_exchange(engine)) == [("VirtualHost", (), ("table/a",))]
    snapshot.replace(_resources("b"))
    assert ("Cluster", (), ("a",)) in list(_exchange(engine))


def test_a_host_waits_for_a_cluster_that_is_refused(snapshot: ResourceSnapshot, engine: EngineState) -> None:
    def with_routes(*names: str) -> Resources:
        made = _resources(*names)
        for name in names:
            route = {"match": {"prefix": "/"}, "route": {"cluster": name}}
            made[HOST][f"table/{name}"]["routes"] = [route]
        return made

    snapshot.replace(with_routes("a", "ab"))
    sent = []
    while responses := engine.responses():
        for response in responses:
            sent += [name for name in response.resources if response.kind == HOST]
            _acknowledge(engine, response, "no" if response.kind == CLUSTER and "a" in response.resources else "")
    assert sent == ["table/ab"]
    assert engine.in_step
    assert engine.refused == {(CLUSTER, "a"): "no"}


def test_a_listener_waits_for_a_filter_that_is_refused(snapshot: ResourceSnapshot, engine: EngineState) -> None:
    chain: Json = {"filters": [{"name": "check", "configDiscovery": {"configSource": {"ads": {}}}}]}
    listeners: dict[str, Json] = {"web": {"name": "web", "filterChains": [chain]}, "other": {"name": "other"}}
    engine.request(FILTER, subscribe=["check"])
    sent = []
    for version in ("1", "2"):
        snapshot.replace(
            {FILTER: {"check": {"name": "check", "typedConfig": _typed_struct(version)}}, LISTENER: listeners}
        )
        while responses := engine.responses():
            for response in responses:
                sent += [(version, name) for name in response.resources]
                _acknowledge(engine, response, "no" if response.kind == FILTER and version == "1" else "")
    assert sent == [("1", "check"), ("1", "other"), ("2", "check"), ("2", "web")]
    assert engine.in_step


def _typed_struct(version: str) -> Json:
    return {"@type": "type.googleapis.com/google.protobuf.StringValue", "value": version}


class _Follower:
    """An engine that accepts everything, asks for the endpoints of its clusters, and knows what it has."""

    def __init__(self, snapshot: ResourceSnapshot) -> None:
        self.state = EngineState(snapshot, lambda _refusal: None)
        self.has: dict[str, dict[str, str]] = {CLUSTER: {}, ENDPOINTS: {}, ROUTES: {}, HOST: {}}
        self.state.request(CLUSTER)
        self.state.request(ROUTES, subscribe=["table"])
        self.state.request(HOST)
        self.waiting: list[ResourceUpdate] = []

    def take(self) -> bool:
        """Answers for the oldest response; whether there was one."""
        self.waiting += self.state.responses()
        if not self.waiting:
            return False
        response = self.waiting.pop(0)
        own = self.has[response.kind]
        asked = self.has[CLUSTER] if response.kind == ENDPOINTS else response.resources
        own |= {name: packed.version for name, packed in response.resources.items() if name in asked}
        gone = [name for name in response.removed if own.pop(name, None) is not None]
        self.state.request(response.kind, nonce=response.nonce)
        if response.kind == CLUSTER:
            self.state.request(ENDPOINTS, subscribe=list(response.resources), unsubscribe=gone)
            for name in gone:
                self.has[ENDPOINTS].pop(name, None)
        return True


@pytest.mark.parametrize("seed", range(20))
def test_any_order_of_changes_ends_with_the_newest_resources(seed: int) -> None:
    choices = random.Random(seed)
    snapshot = ResourceSnapshot()
    snapshot.replace(_resources("a"))
    followers = [_Follower(snapshot)]
    for _ in range(60):
        action = choices.randrange(6)
        if action == 0:
            names = choices.sample("abcdefgh", choices.randrange(1, 8))
            snapshot.replace(_resources(*names, endpoints=choices.randrange(1, 4)))
        elif action == 1:
            name = choices.choice(list(snapshot.of(ENDPOINTS)))
            snapshot.replace_some(ENDPOINTS, {name: {"clusterName": name, "endpoints": [{"priority": 0}] * 5}})
        elif action == 2 and len(followers) < 3:
            followers.append(_Follower(snapshot))
        else:
            choices.choice(followers).take()
    for follower in followers:
        while follower.take():
            pass
        assert follower.state.in_step
        for kind, own in follower.has.items():
            assert own == {name: packed.version for name, packed in snapshot.of(kind).items()}, kind


def test_an_engine_that_is_far_behind_gets_everything(snapshot: ResourceSnapshot) -> None:
    follower = _Follower(snapshot)
    snapshot.replace(_resources("a", "b"))
    while follower.take():
        pass
    snapshot.replace(_resources("b", "c"))
    for number in range(2000):
        endpoints = {"clusterName": "c", "endpoints": [{"priority": 0}] * (2 + number % 2)}
        snapshot.replace_some(ENDPOINTS, {"c": endpoints})
    while follower.take():
        pass
    assert follower.has[CLUSTER].keys() == {"b", "c"} and follower.has[HOST].keys() == {"table/b", "table/c"}
    assert follower.has[ENDPOINTS]["c"] == snapshot.of(ENDPOINTS)["c"].version


def test_what_stays_the_same_is_not_looked_at_again(snapshot: ResourceSnapshot) -> None:
    follower = _Follower(snapshot)
    resources = _resources(*(f"n{number}" for number in range(100)))
    snapshot.replace(resources)
    while follower.take():
        pass
    position = snapshot.position
    assert not snapshot.replace(resources)
    fresh = _resources(*(f"n{number}" for number in range(100)))
    assert not snapshot.replace(fresh)
    assert snapshot.changes_since(position) == []
    more = {kind: dict(values) for kind, values in fresh.items()}
    more[HOST]["table/new"] = {"name": "table/new", "domains": ["new"]}
    assert snapshot.replace(more)
    assert snapshot.changes_since(position) == [(HOST, ("table/new",))]
