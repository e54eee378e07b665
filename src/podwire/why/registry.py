"""The explainers of ``podwire why`` by the part that each explains, in the order in which they are asked.

An explainer gets the question, the answer of the explainers before it, and the cluster, and returns the answer with
what its own part says. What it needs of nodes it asks of ``cluster.nodes``.
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
        "policies": "podwire.why.policies.explainer:explain_policies",
    },
)
"""Services come first: they say which nodes a connection passes and where it may end."""
