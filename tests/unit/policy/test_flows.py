"""Which changes take something away, and which flows are to be forgotten then."""

import asyncio
import threading
from collections.abc import Callable, Iterable

import msgspec
from tests.fakes.clock import FakeClock
from tests.unit.policy.test_compile import CASES

from podwire.errors import KernelError, Unsupported
from podwire.kernel.conntrack import Ends, Flow
from podwire.model.policy import ClusterNetworkPolicy, NetworkPolicy
from podwire.policy.compile import Compiler, compile_world
from podwire.policy.flows import FlowKeeper, Losses, Verdicts, verdicts
from podwire.policy.nodepods import PolicyDelta

OPEN = next(case for case in CASES if case.name == "without a policy everything passes")
WEB, DB, OTHER, FAR, NODE = "10.180.0.1", "10.180.0.2", "10.180.0.3", "10.180.1.1", "192.168.99.1"


def policy(name: str, **spec: object) -> NetworkPolicy:
    return msgspec.convert({"metadata": {"name": name, "namespace": "shop"}, "spec": spec}, NetworkPolicy)


def of(app: str, **spec: object) -> dict[str, object]:
    return {"podSelector": {"matchLabels": {"app": app}}, **spec}


def peers(app: str) -> list[object]:
    return [{"podSelector": {"matchLabels": {"app": app}}}]


IN = policy("in", **of("db", ingress=[{"from": peers("web")}]))
WIDER = policy("in", **of("db", ingress=[{"from": peers("web")}, {"from": peers("db")}]))
PORT = policy("in", **of("db", ingress=[{"from": peers("web"), "ports": [{"port": 53, "protocol": "UDP"}]}]))
ALSO = policy("also", **of("db", ingress=[{"from": [{"ipBlock": {"cidr": "192.0.2.0/24"}}]}]))
OUT = policy("out", **of("web", policyTypes=["Egress"], egress=[{"to": peers("db")}]))


class Followed:
    """A compiler and what its changes take away."""

    def __init__(self, *policies: NetworkPolicy) -> None:
        self.compiler = compile_world(OPEN.world, "n1")
        self.losses = Losses(self.compiler)
        self.put(*policies)
        self.losses.follow(PolicyDelta(pods=dict(self.compiler.pods)))

    def put(self, *policies: NetworkPolicy) -> PolicyDelta:
        for item in policies:
            self.compiler.set_policy(f"shop/{item.metadata.name}", item)
        return self.compiler.flush()

    def after(self, change: Callable[[Compiler], None]) -> set[str]:
        change(self.compiler)
        return self.losses.follow(self.compiler.flush())

    def putting(self, *policies: NetworkPolicy) -> set[str]:
        return self.losses.follow(self.put(*policies))


def test_a_first_policy_takes_away() -> None:
    assert Followed().putting(IN) == {DB, "fd18::2"}


def test_added_rules_remove_no_access() -> None:
    followed = Followed(IN)
    assert followed.putting(WIDER) == set()
    assert followed.putting(ALSO) == set()
    assert followed.putting(IN) == {DB, "fd18::2"}


def test_fewer_ports_take_away_and_more_do_not() -> None:
    followed = Followed(IN)
    assert followed.putting(PORT) == {DB, "fd18::2"}
    more = policy("in", **of("db", ingress=[{"from": peers("web"), "ports": [{"port": 53, "protocol": "UDP"}]}, {}]))
    assert followed.putting(more) == set()


def test_removed_policy_revokes_unless_it_was_the_last() -> None:
    followed = Followed(IN, ALSO)
    assert followed.after(lambda created: created.set_policy("shop/in", None)) == {DB, "fd18::2"}
    assert followed.after(lambda created: created.set_policy("shop/also", None)) == set()


def test_removed_peer_loses_connections_and_added_peer_does_not() -> None:
    followed = Followed(IN)
    web = next(pod for pod in OPEN.world.pods if pod.metadata.name == "web" and pod.metadata.namespace == "shop")
    meta = msgspec.structs.replace(web.metadata, labels={"app": "other"})
    other = msgspec.structs.replace(web, metadata=meta)
    assert followed.after(lambda created: created.set_pod("shop/web", other)) == {WEB, "fd18::1"}
    assert followed.after(lambda created: created.set_pod("shop/web", web)) == set()


