"""The explainers of ``podwire why`` by the part of podwire that each explains, in the order in which they run.

An explainer gets the question, the answer of the explainers before it, and the cluster. It returns the answer with its
own results added. It reads nodes through ``cluster.nodes``.
"""

from collections.abc import Awaitable, Callable

from podwire.runtime.registry import Registry
from podwire.why.answer import Answer
from podwire.why.cluster import ClusterAccess
from podwire.why.question import Question

Explainer = Callable[[Question, Answer, ClusterAccess], Awaitable[Answer]]

EXPLAINERS: Registry[Explainer] = Registry(
    "part that can be explained",
    "explainers",
    {
        "services": "podwire.why.services.explainer:explain_services",
        "loadbalancer": "podwire.why.loadbalancer.explainer:explain_balancers",
        "policies": "podwire.why.policies.explainer:explain_policies",
        "networks": "podwire.why.networks.explainer:explain_networks",
        "egress": "podwire.why.egress.explainer:explain_egress",
        "routing": "podwire.why.routing.explainer:explain_routing",
    },
)
"""Services come first: they decide which nodes a connection passes, and its possible ends. Routing comes last: packets
that policies drop take no route."""
