"""The pods that have a device on this node, and their objects with the addresses that this node assigned to them."""

import msgspec

from podwire.dataplane.follower import Source
from podwire.model.meta import ObjectMeta
from podwire.model.pod import MIRROR_POD, Pod, PodIP, PodSpec


class AttachedPod(msgspec.Struct, frozen=True, kw_only=True):
    """A pod's device on this node."""

    pod: str
    """``namespace/name``, followed by ``/device`` for a pod's further device.

    It is empty for a container that is not a pod, which has no labels that a policy selects.
    """
    device: str
    addresses: tuple[str, ...]
    uid: str = ""
    """The pod's uid; empty when the runtime does not give it."""
    port: str = ""
    """The pod's own port, when ``device`` is a bridge; otherwise empty."""

    @property
    def link(self) -> str:
        """The device that only this pod uses."""
        return self.port or self.device


class AttachedPods:
    """The attached pods of the node ``node``; ``pods`` has the pods of the API.

    A pod may have further devices on the node (a second interface). Each of them counts as a pod of its own, with the
    key ``namespace/name/device``, the labels of the pod and its own addresses: the policies of the pod apply to it.
    """

    def __init__(self, pods: Source[Pod], node: str) -> None:
        self._pods = pods
        self._node = node
        self._containers: dict[str, Pod] = {}
        """Pod objects for containers that are not pods, by ``/device``."""
        self._further: dict[str, str] = {}
        """The keys of pods by the keys of their further devices."""
        self.by_link: dict[str, AttachedPod] = {}
        """The attached pods by the names of their own devices."""

    def add(self, attached_pod: AttachedPod) -> str:
        """Adds a pod's device; returns its key: ``/device`` for a container that is not a pod, else see the class."""
        if not attached_pod.pod:
            attached_pod = msgspec.structs.replace(attached_pod, pod=f"/{attached_pod.link}")
            meta = ObjectMeta(name=attached_pod.link)
            self._containers[attached_pod.pod] = Pod(metadata=meta, spec=PodSpec(node_name=self._node))
        elif self._is_further(attached_pod):
            key = f"{attached_pod.pod}/{attached_pod.link}"
            self._further[key] = attached_pod.pod
            attached_pod = msgspec.structs.replace(attached_pod, pod=key)
        self.by_link[attached_pod.link] = attached_pod
        return attached_pod.pod

    def remove(self, link: str) -> AttachedPod | None:
        """Removes the pod with a device; returns the pod, or None when there is none."""
        attached_pod = self.by_link.pop(link, None)
        if attached_pod is not None:
            self._containers.pop(attached_pod.pod, None)
            self._further.pop(attached_pod.pod, None)
        return attached_pod

    def _is_further(self, attached_pod: AttachedPod) -> bool:
        """Whether the same pod has a device already; a pod that replaces another of its name has another uid."""
        return any(
            (other.pod, other.uid) == (attached_pod.pod, attached_pod.uid) and other.link != attached_pod.link
            for other in self.by_link.values()
        )

    def is_known(self, pod: str, uid: str) -> bool:
        """Whether the object of a pod is known; with ``uid``, an object with this uid."""
        pod_object = self._object(pod)
        return pod_object is not None and _has_uid(pod_object, uid)

    def devices(self) -> dict[str, str]:
        """The device of each attached pod whose object is known; a pod without an object is isolated."""
        return {
            attached_pod.pod: attached_pod.device
            for attached_pod in self.by_link.values()
            if self.is_known(attached_pod.pod, attached_pod.uid)
        }

    def keys(self) -> tuple[str, ...]:
        """The keys of all pods of the cluster, of containers on this node that are not pods, and of further devices."""
        return (*self._pods.objects, *self._containers, *self._further)

    def objects(self, keys: list[str]) -> dict[str, Pod | None]:
        """The pods with these keys; attached pods have the addresses that this node assigned to them.

        The further devices of these pods are included.
        """
        asked = frozenset(keys)
        keys = [*keys, *(key for key, pod in self._further.items() if pod in asked and key not in asked)]
        attached_by_key = {attached_pod.pod: attached_pod for attached_pod in self.by_link.values()}
        objects: dict[str, Pod | None] = {}
        for key in keys:
            pod, attached_pod = self._object(key), attached_by_key.get(key)
            if pod is not None and attached_pod is not None and _has_uid(pod, attached_pod.uid):
                pod = _with_addresses(pod, attached_pod.addresses)
            objects[key] = pod
        return objects

    def _object(self, key: str) -> Pod | None:
        return self._pods.objects.get(self._further.get(key, key)) or self._containers.get(key)


def _has_uid(pod: Pod, uid: str) -> bool:
    """Whether a uid is that of a pod object, or empty.

    For a static pod the runtime gives the uid of the pod's file, which the mirror object of kubelet has as annotation.
    """
    return uid in ("", pod.metadata.uid, pod.metadata.annotations.get(MIRROR_POD))


def _with_addresses(pod: Pod, addresses: tuple[str, ...]) -> Pod:
    """A pod with its addresses on this node; its status may have none yet, or those from before a restart."""
    if pod.addresses == addresses:
        return pod
    ips = tuple(PodIP(ip=address) for address in addresses)
    return msgspec.structs.replace(
        pod, status=msgspec.structs.replace(pod.status, pod_ip=addresses[0] if addresses else "", pod_ips=ips)
    )
