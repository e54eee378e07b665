"""The controller that writes the status of EgressPolicies and their Events.

It derives the same assignments as the agents, from the same objects. Guarantees: 1. the status names the node that has
the addresses within a second of a change; 2. an unchanged status is not written; 3. a policy that is wrong, that no
node can serve or whose address is taken gets the condition ``Ready`` False with the reason, and one Event.
"""

from collections.abc import Mapping
from typing import Any

from podwire.errors import ApiError, ApiUnreachable, NotFound, ProtocolError
from podwire.kube.controller import Environment
from podwire.kube.events import Severity, reference
from podwire.kube.optional import follow_when_served
from podwire.kube.resources import EGRESSPOLICIES, NODES
from podwire.model.egress import EgressPolicy
from podwire.routing.egress.holder import BACKEND, INVALID, EgressAssignment, unsupported
from podwire.routing.egress.view import EgressView
from podwire.routing.settings import RoutingSettings
from podwire.runtime.clock import rfc3339
from podwire.runtime.supervise import Supervisor

COMPONENT = "podwire-egress"
_INTERVAL_S = 0.5


class EgressController:
    """EgressPolicies of a cluster."""

    def __init__(self, environment: Environment) -> None:
        self._client = environment.client
        self._clock = environment.clock
        self._log = environment.log
        self._nodes = environment.of(NODES)
        self._events = environment.recorder(COMPONENT)
        self._view = EgressView(self._client)
        self._events.follow_rejected(self._view.policies)
        self._backends = tuple(
            name for name, backend in RoutingSettings().load().items() if backend.options.routes_outside
        )
        self._wrote: dict[str, tuple[object, ...]] = {}

    def start(self, supervisor: Supervisor) -> None:
        """Starts the loop."""
        supervisor.start("egress policies", lambda: follow_when_served(self._client, self._view.policies))
        supervisor.start("egress leases", self._view.leases.run)
        supervisor.start("egress", self._run)

    async def _run(self) -> None:
        await self._view.policies.synced.wait()
        await self._view.leases.synced.wait()
        await self._clock.sleep(_INTERVAL_S)
        while True:
            assignments = {
                assignment.name: assignment for assignment in self._view.assignments(self._nodes.objects, (), {})
            }
            for name, policy in list(self._view.policies.objects.items()):
                try:
                    await self._write(name, policy, assignments.get(name))
                except (ApiError, ApiUnreachable, ProtocolError) as failure:
                    self._log.debug("cannot write the status", policy=name, problem=failure)
            self._wrote = {name: wrote for name, wrote in self._wrote.items() if name in self._view.policies.objects}
            await self._clock.sleep(_INTERVAL_S)

    def _verdict(self, name: str, assignment: EgressAssignment | None) -> tuple[bool, str, str]:
        """Whether the policy is in force as written, the reason, and a text."""
        if problem := self._view.problems.get(name, ""):
            consequence = "; the last good form of the policy stays in force" if assignment is not None else ""
            return False, INVALID, problem + consequence
        if assignment is None:
            return False, INVALID, "the policy has not been read yet"
        if not assignment.node:
            return False, assignment.reason, f"{assignment.problem}; packets of the policy's pods are dropped"
        if problem := unsupported(self._nodes.objects, self._backends):
            return False, BACKEND, f"{problem}; packets of the policy's pods there are dropped"
        addresses = " and ".join(map(str, assignment.addresses))
        return True, "Assigned", f"node {assignment.node} has {addresses}"

    async def _write(self, name: str, policy: EgressPolicy, assignment: EgressAssignment | None) -> None:
        ready, reason, message = self._verdict(name, assignment)
        node = assignment.node if assignment is not None else ""
        addresses = tuple(map(str, assignment.addresses)) if assignment is not None and node else ()
        status = (policy.metadata.uid, node, addresses, ready, reason, message, policy.metadata.generation)
        if self._wrote.get(name) == status:
            return
        if self._wrote.get(name) is not None or not _says(policy, node, reason, message):
            severity: Severity = "Normal" if ready else "Warning"
            subject = reference(EGRESSPOLICIES.api_version, EGRESSPOLICIES.kind, policy.metadata)
            if self._wrote.get(name, ())[:-1] != status[:-1]:
                self._events.event(subject, severity, reason, message)
        body: Mapping[str, Any] = {
            "status": {
                "node": node,
                "egressIPs": list(addresses),
                "conditions": [
                    {
                        "type": "Ready",
                        "status": "True" if ready else "False",
                        "reason": reason,
                        "message": message,
                        "lastTransitionTime": _since(policy, ready=ready) or rfc3339(self._clock.now()),
                        "observedGeneration": policy.metadata.generation,
                    }
                ],
            }
        }
        try:
            await self._client.patch(EGRESSPOLICIES, name, body, subresource="status")
        except NotFound:
            return  # The policy is being deleted.
        self._wrote[name] = status


def _says(policy: EgressPolicy, node: str, reason: str, message: str) -> bool:
    """Whether the status of a policy has these values, written by an earlier controller."""
    conditions = policy.status.conditions
    return policy.status.node == node and any((c.reason, c.message) == (reason, message) for c in conditions)


def _since(policy: EgressPolicy, *, ready: bool) -> str | None:
    """The time of the last change of the condition, when it has this value already."""
    conditions = (c for c in policy.status.conditions if c.type == "Ready" and (c.status == "True") == ready)
    return next((condition.last_transition_time for condition in conditions), None)
