"""The informers of the objects that policies depend on."""

from collections.abc import Awaitable, Callable

from podwire.cluster.inforce import Versions
from podwire.kube.client import Client
from podwire.kube.informer import Informer
from podwire.kube.optional import follow_when_served
from podwire.kube.resources import CLUSTERNETWORKPOLICIES, NETWORKPOLICIES
from podwire.model.meta import Object
from podwire.model.node import Node
from podwire.model.pod import Pod
from podwire.model.policy import ClusterNetworkPolicy
from podwire.policy.objects import Sources


class PolicyInformers:
    """Follows policies, and pods and namespaces, whose informers are ``selected``.

    ``nodes`` is followed by another part of the agent.
    """

    def __init__(self, client: Client, nodes: Informer[Node], selected: tuple[Informer[Pod], Informer[Object]]) -> None:
        self._client = client
        self.pods, self.namespaces = selected
        self.nodes = nodes
        self.policies = Informer(client, NETWORKPOLICIES)
        self.cluster_policies: Informer[ClusterNetworkPolicy] = Informer(client, CLUSTERNETWORKPOLICIES)
        self.own = (self.pods, self.namespaces, self.policies, self.cluster_policies)
        """The informers that run as :meth:`tasks`."""
        self.sources = Sources(
            pods=self.pods,
            namespaces=self.namespaces,
            nodes=nodes,
            policies=self.policies,
            cluster_policies=self.cluster_policies,
        )

    def tasks(self) -> dict[str, Callable[[], Awaitable[None]]]:
        """What is to run, by name."""
        return {
            "pods": self.pods.run,
            "namespaces": self.namespaces.run,
            "networkpolicies": self.policies.run,
            "clusternetworkpolicies": lambda: follow_when_served(self._client, self.cluster_policies),
        }

    def versions(self) -> Versions:
        """The versions of all objects as they are known now."""
        return {informer.resource.plural: informer.versions for informer in (*self.own, self.nodes)}
