"""Trimmed pods: policies see the same in them, and what they have in common is there once."""

from msgspec.structs import replace
from tests.unit.policy.test_compile import CASES

from podwire.model.meta import key_of
from podwire.model.pod import Container, ContainerPort, Pod
from podwire.policy.compile import compile_world
from podwire.policy.trim import trim_pod

WORLD = CASES[0].world


def test_policies_make_the_same_of_trimmed_pods() -> None:
    for case in CASES:
        trimmed = replace(case.world, pods=tuple(trim_pod(pod) for pod in case.world.pods))
        for node in ("n1", "n2"):
            item, other = compile_world(case.world, node), compile_world(trimmed, node)
            assert item.pods == other.pods
            for key, profile in item.profiles.items():
                assert profile.peers.hosts == other.profiles[key].peers.hosts


def test_replicas_share_labels_and_ports() -> None:
    def replica(name: str) -> Pod:
        port = ContainerPort(name="http", container_port=8080)
        pod = next(pod for pod in WORLD.pods if key_of(pod.metadata) == "ops/scan")
        spec = replace(pod.spec, containers=(Container(name=name, image="x", ports=(port,)), Container(name="quiet")))
        labels = {"".join(("a", "pp")): "".join(("we", "b"))}
        return replace(pod, metadata=replace(pod.metadata, name=name, labels=labels), spec=spec)

    item, other = trim_pod(replica("a")), trim_pod(replica("b"))
    assert (item.metadata.name, other.metadata.name) == ("a", "b")
    assert item.metadata.labels is other.metadata.labels
    assert item.spec.containers is other.spec.containers
    assert item.spec.node_name is other.spec.node_name
    assert [port.name for port in item.declared_ports] == ["http"]
    assert len(item.spec.containers) == 1


def test_a_port_without_name_is_nothing_that_a_policy_reads() -> None:
    pod = WORLD.pods[0]
    spec = replace(pod.spec, containers=(Container(name="c", ports=(ContainerPort(container_port=80),)),))
    assert trim_pod(replace(pod, spec=spec)).declared_ports == ()
