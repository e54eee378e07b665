"""The entry point of ``why`` for the command line, probes, tests and the policy log.

:func:`explain` answers a whole question from the objects and the nodes of a cluster. :func:`explain_connection` gives
the verdict of policies on one connection, from the objects alone, without Services and kernels; it is pure.
"""

from msgspec.structs import replace

from podwire.cluster.world import World
from podwire.policy.connectionmatch import Connection
from podwire.policy.evaluate import EGRESS, INGRESS, EvaluationOptions
from podwire.why.answer import Answer, PolicyVerdict
from podwire.why.cluster import ClusterAccess
from podwire.why.policies.lines import Lines, no_line
from podwire.why.policies.verdict import both_directions, explain_direction
from podwire.why.question import Question, TypedQuestion, resolve_question
from podwire.why.registry import EXPLAINERS


async def explain(asked: TypedQuestion, cluster: ClusterAccess) -> Answer:
    """The answer to a question. When the rules of a node differ from the plan, the node is read a second time.

    Raises: ConfigError for arguments that match nothing or are ambiguous; KernelError, ClusterError when a node that
        decides cannot be read; ApiError, ApiUnreachable.
    """
    question = await resolve_question(asked, cluster.objects)
    answer = await _explained(question, cluster)
    if answer.drifted:
        await cluster.nodes.settle()
        answer = await _explained(question, cluster)
    return answer


async def _explained(question: Question, cluster: ClusterAccess) -> Answer:
    answer = Answer(
        source=question.source,
        target=question.target,
        protocol=question.protocol.upper(),
        outcome="untouched",
        hops=(),
        notes=question.notes,
    )
    for part in EXPLAINERS:
        answer = await EXPLAINERS.load(part)(question, answer, cluster)
    return replace(answer, notes=(*answer.notes, *cluster.notes))


def explain_connection(
    world: World, connection: Connection, rules: EvaluationOptions | None = None, lines: Lines = no_line
) -> PolicyVerdict:
    """The verdict of policies on a connection, in both directions; its ``message`` is the verdict in one line."""
    egress, ingress = (explain_direction(world, connection, direction, rules, lines) for direction in (EGRESS, INGRESS))
    return both_directions(connection, egress, ingress)