def test_of_many_peers_the_pods_themselves_are_looked_at() -> None:
    followed = Followed(IN)
    web = next(pod for pod in OPEN.world.pods if pod.metadata.name == "web" and pod.metadata.namespace == "shop")

    def many(count: int, labels: dict[str, str]) -> Callable[[Compiler], None]:
        def change(compiler: Compiler) -> None:
            for number in range(count):
                meta = msgspec.structs.replace(web.metadata, name=f"w{number}", labels=labels)
                status = msgspec.structs.replace(web.status, pod_ip=f"10.180.7.{number}", pod_ips=())
                spec = msgspec.structs.replace(web.spec, node_name="n2")
                pod = msgspec.structs.replace(web, metadata=meta, status=status, spec=spec)
                compiler.set_pod(f"shop/w{number}", pod)

        return change

    assert followed.after(many(100, {"app": "web"})) == set()
    assert followed.after(many(100, {"app": "x"})) == {DB, "fd18::2"}
    assert followed.after(many(100, {"app": "web"})) == set()
    assert followed.after(many(3, {"app": "x"})) == {f"10.180.7.{number}" for number in range(3)}


def test_flows_of_remote_pods_new_pods_and_cluster_policies() -> None:
    followed = Followed()
    assert followed.putting(policy("old", **of("old"))) == set()
    deny = {"metadata": {"name": "deny"}, "spec": {"tier": "Admin", "priority": 1, "subject": {"namespaces": {}}}}
    rule = {"action": "Deny", "from": [{"namespaces": {}}]}
    created = msgspec.convert(deny | {"spec": deny["spec"] | {"ingress": [rule]}}, ClusterNetworkPolicy)  # type: ignore[operator]
    result = followed.after(lambda compiler: compiler.set_cluster_policy("deny", created))
    assert result >= {WEB, DB, OTHER}


def flow(source: str, target: str, sport: int = 40000, dport: int = 53, back: str = "") -> Flow:
    reply = Ends(target, back or source, dport, sport)
    return Flow("UDP", Ends(source, target, sport, dport), reply)


def test_a_flow_denied_in_both_directions_is_deleted() -> None:
    only_in = verdicts(Followed(policy("in", **of("db"))).compiler)
    assert not only_in(flow(WEB, DB)), "the server may send to the client anyway"
    assert only_in(flow(WEB, DB, back=NODE)), "its answers come back translated"
    both = verdicts(Followed(policy("in", **of("db")), policy("web", **of("web"))).compiler)
    assert both(flow(WEB, DB))
    assert both(flow(FAR, DB)) is False, "nobody here says that the far pod may not be sent to"
    assert both(flow("fd18::1", "fd18::2"))
    assert not both(flow(DB, DB))
    assert not both(flow(OTHER, FAR))


def test_finished_handshakes_stay_and_portless_protocols_have_own_rules() -> None:
    created = verdicts(Followed(PORT, OUT, policy("web", **of("web"))).compiler)
    item = flow(WEB, DB, dport=53)
    for protocol, assured, forgotten in (
        ("UDP", True, False),
        ("ICMP", False, True),
        ("GRE", True, True),
        ("253", False, True),
        ("SCTP", False, True),
        ("SCTP", True, False),
        ("TCP", True, False),
        ("TCP", False, False),
    ):
        assert created(item._replace(protocol=protocol, assured=assured)) is forgotten, protocol
    anything = verdicts(Followed(policy("in", **of("db", ingress=[{"from": peers("web")}]))).compiler)
    assert not anything(item._replace(protocol="ICMP")), "a rule without ports"


def test_ports_and_directions_are_looked_at() -> None:
    created = verdicts(Followed(PORT, OUT, policy("web", **of("web"))).compiler)
    assert not created(flow(WEB, DB, dport=53))
    assert created(flow(WEB, DB, dport=54))
    assert created(flow(WEB, OTHER))


def test_node_is_source_by_every_address_destination_by_known_ones() -> None:
    compiler = compile_world(OPEN.world, "n1", own_node_egress=False)
    for item in (policy("in", **of("db")), policy("out", **of("db", policyTypes=["Egress"]))):
        compiler.set_policy(f"shop/{item.metadata.name}", item)
    compiler.flush()
    created = verdicts(compiler, frozenset((NODE, "172.17.0.1")))
    assert created.allowed("172.17.0.1", DB, 53)
    assert created.allowed(DB, "172.17.0.1", 53)
    assert not created.allowed(DB, NODE, 53)
    assert not created.allowed("172.17.0.2", DB, 53)


