"""Real packets that policies drop, or would drop in audit, are counted, and logged within the configured limit."""

import os
import socket
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from msgspec.structs import replace
from tests.cases.policy_table import Case, Check, read_cases
from tests.kernel.policy_namespaces import FACTS, Attempt, Watch, World, path
from tests.kernel.test_policy_packets import compilers

from podwire.kernel import netns
from podwire.kernel.features import Features
from podwire.kernel.nflog import Logged, Nflog
from podwire.model.meta import key_of
from podwire.policy.compile import Compiler
from podwire.policy.dataplane import PolicyDataPlane
from podwire.policy.modes import open_dataplane
from podwire.policy.registry import DATAPLANES, FEATURES
from podwire.policy.settings import LogSettings
from podwire.policy.status.counts import by_policy
from podwire.policy.verdicts import BORROWED, NOBODY, TUNNEL, UNKNOWN

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="needs root")

CASES = {case.name: case for case in read_cases(Path(__file__).parents[1] / "cases/policies")}
DENIED = CASES["a policy without rules isolates"]
OPEN = CASES["an empty rule allows all"]
FREE_FOR_ALL = CASES["without a policy everything passes"]
AUDITED = CASES["a policy in audit does not isolate"]
RULES = CASES["cluster policies in audit neither deny nor accept nor pass"]
LOG = LogSettings(rate=100, burst=100, group=471)
FEW = replace(LOG, rate=1, burst=5)
QUIET = replace(LOG, drops=False)
_IP_TRANSPARENT = 19
TO_DB = Check(source="shop/web", target="shop/db", port="5432/TCP", allowed=False)


@pytest.fixture(scope="module")
def world() -> Iterator[World]:
    with World() as created:
        created.attach_pods(DENIED)
        yield created


@pytest.fixture(params=tuple(DATAPLANES))
def plane(world: World, request: pytest.FixtureRequest) -> Iterator[PolicyDataPlane]:
    feature = FEATURES.get(request.param, "")
    if feature and Features().probe(feature).verdict == "no":
        pytest.skip(f"this kernel lacks {feature}")
    created = open_dataplane(request.param, replace(FACTS["n1"], log=LOG), path("n1"))
    yield created
    created.remove()
    created.close()


@pytest.fixture
def log(world: World) -> Iterator[Nflog]:
    nflog = Nflog(LOG.group, path("n1"))
    yield nflog
    nflog.close()


def compiler_of(case: Case, **annotations: str) -> Compiler:
    """The compiler of node n1 for a case, with more annotations on its NetworkPolicies."""
    more = {f"podwire.io/{name}": value for name, value in annotations.items()}
    policies = tuple(
        replace(policy, metadata=replace(policy.metadata, annotations=policy.metadata.annotations | more))
        for policy in case.world.policies
    )
    return compilers(replace(case, world=replace(case.world, policies=policies)))["n1"]


def enforce(plane: PolicyDataPlane, world: World, compiler: Compiler, log: LogSettings = LOG) -> None:
    plane.load(compiler, world.devices("n1"), replace(FACTS["n1"], log=log))


def send(case: Case, check: Check, count: int = 1, first: int = 41_000) -> int:
    """Sends packets, each of a new connection; returns how many arrive."""
    attempts = [Attempt(case, check, 4, first + number) for number in range(count)]
    watch = Watch(attempts)
    try:
        for attempt in attempts:
            attempt.send()
        watch.wait(0.2)
    finally:
        watch.close()
    return sum(attempt.arrived for attempt in attempts)


def log_entries(log: Nflog) -> list[Logged]:
    time.sleep(0.15)  # the kernel gathers for 0.1 s
    return list(log.read(10_000)[0])


def test_drops_are_logged_with_their_policy_and_counted(world: World, plane: PolicyDataPlane, log: Nflog) -> None:
    enforce(plane, world, compiler_of(DENIED))
    assert send(DENIED, TO_DB, 3) == 0
    assert send(DENIED, replace(TO_DB, port="ICMP"), first=42_000) == 0
    result = log_entries(log)
    assert [
        (item.source, item.destination, item.protocol, item.source_port, item.destination_port) for item in result
    ] == [
        ("10.180.0.1", "10.180.0.2", "TCP", 41_000, 5432),
        ("10.180.0.1", "10.180.0.2", "TCP", 41_001, 5432),
        ("10.180.0.1", "10.180.0.2", "TCP", 41_002, 5432),
        ("10.180.0.1", "10.180.0.2", "ICMP", 0, 0),
    ]
    assert {item.hook for item in result} == {"forward"}
    hit = [plane.hit(item.prefix) for item in result]
    assert {(item.verdict, item.direction, item.policies) for item in hit if item is not None} == {
        ("dropped", "Ingress", ("shop/quiet",))
    }
    assert None not in hit
    assert by_policy(plane.counts())["shop/quiet", "dropped"].packets == 4


def test_audit_accepts_packets_and_logs_would_be_drops(world: World, plane: PolicyDataPlane, log: Nflog) -> None:
    enforce(plane, world, compiler_of(AUDITED))
    assert send(AUDITED, TO_DB, 2) == 2
    assert send(AUDITED, replace(TO_DB, source="node/n1"), first=42_000) == 1
    hit = [plane.hit(item.prefix) for item in log_entries(log)]
    assert [(item.verdict, item.policies) for item in hit if item is not None] == [("audited", ("shop/quiet",))] * 2
    counted = by_policy(plane.counts())
    assert counted["shop/quiet", "audited"].packets == 2
    assert ("shop/quiet", "dropped") not in counted


