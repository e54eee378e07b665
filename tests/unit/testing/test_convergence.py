"""Whether all has taken effect."""

from collections.abc import Iterable

import msgspec

from podwire.cluster.world import World
from podwire.local.probe.plan import ProbeInputs
from podwire.model.meta import Condition, Object, ObjectMeta
from podwire.model.node import Node
from podwire.model.pod import Container, Pod, PodSpec, PodStatus
from podwire.model.service import (
    Endpoint,
    EndpointConditions,
    EndpointPort,
    EndpointSlice,
    Service,
    ServicePort,
    ServiceSpec,
)
from podwire.testing.convergence import unsettled, versions

POD = Pod(
    metadata=ObjectMeta(name="web", namespace="shop", uid="u", labels={"app": "web"}, resource_version="7"),
    spec=PodSpec(node_name="node-1", containers=(Container(name="c"),)),
    status=PodStatus(phase="Running", pod_ip="10.244.0.2", conditions=(Condition(type="Ready", status="True"),)),
)
SERVICE = Service(
    metadata=ObjectMeta(name="web", namespace="shop", resource_version="8"),
    spec=ServiceSpec(cluster_ip="10.96.0.9", selector={"app": "web"}, ports=(ServicePort(port=80),)),
)
SLICE = EndpointSlice(
    metadata=ObjectMeta(
        name="web-1", namespace="shop", labels={"kubernetes.io/service-name": "web"}, resource_version="9"
    ),
    address_type="IPv4",
    endpoints=(Endpoint(addresses=("10.244.0.2",), conditions=EndpointConditions(ready=True)),),
    ports=(EndpointPort(name="", protocol="TCP", port=80),),
)
NODE = Node(metadata=ObjectMeta(name="node-1", resource_version="2", annotations={"podwire.io/routing": "vxlan"}))
FACTS = ProbeInputs(
    pods=(POD,),
    services=(SERVICE,),
    slices=(SLICE,),
    world=World(
        pods=(POD,),
        namespaces=(Object(metadata=ObjectMeta(name="shop", resource_version="1")),),
        nodes=(NODE,),
    ),
)
PAGE = (
    "policy in force\n",
    "policy pods shop/web 7\n",
    "policy namespaces shop 1\n",
    "policy nodes node-1 2\n",
    "proxy in force\n",
    "proxy services shop/web 8\n",
    "proxy endpointslices shop/web-1 9\n",
)


def without(line: str) -> Iterable[str]:
    return [item for item in PAGE if line not in item]


def test_settled_when_every_agent_has_the_versions_of_the_api() -> None:
    assert unsettled(FACTS, {"node-1": PAGE, "node-2": PAGE}) == ""


def test_an_object_that_is_missing_older_or_gone_is_named() -> None:
    assert unsettled(FACTS, {"node-1": PAGE, "node-2": without("pods")}) == "node-2: pods shop/web not in force yet"
    older = [line.replace("web-1 9", "web-1 6") for line in PAGE]
    assert unsettled(FACTS, {"node-1": older}) == "node-1: endpointslices shop/web-1 not in force yet"
    gone = (*PAGE, "policy networkpolicies shop/deny 5\n")
    assert unsettled(FACTS, {"node-1": gone}) == "node-1: networkpolicies shop/deny not in force yet"


def test_busy_component_or_missing_agent_is_not_converged() -> None:
    busy = ("policy busy\n", *without("policy"))
    assert unsettled(FACTS, {"node-1": busy}) == "node-1: policy is being programmed"
    assert unsettled(FACTS, {"node-1": ("agent is away",)}) != ""


def test_a_node_without_routing_facts_is_unsettled() -> None:
    silent = msgspec.structs.replace(FACTS.world, nodes=(Node(metadata=ObjectMeta(name="node-1")),))
    result = unsettled(msgspec.structs.replace(FACTS, world=silent), {})
    assert result == "the way to pods of node-1 is not known yet"


def test_endpoints_that_the_controller_has_not_written() -> None:
    empty = msgspec.structs.replace(FACTS, slices=())
    assert unsettled(empty, {}) == "endpoints of Service shop/web are not written yet"
    late = msgspec.structs.replace(POD, status=msgspec.structs.replace(POD.status, conditions=()))
    stale = msgspec.structs.replace(FACTS, pods=(late,))
    assert unsettled(stale, {}) == "endpoints of Service shop/web are not written yet"


def test_cluster_dns_without_ready_endpoint_is_reported() -> None:
    dns = Service(
        metadata=ObjectMeta(name="kube-dns", namespace="kube-system"), spec=ServiceSpec(cluster_ip="10.96.0.10")
    )
    waiting = msgspec.structs.replace(FACTS, services=(SERVICE, dns))
    assert unsettled(waiting, {}) == "cluster DNS is not ready yet"


def test_objects_that_agents_ignore_do_not_count() -> None:
    headless = {"service.kubernetes.io/headless": "", "kubernetes.io/service-name": "web"}
    meta = ObjectMeta(name="other", namespace="shop", labels=headless, resource_version="3")
    result = versions(msgspec.structs.replace(FACTS, slices=(EndpointSlice(metadata=meta, address_type="IPv4"),)))
    assert result["endpointslices"] == {}
