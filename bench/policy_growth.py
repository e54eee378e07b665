"""NetworkPolicy: policies that are applied one by one to a cluster, and all at once.

The worst cases of a node with 10 pods among others: policies that all select its pods and allow the pods of one app;
policies that all select its pods and allow all pods of the cluster; policies that each select an app of their own;
policies in many namespaces; policies with blocks, with named ports, and each with a selector of its own for the same
pods. Each policy is compiled and written to the kernel before the next one. CPU time is that of this process: Python
and the kernel's work for it. The kernel's part is also listed alone: for each policy it walks all elements of all maps
of verdicts.
"""

import gc
import resource
import statistics
import time
from collections.abc import Callable, Iterator

import msgspec
from bench.table import Row

from podwire.model.meta import ObjectMeta
from podwire.model.pod import Container, ContainerPort, Pod, PodSpec, PodStatus
from podwire.model.policy import NetworkPolicy
from podwire.policy.compile import Compiler
from podwire.policy.dataplane import PolicyDataPlane
from podwire.policy.trim import trim_pod

_ON_NODE = 10
_APPS = 40
_AIM_S = 1.3


def growth(quick: bool, opened: Callable[[str], PolicyDataPlane]) -> list[Row]:
    """The rows of all cases; ``opened`` opens a data plane by its name."""
    policies, pods = (100, 500) if quick else (1_000, 10_000)
    rows: list[Row] = []
    for name, case in CASES.items():
        rows += _grown(f"{name}, nftables", opened("nftables"), _Case(case, policies, pods))
    few = policies // 5
    for name, case in (("the same pods", _same_pods), ("a selector each", _selector_each)):
        rows += _grown(f"{name}, iptables (nft)", opened("iptables (nft) and ipset"), _Case(case, few, pods))
    return rows


class _Case(msgspec.Struct, frozen=True):
    """Which policies, how many, and among how many pods."""

    policy: Callable[[int], NetworkPolicy]
    policies: int
    pods: int


def _same_pods(number: int) -> NetworkPolicy:
    peer = {"podSelector": {"matchLabels": {"app": f"a{number % _APPS}"}}}
    return _policy("ns0", number, {}, peer)


def _same_pods_all_peers(number: int) -> NetworkPolicy:
    return _policy("ns0", number, {}, {"namespaceSelector": {}})


def _own_app(number: int) -> NetworkPolicy:
    peer = {"podSelector": {"matchLabels": {"app": f"a{(number + 1) % _APPS}"}}}
    return _policy("ns0", number, {"matchLabels": {"own": f"o{number}"}}, peer)


def _many_namespaces(number: int) -> NetworkPolicy:
    peer = {"podSelector": {"matchLabels": {"app": f"a{number % _APPS}"}}}
    return _policy(f"ns{number % 50}", number, {}, peer)


def _block_each(number: int) -> NetworkPolicy:
    peer = {"ipBlock": {"cidr": f"172.{16 + (number >> 8)}.{number & 255}.0/24"}}
    return _policy("ns0", number, {}, peer)


def _blocks_of_pods(number: int) -> NetworkPolicy:
    """The blocks contain pods, which every second policy names by their labels."""
    pods = {"podSelector": {"matchLabels": {"app": f"a{number % _APPS}"}}, "namespaceSelector": {}}
    peer = pods if number % 2 else {"ipBlock": {"cidr": f"10.0.{number % 40}.0/24"}}
    return _policy("ns0", number, {}, peer)


def _named_ports(number: int) -> NetworkPolicy:
    peer = {"podSelector": {"matchLabels": {"app": f"a{number % _APPS}"}}, "namespaceSelector": {}}
    return _egress("ns0", number, {"to": [peer], "ports": [{"port": 1000 + number}, {"port": "http"}]})


def _selector_each(number: int) -> NetworkPolicy:
    """Each selector selects all pods of the namespace."""
    term = {"key": "own", "operator": "NotIn", "values": [f"none{number}"]}
    peer = {"podSelector": {"matchLabels": {"app": f"a{number % _APPS}"}}}
    return _policy("ns0", number, {"matchExpressions": [term]}, peer)


