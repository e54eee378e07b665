"""Slices: endpoints of pods, and the fewest changes."""

from collections.abc import Iterable
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.present import present

from podwire.controllers.endpointslice import mirror
from podwire.controllers.endpointslice.endpoints import Desired, Group, address_types, desired, identity
from podwire.controllers.endpointslice.plan import MANAGED_BY, SliceChanges, of_service, plan
from podwire.model.meta import Condition, ObjectMeta, ObjectReference
from podwire.model.node import Node
from podwire.model.pod import Container, ContainerPort, Pod, PodIP, PodSpec, PodStatus
from podwire.model.service import (
    HEADLESS_LABEL,
    SERVICE_NAME_LABEL,
    TRIGGER_TIME_ANNOTATION,
    Endpoint,
    EndpointConditions,
    EndpointPort,
    EndpointSlice,
    Service,
    ServicePort,
    ServiceSpec,
)

PORTS = (
    ServicePort(name="http", port=80, target_port="web"),
    ServicePort(name="raw", port=90, target_port=9000),
)


def service(**spec: Any) -> Service:
    fields = {
        "selector": {"app": "a"},
        "ports": PORTS,
        "cluster_ip": "10.96.0.5",
        "ip_families": ("IPv4",),
    } | spec
    return Service(
        metadata=ObjectMeta(name="svc", namespace="ns", uid="S", labels={"x": "y"}),
        spec=ServiceSpec(**fields),
    )


def pod(
    name: str,
    ips: tuple[str, ...] = ("10.0.0.1",),
    *,
    ready: bool = True,
    deleted: str | None = None,
    phase: str = "Running",
    port: int = 8080,
    node: str = "n1",
    **spec: Any,
) -> Pod:
    containers = (Container(name="c", ports=(ContainerPort(container_port=port, name="web"),)),)
    condition = Condition(type="Ready", status=str(ready), last_transition_time="2026-01-01T00:00:01Z")
    return Pod(
        metadata=ObjectMeta(name=name, namespace="ns", uid=name, deletion_timestamp=deleted, labels={"app": "a"}),
        spec=PodSpec(containers=containers, node_name=node, **spec),
        status=PodStatus(phase=phase, pod_ips=tuple(PodIP(ip=ip) for ip in ips), conditions=(condition,)),
    )


NODES = {"n1": Node(metadata=ObjectMeta(name="n1", labels={"topology.kubernetes.io/zone": "z1"}))}


def only(result: Desired) -> tuple[Group, list[Endpoint]]:
    ((group, endpoints),) = result.items()
    return group, list(endpoints.values())


def test_ports_are_resolved_per_pod_and_group_the_endpoints() -> None:
    result = desired(service(), [pod("a"), pod("b", port=8081), pod("c")], NODES)
    assert {
        tuple(p.port for p in group.ports): sorted(present(e.target_ref).name for e in ends.values())
        for group, ends in result.items()
    } == {(8080, 9000): ["a", "c"], (8081, 9000): ["b"]}


@pytest.mark.parametrize(
    ("ready", "deleted", "publish", "want"),
    [
        (True, None, False, (True, True, False)),
        (False, None, False, (False, False, False)),
        (True, "2026-01-01T00:00:00Z", False, (False, True, True)),
        (False, "2026-01-01T00:00:00Z", False, (False, False, True)),
        (False, None, True, (True, False, False)),
        (True, "2026-01-01T00:00:00Z", True, (True, True, True)),
    ],
)
def test_conditions(ready: bool, deleted: str | None, publish: bool, want: tuple[bool, bool, bool]) -> None:
    result = desired(service(publish_not_ready_addresses=publish), [pod("a", ready=ready, deleted=deleted)], NODES)
    _, (endpoint,) = only(result)
    conditions = endpoint.conditions
    assert (conditions.ready, conditions.serving, conditions.terminating) == want


@pytest.mark.parametrize("left_out", [pod("a", phase="Failed"), pod("a", phase="Succeeded"), pod("a", ips=())])
def test_pods_without_an_endpoint(left_out: Pod) -> None:
    assert desired(service(), [left_out], NODES) == {}