def test_the_rule_of_a_cluster_policy_in_audit_is_named(world: World, plane: PolicyDataPlane, log: Nflog) -> None:
    enforce(plane, world, compiler_of(RULES))
    check = Check(source="blog/web", target="shop/db", port="2/TCP", allowed=True)
    assert send(RULES, check) == 1
    (item,) = log_entries(log)
    result = plane.hit(item.prefix)
    assert result is not None
    assert (result.verdict, result.policies, result.rule) == ("audited", ("one",), 1)
    assert send(RULES, replace(check, port="5/TCP"), first=42_000) == 0
    (other,) = log_entries(log)
    result = plane.hit(other.prefix)
    assert result is not None
    assert (result.verdict, result.policies, result.rule) == ("dropped", ("two",), 0)


def test_the_log_rate_is_limited_and_logging_can_stop(world: World, plane: PolicyDataPlane, log: Nflog) -> None:
    enforce(plane, world, compiler_of(DENIED), FEW)
    assert send(DENIED, TO_DB, 50) == 0
    assert 5 <= len(log_entries(log)) <= 8
    assert by_policy(plane.counts())["shop/quiet", "dropped"].packets == 50
    enforce(plane, world, compiler_of(DENIED), QUIET)
    assert send(DENIED, TO_DB, 3, first=42_000) == 0
    assert log_entries(log) == []


@pytest.mark.parametrize(("asked", "lines"), [("none", 0), ("drops", 1), ("all", 2)])
def test_the_log_setting_of_policies_selects_logged_verdicts(
    world: World, plane: PolicyDataPlane, log: Nflog, asked: str, lines: int
) -> None:
    node = QUIET if asked == "drops" else LOG
    enforce(plane, world, compiler_of(OPEN, log=asked), node)
    assert send(OPEN, TO_DB) == 1
    allowed = log_entries(log)
    enforce(plane, world, compiler_of(DENIED, log=asked), node)
    assert send(DENIED, TO_DB, first=42_000) == 0
    assert len(allowed) + len(log_entries(log)) == lines


def test_counters_keep_their_values_when_rules_are_replaced(world: World, plane: PolicyDataPlane) -> None:
    compiler = compiler_of(DENIED)
    enforce(plane, world, compiler)
    assert send(DENIED, TO_DB, 4) == 0
    (policy,) = DENIED.world.policies
    compiler.set_policy(key_of(policy.metadata), None)
    plane.update(compiler, world.devices("n1"), compiler.flush())
    assert send(DENIED, TO_DB, first=42_000) == 1
    assert by_policy(plane.counts())["shop/quiet", "dropped"].packets == 4
    compiler.set_policy(key_of(policy.metadata), policy)
    plane.update(compiler, world.devices("n1"), compiler.flush())
    assert send(DENIED, TO_DB, 2, first=43_000) == 0
    assert by_policy(plane.counts())["shop/quiet", "dropped"].packets == 6
    enforce(plane, world, compiler, QUIET)
    assert by_policy(plane.counts())["shop/quiet", "dropped"].packets == 6


WEB, DB, OTHER, FREE = "10.180.0.1", "10.180.0.2", "10.180.0.3", "10.180.0.99"
NODE, NEAR = "192.168.99.1", "192.168.99.9"
APART = (
    ("shop-web", OTHER, DB, 9, BORROWED),
    ("shop-web", OTHER, NEAR, 9, BORROWED),
    ("shop-web", OTHER, NODE, 9, BORROWED),
    ("shop-stray", "10.180.0.77", DB, 9, UNKNOWN),
    ("outside", WEB, DB, 9, UNKNOWN),
    ("outside", FREE, DB, 9, UNKNOWN),
    ("shop-web", WEB, "10.180.0.77", 9, NOBODY),
    ("outside", NEAR, "10.180.0.77", 9, NOBODY),
    ("shop-web", WEB, FREE, 9, NOBODY),
    ("shop-web", WEB, NODE, 4789, TUNNEL),
    ("shop-web", WEB, NEAR, 4789, TUNNEL),
)
"""Namespace, source, destination, port, and what is told: pods that no policy selects, a device that nobody told of."""


def test_drops_without_a_policy_are_reported(world: World, plane: PolicyDataPlane, log: Nflog) -> None:
    devices = world.devices("n1")
    world.attach("shop/stray", "n1", ("10.180.0.77", "fd18::77"))
    facts = replace(FACTS["n1"], log=LOG, encapsulation_ports=(4789,), cluster_ranges=("10.180.0.0/16",))
    try:
        plane.load(compiler_of(FREE_FOR_ALL), devices, facts)
        for place, source, target, port, _ in APART:
            with netns.inside(path(place)), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
                sock.setsockopt(socket.SOL_IP, _IP_TRANSPARENT, 1)
                sock.bind((source, 0))
                sock.sendto(b"x", (target, port))
        results = [(item.source, item.destination, item.destination_port, item.prefix) for item in log_entries(log)]
        assert results == [item[1:] for item in APART]
    finally:
        world.detach("shop/stray")
