"""The objects of a cluster that a question about policies needs: the pods at both ends, and what may select them.

On a large cluster that is little: pods by their names or addresses, their namespaces, the policies of these namespaces
and those of the cluster, and the nodes.
"""

from collections.abc import Iterable

from podwire.cluster.world import World
from podwire.errors import NotFound
from podwire.kube.client import Client
from podwire.kube.optional import list_if_served
from podwire.kube.resources import CLUSTERNETWORKPOLICIES, NAMESPACES, NETWORKPOLICIES, NODES, PODS
from podwire.model.meta import Object, key_of
from podwire.model.pod import Pod
from podwire.model.policy import NetworkPolicy
from podwire.why.answer import Answer

_FEW = 16
"""So many pods are asked for one by one; of more, all pods of their namespaces."""


async def world_of(client: Client, answer: Answer) -> World:
    """What the policies of an answer's ends depend on.

    Raises: ApiError, ApiUnreachable.
    """
    pods = await _pods(client, answer)
    names = sorted({pod.metadata.namespace for pod in pods})
    policies: list[NetworkPolicy] = []
    for name in names:
        policies += (await client.list(NETWORKPOLICIES, name)).items
    return World(
        pods=pods,
        namespaces=tuple([found for name in names if (found := await _namespace(client, name)) is not None]),
        nodes=tuple((await client.list(NODES)).items),
        policies=tuple(policies),
        cluster_policies=await list_if_served(client, CLUSTERNETWORKPOLICIES),
    )


async def _namespace(client: Client, name: str) -> Object | None:
    try:
        return await client.get(NAMESPACES, name, decode_as=Object)
    except NotFound:
        return None


async def _pods(client: Client, answer: Answer) -> tuple[Pod, ...]:
    """The pods that the connection may come from or go to."""
    named, addresses = ends(answer)
    found: dict[str, Pod] = {}
    if len(named) > _FEW:
        for namespace in sorted({name.partition("/")[0] for name in named}):
            listed = (await client.list(PODS, namespace)).items
            found |= {key: pod for pod in listed if (key := key_of(pod.metadata)) in named}
    else:
        for key in sorted(named):
            namespace, _, name = key.partition("/")
            try:
                found[key] = await client.get(PODS, name, namespace, decode_as=Pod)
            except NotFound:
                continue
    for address in addresses:
        found |= {key_of(pod.metadata): pod for pod in await _at(client, address)}
    return tuple(found.values())


async def _at(client: Client, address: str) -> Iterable[Pod]:
    """The pods with an address."""
    found = (await client.list(PODS, field_selector=f"status.podIP={address}")).items
    if not found and ":" in address:
        found = (await client.list(PODS)).items
    return (pod for pod in found if address in pod.addresses)


def ends(answer: Answer) -> tuple[frozenset[str], frozenset[str]]:
    """The pods at the ends of an answer that it names, and the addresses of ends that it does not."""
    named = {place.name for place in (answer.source, answer.target) if place.kind == "Pod"}
    addresses = set()
    if answer.source.kind == "Address":
        addresses.add(answer.source.address)
    reached = [one for one in answer.hops[-1].endpoints if one.used]
    named |= {one.pod for one in reached if one.pod}
    addresses |= {one.address for one in reached if not one.pod}
    if answer.target.kind == "Address" and not reached:
        addresses.add(answer.target.address)
    return frozenset(named), frozenset(filter(None, addresses))