def test_a_named_port_that_a_pod_lacks_is_left_out() -> None:
    ports = (
        ServicePort(name="other", port=1, target_port="nope"),
        ServicePort(name="n", port=2, target_port="22"),
    )
    group, _ = only(desired(service(ports=ports), [pod("a")], NODES))
    assert group.ports == (EndpointPort(name="n", port=22),)


def test_both_families() -> None:
    result = desired(service(ip_families=("IPv6", "IPv4")), [pod("a", ("10.0.0.1", "fd00::1"))], NODES)
    assert {group.address_type: [e.addresses for e in ends.values()] for group, ends in result.items()} == {
        "IPv6": [("fd00::1",)],
        "IPv4": [("10.0.0.1",)],
    }


@pytest.mark.parametrize(
    ("spec", "families"),
    [
        ({"ip_families": (), "cluster_ip": "fd00::5"}, ("IPv6",)),
        ({"ip_families": (), "cluster_ip": "None"}, ("IPv4",)),
        ({"ip_families": (), "cluster_ips": ("10.0.0.1", "fd00::1")}, ("IPv4", "IPv6")),
    ],
)
def test_families_of_a_service(spec: dict[str, Any], families: tuple[str, ...]) -> None:
    assert address_types(service(**spec)) == families


def test_hostname_zone_and_hints() -> None:
    named = pod("a", hostname="db-0", subdomain="svc")
    _, (endpoint,) = only(desired(service(traffic_distribution="PreferSameNode"), [named], NODES))
    assert (endpoint.hostname, endpoint.zone, endpoint.node_name) == ("db-0", "z1", "n1")
    assert [t.name for t in present(endpoint.hints).for_zones + present(endpoint.hints).for_nodes] == ["z1", "n1"]
    _, (close,) = only(desired(service(traffic_distribution="PreferClose"), [pod("a")], NODES))
    assert present(close.hints).for_nodes == ()
    _, (other,) = only(desired(service(), [pod("a", hostname="x", subdomain="other")], NODES))
    assert (other.hostname, other.hints) == (None, None)


def test_pod_of_a_missing_node_needs_publish_not_ready_addresses() -> None:
    lost, here = pod("a", node="gone"), pod("b", ("10.0.0.2",))
    _, (endpoint,) = only(desired(service(), [lost, here], NODES))
    assert present(endpoint.target_ref).name == "b"
    _, both = only(desired(service(publish_not_ready_addresses=True), [lost, here], NODES))
    assert {present(e.target_ref).name: e.zone for e in both} == {"a": None, "b": "z1"}


def test_a_service_may_have_no_ports() -> None:
    group, (endpoint,) = only(desired(service(ports=(), cluster_ip="None"), [pod("a")], NODES))
    assert (group.ports, endpoint.addresses) == ((), ("10.0.0.1",))


def test_a_port_of_a_sidecar_has_a_name_too() -> None:
    sidecar = Container(name="s", restart_policy="Always", ports=(ContainerPort(container_port=15000, name="proxy"),))
    first = Container(name="f", ports=(ContainerPort(container_port=1, name="proxy"),))
    ports = (ServicePort(name="p", port=1, target_port="proxy"),)
    group, _ = only(desired(service(ports=ports), [pod("a", init_containers=(first, sidecar))], NODES))
    assert group.ports == (EndpointPort(name="p", port=15000),)


# --- the plan


def endpoint(n: int, **conditions: bool) -> Endpoint:
    ready = EndpointConditions(**({"ready": True, "serving": True, "terminating": False} | conditions))
    reference = ObjectReference(kind="Pod", namespace="ns", name=f"p{n}", uid=f"u{n}")
    return Endpoint(addresses=(f"10.0.{n // 250}.{n % 250}",), conditions=ready, target_ref=reference)


GROUP = Group("IPv4", (EndpointPort(name="http", port=80),))