class Kernel:
    """Notes what is looked at."""

    def __init__(self) -> None:
        self.looked: list[set[str]] = []
        self.failures: list[KernelError] = []
        self.done = threading.Semaphore(0)

    def forget(self, judge: Callable[[frozenset[str]], Verdicts], addresses: Iterable[str]) -> list[Flow]:
        assert isinstance(judge(frozenset()), Verdicts)
        self.looked.append(set(addresses))
        self.done.release()
        if self.failures:
            raise self.failures.pop()
        return [flow(WEB, DB)]


def with_keeper(scenario: object) -> None:
    """Runs a scenario beside a keeper that runs."""

    async def run() -> None:
        followed, clock, kernel = Followed(), FakeClock(), Kernel()
        keeper = FlowKeeper(followed.compiler, clock, kernel.forget)
        keeper.committed(PolicyDelta(pods=dict(followed.compiler.pods)))
        async with asyncio.TaskGroup() as group:
            running = group.create_task(keeper.run())
            await scenario(keeper, followed, clock, kernel)  # type: ignore[operator]
            running.cancel()

    asyncio.run(run())


async def walked(clock: FakeClock, kernel: Kernel) -> None:
    """Waits for a walk that begins within 10 ms."""
    await clock.advance(0.01)
    assert await asyncio.to_thread(kernel.done.acquire, timeout=60)
    await asyncio.sleep(0.05)


def test_a_walk_follows_a_change_within_ten_milliseconds() -> None:
    async def scenario(keeper: FlowKeeper, followed: Followed, clock: FakeClock, kernel: Kernel) -> None:
        keeper.configure(strict=True)
        keeper.committed(followed.put(IN))
        keeper.committed(followed.put(OUT))
        await walked(clock, kernel)
        assert kernel.looked == [{DB, "fd18::2", WEB, "fd18::1"}], "both changes in one walk"
        assert keeper.forgotten == 1
        keeper.committed(followed.put(WIDER))
        await clock.advance(10)
        assert len(kernel.looked) == 1, "nothing was taken away"

    with_keeper(scenario)


def test_after_a_full_load_everything_is_looked_at() -> None:
    async def scenario(keeper: FlowKeeper, followed: Followed, clock: FakeClock, kernel: Kernel) -> None:
        keeper.configure(strict=True)
        keeper.committed(followed.put(IN), full=True)
        await walked(clock, kernel)
        keeper.committed(followed.put(WIDER), full=True)
        await walked(clock, kernel)
        assert kernel.looked == [{DB, "fd18::2"}] * 2

    with_keeper(scenario)


def test_a_failure_is_followed_by_another_walk() -> None:
    async def scenario(keeper: FlowKeeper, followed: Followed, clock: FakeClock, kernel: Kernel) -> None:
        kernel.failures = [KernelError("list", "tracked connections", 12)]
        keeper.configure(strict=True)
        keeper.committed(followed.put(IN))
        await walked(clock, kernel)
        assert keeper.forgotten == 0
        await clock.advance(0.13)
        await walked(clock, kernel)
        assert kernel.looked == [{DB, "fd18::2"}] * 2
        assert keeper.forgotten == 1

    with_keeper(scenario)


def test_kept_connections_are_checked_once_no_longer_kept() -> None:
    async def scenario(keeper: FlowKeeper, followed: Followed, clock: FakeClock, kernel: Kernel) -> None:
        keeper.configure(strict=False)
        keeper.committed(followed.put(IN))
        await clock.advance(10)
        assert kernel.looked == []
        keeper.configure(strict=True)
        await walked(clock, kernel)
        assert kernel.looked == [{DB, "fd18::2"}]

    with_keeper(scenario)


def test_a_kernel_that_cannot_is_not_asked_again() -> None:
    async def scenario(keeper: FlowKeeper, followed: Followed, clock: FakeClock, kernel: Kernel) -> None:
        kernel.failures = [Unsupported("conntrack", "2.6.18", "no such thing")]
        keeper.configure(strict=True)
        keeper.committed(followed.put(IN))
        await walked(clock, kernel)
        keeper.committed(followed.put(OUT))
        await clock.advance(60)
        assert len(kernel.looked) == 1

    with_keeper(scenario)