CASES = {
    "the same pods": _same_pods,
    "the same pods, all pods as peers": _same_pods_all_peers,
    "an app each": _own_app,
    "50 namespaces": _many_namespaces,
    "the same pods, a block each": _block_each,
    "the same pods, blocks of pods": _blocks_of_pods,
    "the same pods, named ports": _named_ports,
    "the same pods, a selector each": _selector_each,
}


def _policy(namespace: str, number: int, pods: object, peer: object) -> NetworkPolicy:
    spec = {"podSelector": pods, "ingress": [{"from": [peer], "ports": [{"port": 1000 + number}]}]}
    return msgspec.convert({"metadata": {"name": f"g{number}", "namespace": namespace}, "spec": spec}, NetworkPolicy)


def _egress(namespace: str, number: int, rule: object) -> NetworkPolicy:
    spec = {"podSelector": {}, "policyTypes": ["Egress"], "egress": [rule]}
    return msgspec.convert({"metadata": {"name": f"g{number}", "namespace": namespace}, "spec": spec}, NetworkPolicy)


def _pods(count: int) -> Iterator[tuple[str, Pod]]:
    """The first pods are on the node: some in ``ns0``, some with an app that a policy of ``_own_app`` selects."""
    for number in range(count):
        namespace = "ns0" if number < _ON_NODE else f"ns{number % 50}"
        labels = {"app": f"a{number % _APPS}", "own": f"o{number}"}
        container = Container(name="c", ports=(ContainerPort(container_port=8080, name="http"),))
        pod = Pod(
            metadata=ObjectMeta(name=f"p{number}", namespace=namespace, labels=labels),
            spec=PodSpec(node_name="n0" if number < _ON_NODE else "n1", containers=(container,)),
            status=PodStatus(phase="Running", pod_ip=f"10.{number >> 16}.{number >> 8 & 255}.{number & 255}"),
        )
        yield f"{namespace}/p{number}", trim_pod(pod)


def _cluster(pods: int) -> tuple[Compiler, dict[str, str]]:
    """The compiler of the node, and the devices of its pods."""
    compiler = Compiler("n0")
    for key, pod in _pods(pods):
        compiler.set_pod(key, pod)
    compiler.flush()
    return compiler, {key: f"dev{number}" for number, key in enumerate(sorted(compiler.pods))}


def _grown(name: str, plane: PolicyDataPlane, case: _Case) -> Iterator[Row]:
    policies = [case.policy(number) for number in range(case.policies)]
    compiler, devices = _cluster(case.pods)
    plane.load(compiler, devices)
    gc.collect()
    gc.freeze()
    walls, started = [], _cpu_s()
    for policy in policies:
        begun = time.perf_counter()
        compiler.set_policy(f"{policy.metadata.namespace}/{policy.metadata.name}", policy)
        plane.update(compiler, devices, compiler.flush())
        walls.append((time.perf_counter() - begun) * 1000)
    spent, in_kernel = (now - before for now, before in zip(_cpu_s(), started, strict=True))
    plane.remove()
    whole, _ = _cluster(case.pods)
    begun = time.process_time()
    for policy in policies:
        whole.set_policy(f"{policy.metadata.namespace}/{policy.metadata.name}", policy)
    whole.flush()
    plane.load(whole, devices)
    at_once = time.process_time() - begun
    plane.remove()
    plane.close()
    walls.sort()
    title = f"{case.policies:,} policies, {case.pods:,} pods: {name}"
    aim = _AIM_S if case.policies == 1_000 else None
    yield Row(f"{title}: CPU time, one by one", "s", (spent,), (("all at once", (at_once,)),), aim)
    yield Row(f"{title}: CPU time, one by one, kernel", "s", (in_kernel,))
    yield Row(f"{title}: one policy, median", "ms", (statistics.median(walls),))
    yield Row(f"{title}: one policy, p99", "ms", (walls[len(walls) * 99 // 100],))


def _cpu_s() -> tuple[float, float]:
    """The CPU time of this process, and the part of it in the kernel, in seconds."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime, used.ru_stime