class Cluster:
    """Slices as an API server would hold them."""

    def __init__(self) -> None:
        self.slices: dict[str, EndpointSlice] = {}
        self.serial = 0
        self.writes = 0

    def apply(
        self,
        numbers: Iterable[int],
        group: Group = GROUP,
        svc: Service | None = None,
        trigger: str = "T",
        **conditions: bool,
    ) -> SliceChanges:
        ends = {identity(e): e for e in (endpoint(n, **conditions) for n in numbers)}
        have = tuple(self.slices.values())
        changes = plan(of_service(svc or service()), {group: ends} if ends else {}, have, ("IPv4",), trigger)
        for item in changes.create:
            self.serial += 1
            meta = msgspec.structs.replace(item.metadata, name=f"svc-{self.serial:03}")
            self.slices[meta.name] = msgspec.structs.replace(item, metadata=meta)
        for item in changes.update:
            assert item.metadata.name in self.slices
            self.slices[item.metadata.name] = item
        for name in changes.delete:
            del self.slices[name]
        self.writes = len(changes.create) + len(changes.update) + len(changes.delete)
        return changes

    def sizes(self) -> list[int]:
        return [len(present(s.endpoints)) for s in self.slices.values()]


def test_a_service_without_endpoints_has_one_empty_slice() -> None:
    cluster = Cluster()
    cluster.apply([])
    assert cluster.sizes() == [0]
    cluster.apply([])
    assert cluster.writes == 0
    cluster.apply([1, 2])
    assert cluster.sizes() == [2]
    cluster.apply([])
    assert cluster.sizes() == [0]


def test_labels_owner_and_annotation() -> None:
    cluster = Cluster()
    cluster.apply([1], svc=service(cluster_ip="None"))
    (item,) = cluster.slices.values()
    meta = item.metadata
    assert meta.labels[SERVICE_NAME_LABEL] == "svc"
    assert meta.labels[MANAGED_BY] == "endpointslice-controller.k8s.io"
    assert HEADLESS_LABEL in meta.labels
    assert meta.labels["x"] == "y"
    assert meta.annotations == {"endpoints.kubernetes.io/last-change-trigger-time": "T"}
    assert (meta.owner_references[0].kind, meta.owner_references[0].controller) == ("Service", True)
    cluster.apply([1])
    (item,) = cluster.slices.values()
    assert HEADLESS_LABEL not in item.metadata.labels


def test_write_without_trigger_has_no_time_and_keeps_foreign_annotations() -> None:
    cluster = Cluster()
    cluster.apply([1, 2])
    (name,) = cluster.slices
    cluster.slices[name].metadata.annotations["mine"] = "x"
    cluster.apply([1, 2])
    assert cluster.writes == 0
    cluster.apply([1], trigger="")
    assert cluster.slices[name].metadata.annotations == {"mine": "x"}
    cluster.apply([1, 2], trigger="later")
    annotations = cluster.slices[name].metadata.annotations
    assert annotations == {"mine": "x", "endpoints.kubernetes.io/last-change-trigger-time": "later"}


def test_at_most_a_hundred_and_one_write_for_one_change() -> None:
    cluster = Cluster()
    cluster.apply(range(250))
    assert sorted(cluster.sizes()) == [50, 100, 100]
    cluster.apply([*range(249), 300])
    assert cluster.writes == 1
    cluster.apply([*range(10, 249), 300])
    assert cluster.writes == 1
    cluster.apply([*range(10, 249), 300, 500])
    assert cluster.writes == 1
    assert max(cluster.sizes()) <= 100


def test_a_changed_condition_is_replaced_in_place() -> None:
    cluster = Cluster()
    cluster.apply([1, 2])
    changes = cluster.apply([1, 2], ready=False)
    assert (len(changes.update), cluster.writes) == (1, 1)
    assert all(e.conditions.ready is False for s in cluster.slices.values() for e in present(s.endpoints))


def test_other_ports_mean_other_slices() -> None:
    cluster = Cluster()
    cluster.apply([1])
    cluster.apply([1], Group("IPv4", (EndpointPort(name="http", port=81),)))
    assert [present(s.ports)[0].port for s in cluster.slices.values()] == [81]


def test_a_duplicate_endpoint_is_mended() -> None:
    cluster = Cluster()
    cluster.apply(range(100))
    (item,) = cluster.slices.values()
    copy = msgspec.structs.replace(item, metadata=msgspec.structs.replace(item.metadata, name="svc-zzz"))
    cluster.slices["svc-zzz"] = copy
    cluster.apply(range(100))
    assert cluster.sizes() == [100]


