"""The answer of ``podwire why dns`` as text (pure)."""

from collections.abc import Iterator

from podwire.model.wording import duration
from podwire.why.dns.lookup import DnsAnswer

_SHOWN = 10
"""Records of a name that are shown."""


def render(answer: DnsAnswer) -> Iterator[str]:
    """The lines of the answer."""
    asker = f" from {answer.pod}" if answer.pod else ""
    yield f"{answer.name} {answer.type}{asker}"
    yield ""
    resolver = answer.resolver
    if resolver is not None:
        searches = ", ".join(resolver.searches) or "no domains"
        yield f"resolver  dnsPolicy {resolver.policy}, ndots {resolver.ndots}, search {searches}"
    elif not answer.pod:
        yield "resolver  none: the name is looked up as it stands; --from POD adds the search path of a pod"
    yield f"server    {answer.settings}"
    for number, step in enumerate(answer.steps, 1):
        yield ""
        appended = f" (search {step.search})" if step.search else ""
        yield f"{number}. {step.name}{appended}: {step.outcome}"
        yield from (f"   {rule}" for rule in step.rules)
        yield f"   {step.reason}"
        if step.kernel:
            yield f"   answered in the kernel of the pod's node: {step.kernel}"
            yield "   (a pod to which an egress policy applies asks the servers)"
        elif step.node_local:
            yield "   the server of the pod's node answers while it takes queries, otherwise a server of the cluster"
            yield "   (a pod to which an egress policy applies asks the servers of the cluster)"
        if step.age_s is not None:
            yield f"   last change {duration(1000 * step.age_s)} ago"
        yield from (f"   {record}" for record in step.records[:_SHOWN])
        if len(step.records) > _SHOWN:
            yield f"   and {len(step.records) - _SHOWN} more"
