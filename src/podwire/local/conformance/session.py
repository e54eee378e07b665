"""One run of ``podwire conformance``: starts a cluster, runs the cases one after the other, collects the results.

Before a case begins, policies, pods and labels are as its file says, and nothing of the previous case is in force.
After the actions of a step, the run waits until the changes are in force on every node. Then it tries all connections
of the step at the same time, in both IP families.
"""

import asyncio
import contextlib
from collections.abc import Callable, Iterator, Sequence
from fnmatch import fnmatchcase
from pathlib import Path

import msgspec
from msgspec.structs import replace

from podwire.errors import ApiError, ClusterError, ConfigError
from podwire.kube.client import Client
from podwire.kube.config import load_kubeconfig
from podwire.kube.resources import NODES
from podwire.local import bring_up, credentials, inventory, teardown
from podwire.local.config import ClusterConfig, check_config
from podwire.local.conformance.attempts import Trial, Trials
from podwire.local.conformance.casefile import Case, CaseCheck, CaseFile, CaseStep
from podwire.local.conformance.cluster import CaseCluster, Families
from podwire.local.conformance.families import prefix_of
from podwire.local.conformance.placing import ClusterNode, cluster_for, cluster_nodes
from podwire.local.conformance.stage import CasePod
from podwire.local.conformance.verdicts import CaseResult, Failure, Judge
from podwire.local.probe.collect import pod_namespaces
from podwire.local.topology import Topology
from podwire.model.wording import count
from podwire.runtime.clock import SystemClock

ProgressOutput = Callable[[str], None]


class ConformanceRequest(msgspec.Struct, frozen=True, kw_only=True):
    """The cases to run; ``name`` is a running cluster, or empty to create a cluster for this run.

    The number of nodes and the pod networks in ``config`` are ignored: the cases determine them.
    """

    files: tuple[CaseFile, ...]
    name: str
    own_name: str
    config: ClusterConfig
    families: tuple[int, ...]


def chosen(files: Sequence[CaseFile], pattern: str) -> tuple[CaseFile, ...]:
    """The files with only those cases whose id matches a pattern.

    Raises: ConfigError when there is none.
    """
    matching = [
        replace(file, cases=tuple(case for case in file.cases if fnmatchcase(case.id, pattern))) for file in files
    ]
    matching = [file for file in matching if file.cases]
    if not matching:
        raise ConfigError("--case", "", f"no case is named {pattern!r}")
    return tuple(matching)


def run(request: ConformanceRequest, say: ProgressOutput) -> tuple[CaseResult, ...]:
    """Runs all cases.

    Raises: ConfigError, ClusterError.
    """
    with _cluster(request, say) as topology:
        return asyncio.run(_play_all(request, topology, say))


@contextlib.contextmanager
def _cluster(request: ConformanceRequest, say: ProgressOutput) -> Iterator[Topology]:
    """The running cluster, or a new cluster that exists until the end of the block."""
    if request.name:
        yield inventory.existing(request.name)
        return
    nodes, networks = cluster_for(request.files)
    config = replace(request.config, nodes=nodes, pod_cidrs=networks)
    check_config(config, "podwire conformance")
    name = request.own_name
    try:
        bring_up.run(bring_up.UpRequest(name=name, config=config, manifests=()), lambda _: None)
        say(f"cluster {name!r} of {count(nodes, 'node')}, pods in {' and '.join(networks)}")
        yield inventory.existing(name)
    finally:
        with inventory.locked(name):
            topology = inventory.find(name)
            if topology is not None:
                teardown.destroy(topology)
            inventory.forget_lock(name)