@settings(max_examples=60, deadline=None)
@given(st.lists(st.sets(st.integers(0, 400), max_size=320), min_size=1, max_size=6))
def test_slices_hold_exactly_what_is_wanted_and_settle(rounds: list[set[int]]) -> None:
    cluster = Cluster()
    for expected in rounds:
        cluster.apply(expected)
        held = [present(e.target_ref).uid for s in cluster.slices.values() for e in present(s.endpoints)]
        assert sorted(held) == sorted(f"u{n}" for n in expected)
        assert max(cluster.sizes()) <= 100
        cluster.apply(expected)
        assert cluster.writes == 0


def test_mirror() -> None:
    result = desired(
        service(),
        [
            pod("b", ("10.0.0.10",)),
            pod("a", ("10.0.0.2",)),
            pod("c", ("10.0.0.3",), ready=False),
            pod("d", ("10.0.0.4",), deleted="2026-01-01T00:00:00Z"),
        ],
        NODES,
    )
    (subset,) = mirror.render(service(), result, "IPv4").subsets
    assert [a.ip for a in subset.addresses] == ["10.0.0.2", "10.0.0.10"]
    assert [a.ip for a in subset.not_ready_addresses] == ["10.0.0.3"]
    assert mirror.render(service(), result, "IPv6").subsets == ()
    (remaining,) = mirror.render(service(publish_not_ready_addresses=True), result, "IPv4").subsets
    assert "10.0.0.4" in {a.ip for a in (*remaining.addresses, *remaining.not_ready_addresses)}
    many = desired(service(), [pod(f"p{n}", (f"10.{n // 250}.0.{n % 250}",)) for n in range(1200)], NODES)
    big = mirror.render(service(), many, "IPv4")
    assert len(big.subsets[0].addresses) == 1000
    assert big.metadata.annotations == {"endpoints.kubernetes.io/over-capacity": "truncated"}


def test_unready_addresses_are_cut_first_across_all_subsets() -> None:
    late = [pod(f"a{n}", (f"10.0.{n // 250}.{n % 250}",), ready=False) for n in range(600)]
    good = [pod(f"b{n}", (f"10.1.{n // 250}.{n % 250}",)) for n in range(300)]
    more = [pod(f"c{n}", (f"10.2.{n // 250}.{n % 250}",), port=8081) for n in range(400)]
    result = mirror.render(service(), desired(service(), [*late, *good, *more], NODES), "IPv4")
    assert [(len(s.addresses), len(s.not_ready_addresses)) for s in result.subsets] == [(300, 300), (400, 0)]
    assert result.metadata.annotations == {mirror.OVER_CAPACITY: "truncated"}


def test_differing_endpoints_are_written_and_keep_foreign_annotations() -> None:
    want = mirror.render(service(), desired(service(), [pod("a")], NODES), "IPv4")
    assert mirror.overlay(want, want) is None
    noted = msgspec.structs.replace(want.metadata, annotations={"mine": "x"})
    assert mirror.overlay(want, msgspec.structs.replace(want, metadata=noted)) is None
    stale = msgspec.structs.replace(want.metadata, labels=want.metadata.labels | {"l": "1"})
    update = mirror.overlay(want, msgspec.structs.replace(want, metadata=stale))
    assert update is not None
    assert update.metadata.labels == want.metadata.labels
    cut = msgspec.structs.replace(want.metadata, annotations={"mine": "x", mirror.OVER_CAPACITY: "truncated"})
    update = mirror.overlay(want, msgspec.structs.replace(want, metadata=cut))
    assert update is not None
    assert update.metadata.annotations == {"mine": "x"}
    empty = msgspec.structs.replace(want, subsets=())
    assert mirror.overlay(want, empty) == want
    reported = mirror.overlay(want, empty, "2026-01-01T00:00:01Z")
    assert reported is not None
    assert reported.metadata.annotations == {TRIGGER_TIME_ANNOTATION: "2026-01-01T00:00:01Z"}
    assert mirror.overlay(want, reported, "2026-01-01T00:00:09Z") is None, "a time alone is no change"
    assert present(mirror.overlay(msgspec.structs.replace(want, subsets=()), reported)).metadata.annotations == {}
