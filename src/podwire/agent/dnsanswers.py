"""Constructs the answers to DNS queries in the kernel, where the configuration asks for them."""

from podwire.agent.config import DnsSection
from podwire.agent.shared import Shared
from podwire.cluster.degraded import FEATURE_MISSING
from podwire.cluster.names import NODE_DNS
from podwire.kernel.bpf_state import remove_folder
from podwire.policy.runner import Enforcement


def add(shared: Shared, enforcement: Enforcement | None) -> None:
    """Adds the answers; without a configuration of them, those of an earlier agent end.

    ``enforcement`` is None where this agent does not enforce the policies of the node's pods: the answers come before
    all policies, so there are none then.
    """
    section = shared.config.dns
    if not section.kernel or enforcement is None:
        remove_folder(section.folder)
        shared.tasks["dns announcement"] = lambda: shared.announcer.insist({NODE_DNS: ""})
        if section.kernel:
            problem = "DNS answers in the kernel need the parts cni and policy of this agent; the servers answer"
            shared.degraded.report("dns", FEATURE_MISSING, problem)
        return
    _connect(shared, enforcement, section)


def _connect(shared: Shared, enforcement: Enforcement, section: DnsSection) -> None:
    # Imported only here: an agent without the answers does not need the zone (2 MB).
    from podwire.dns.bpf.metrics import samples
    from podwire.dns.bpf.runner import DnsAnswers
    from podwire.dns.watch import ZoneWatch
    from podwire.dns.zone import Zone, ZoneOptions
    from podwire.runtime.supervise import Supervisor
    from podwire.state.share import Share

    options = ZoneOptions(
        domain=section.domain,
        ttl_s=section.ttl_seconds,
        pods=section.pods,
        namespaces=section.namespaces,
        endpoint_pod_names=section.endpoint_pod_names,
        ignore_empty_service=section.ignore_empty_service,
        fallthrough=section.fallthrough,
    )
    zone = Zone(options)
    namespace, _, name = section.service.partition("/")
    answers = DnsAnswers(zone, options, (namespace, name), section.folder, shared.clock, section.udp_size)
    answers.report = lambda problem: shared.degraded.report("dns", FEATURE_MISSING, problem)
    enforcement.shortcuts.append(answers)
    watch = ZoneWatch(zone, shared.client, answers.changed, pods=False)

    async def follow() -> None:
        async with Supervisor(shared.clock, lambda task, failure: answers.report(f"{task}: {failure}")) as supervisor:
            watch.start(supervisor)

    async def announce() -> None:
        while True:
            answers.switched.clear()
            await shared.announcer.insist({NODE_DNS: "kernel" if answers.table.answering else ""})
            await answers.switched.wait()

    def share() -> list[Share]:
        desired = answers.desired
        note = "" if desired is not None else "the program is not loaded yet"
        return [Share(part="dns", desired=(desired,) if desired is not None else (), note=note)]

    shared.state_page.parts["dns"] = share
    shared.health.metrics["dns"] = lambda: samples(answers.table)
    shared.tasks |= {"dns zone": follow, "dns answers": answers.run, "dns announcement": announce}