async def _play_all(request: ConformanceRequest, topology: Topology, say: ProgressOutput) -> tuple[CaseResult, ...]:
    clock = SystemClock()
    client = Client(
        load_kubeconfig(credentials.kubeconfig_path(topology, "admin")), clock, manager="podwire-conformance"
    )
    try:
        translate = any(case.initial.translate for file in request.files for case in file.cases)
        nodes = cluster_nodes((await client.list(NODES)).items)
        families = _families(nodes, request.families, translate=translate)
        async with CaseCluster(client, topology, families) as cluster:
            steps = [step for file in request.files for case in file.cases for step in case.steps]
            initial = [case.initial for file in request.files for case in file.cases]
            cluster.check_free({name for stage in (*initial, *(s.stage for s in steps)) for name in stage.namespaces})
            runner = _CaseRunner(cluster, topology)
            results: list[CaseResult] = []
            try:
                for file in request.files:
                    for number, case in enumerate(file.cases):
                        started = clock.monotonic()
                        result = await runner.play(file.source, case)
                        results.append(replace(result, seconds=clock.monotonic() - started))
                        if number % 20 == 19 or number == len(file.cases) - 1:
                            bad = sum(not played.passed for played in results if played.file == file.source)
                            say(f"{file.source}: {number + 1} of {len(file.cases)} cases, {bad} failed")
            finally:
                if request.name:
                    await cluster.clear()
            return tuple(results)
    finally:
        await client.close()


def _families(nodes: Sequence[ClusterNode], versions: tuple[int, ...], *, translate: bool) -> Families:
    prefixes = {prefix_of(node.ranges) for node in nodes}
    prefix = prefixes.pop() if len(prefixes) == 1 else None
    if 6 in versions and prefix is None and translate:
        ranges = "; ".join(f"{node.name} has {', '.join(node.ranges)}" for node in nodes)
        problem = (
            "IPv6 needs nodes whose IPv6 range embeds their IPv4 range, as podCIDRs "
            f'[10.244.0.0/16, "fd10::af4:0/112"] make them; {ranges}. Use --family 4'
        )
        raise ConfigError("--family", "", problem)
    return Families(checked=versions, prefix=prefix)


class _CaseRunner:
    """Runs cases on a cluster."""

    def __init__(self, cluster: CaseCluster, topology: Topology) -> None:
        self._cluster = cluster
        self._topology = topology
        self._trials = Trials()
        self._namespaces: dict[str, Path] = {}

    async def play(self, source: str, case: Case) -> CaseResult:
        """Runs one case and returns its result."""
        failures: list[Failure] = []
        checks, problem = 0, ""
        try:
            await self._cluster.begin(case.initial)
            for step in case.steps:
                for action in step.actions:
                    await self._cluster.act(action)
                await self._cluster.in_force()
                count, failed = await self._check(case, step)
                checks += count
                failures += failed
        except (ClusterError, ApiError) as failure:
            problem = str(failure)
            await self._cluster.clear()
        return CaseResult(
            file=source, case=case.id, tags=case.tags, checks=checks, failures=tuple(failures), problem=problem
        )

    async def _check(self, case: Case, step: CaseStep) -> tuple[int, list[Failure]]:
        families = self._cluster.families
        judge = Judge(case, step, self._cluster.placing, families.address)
        tried = [
            (check, family)
            for check in step.checks
            for family in judge.families_of(check)
            if family in families.checked
        ]
        attempts = [self._attempt(judge, step, check, family) for check, family in tried]
        outcomes = await asyncio.to_thread(self._trials.run, attempts)
        observed = ((check, family, outcome) for (check, family), outcome in zip(tried, outcomes, strict=True))
        translate = step.stage.translate
        return len(tried), judge.failures(observed, lambda policy: families.policy(policy, translate=translate))

    def _attempt(self, judge: Judge, step: CaseStep, check: CaseCheck, family: int) -> Trial:
        source, target = step.stage.pods[check.source], step.stage.pods[check.target]
        return Trial(
            source=self._namespace(source),
            source_address=judge.address_of(source, family),
            target=self._namespace(target),
            address=judge.address_of(target, family),
            protocol=check.protocol,
            port=check.port,
            allowed=check.allowed,
        )

    def _namespace(self, pod: CasePod) -> Path:
        """The network namespace of a pod."""
        if pod.host_network:
            return Path(self._topology.netns(self._cluster.placing.node_of(pod).name))
        uid = self._cluster.pod(pod.key).metadata.uid
        if uid not in self._namespaces:
            self._namespaces = pod_namespaces(self._topology)
        if uid not in self._namespaces:
            raise ClusterError(f"pod {pod.key} has no network namespace on this machine")
        return self._namespaces[uid]
