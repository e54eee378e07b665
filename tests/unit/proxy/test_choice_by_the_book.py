"""The choice of endpoints against Kubernetes' rules, written down a second time and tried with every kind of them."""

from hypothesis import given, settings
from hypothesis import strategies as st

from podwire.model import service as api
from podwire.model.meta import ObjectMeta
from podwire.model.service import SERVICE_NAME_LABEL
from podwire.proxy.resolve import resolve
from podwire.proxy.servicemap import NodeFacts

NODES, ZONES = ("n1", "n2"), ("z1", "z2")


@st.composite
def endpoints(draw: st.DrawFn) -> list[api.Endpoint]:
    """Up to five, some of which have the same address."""
    result = []
    for _ in range(draw(st.integers(0, 5))):
        zones, nodes = (
            draw(st.lists(st.sampled_from(arguments), max_size=2, unique=True)) for arguments in (ZONES, NODES)
        )
        hints = api.EndpointHints(
            for_zones=tuple(api.HintTarget(name=zone) for zone in zones),
            for_nodes=tuple(api.HintTarget(name=node) for node in nodes),
        )
        conditions = api.EndpointConditions(
            ready=draw(st.sampled_from((None, True, False))),
            serving=draw(st.sampled_from((None, True, False))),
            terminating=draw(st.sampled_from((None, True, False))),
        )
        result.append(
            api.Endpoint(
                addresses=(f"10.0.0.{draw(st.integers(1, 6))}",),
                node_name=draw(st.sampled_from((None, *NODES))),
                conditions=conditions,
                hints=hints if draw(st.booleans()) else None,
            )
        )
    return result


class Known:
    """One endpoint as Kubernetes sees it: what is not said of its conditions is well."""

    def __init__(self, entry: api.Endpoint) -> None:
        output = entry.conditions
        self.address = entry.addresses[0]
        self.ready = output.ready is None or output.ready
        self.serving = output.serving is None or output.serving
        self.terminating = bool(output.terminating)
        self.local = entry.node_name == "n1"
        self.zones = {hint.name for hint in entry.hints.for_zones} if entry.hints else set()
        self.nodes = {hint.name for hint in entry.hints.for_nodes} if entry.hints else set()
        self.falls_back = self.serving and self.terminating


def by_the_book(entries: list[api.Endpoint], zone: str) -> tuple[list[str], list[str], bool]:
    """Addresses of policy Cluster and of policy Local, and whether there are any at all."""
    every: dict[str, Known] = {}
    for entry in entries:
        item = Known(entry)
        if item.address not in every or (every[item.address].terminating and not item.terminating):
            every[item.address] = item
    known = list(every.values())
    ready = [entry for entry in known if entry.ready]
    chosen = ready
    if ready and all(entry.nodes for entry in ready) and any("n1" in entry.nodes for entry in ready):
        chosen = [entry for entry in ready if "n1" in entry.nodes]
    elif ready and zone and all(entry.zones for entry in ready) and any(zone in entry.zones for entry in ready):
        chosen = [entry for entry in ready if zone in entry.zones]
    if not chosen:
        chosen = [entry for entry in known if entry.falls_back]
    local = [entry for entry in ready if entry.local] or [entry for entry in known if entry.local and entry.falls_back]
    anything = any(entry.ready or entry.falls_back for entry in known)
    return sorted(entry.address for entry in chosen), sorted(entry.address for entry in local), anything


@settings(max_examples=400, deadline=None)
@given(endpoints(), st.sampled_from(("", *ZONES)), st.integers(0, 5))
def test_endpoints_are_chosen_as_kubernetes_chooses_them(entries: list[api.Endpoint], zone: str, cut: int) -> None:
    service = api.Service(
        metadata=ObjectMeta(name="web", namespace="default"),
        spec=api.ServiceSpec(cluster_ip="10.96.0.1", ports=(api.ServicePort(port=80),)),
    )
    chunks = [
        api.EndpointSlice(
            metadata=ObjectMeta(name=name, namespace="default", labels={SERVICE_NAME_LABEL: "web"}),
            endpoints=tuple(part),
            ports=(api.EndpointPort(name="", port=8080),),
        )
        for name, part in (("web-1", entries[:cut]), ("web-2", entries[cut:]))
    ]
    (port,) = resolve(service, chunks, NodeFacts(name="n1", zone=zone))
    cluster, local, anything = by_the_book(entries, zone)
    assert [cluster_endpoint.address for cluster_endpoint in port.cluster_endpoints] == cluster
    assert [local_endpoint.address for local_endpoint in port.local_endpoints] == local
    assert port.has_endpoints == anything
