"""The volumes behind a pod's claims: read from the API when the pod starts.

The scheduler binds a pod only when its claims are bound; a pod that names its node itself waits here. Cost: two reads
per claim and pod.
"""

from collections.abc import Mapping
from typing import Any

from podwire.embedded.storage.claims import claim_of
from podwire.errors import ConfigError, NotFound
from podwire.kube.client import Client
from podwire.kube.resources import PERSISTENTVOLUMECLAIMS, PERSISTENTVOLUMES
from podwire.model.pod import Pod
from podwire.model.storage import VOLUME_SETTINGS


def is_claim(volume: Mapping[str, Any]) -> bool:
    """Whether a volume of a pod refers to a claim."""
    return "persistentVolumeClaim" in volume or "ephemeral" in volume


def is_read_only(volume: Mapping[str, Any]) -> bool:
    """Whether no container of a pod may write a volume: a claim with ``readOnly``, or an image."""
    return "image" in volume or bool((volume.get("persistentVolumeClaim") or {}).get("readOnly"))


async def bound_volume(client: Client, pod: Pod, volume: Mapping[str, Any]) -> Mapping[str, Any]:
    """The volume behind a claim, in the form that a pod has it: ``name`` and ``hostPath``.

    Raises: ConfigError when the claim is missing or not bound, or when this kubelet cannot mount that kind of volume;
    the API's errors.
    """
    name, namespace = claim_of(volume, pod.metadata.name), pod.metadata.namespace
    where = f'persistentvolumeclaim "{name}"'
    try:
        claim = await client.get(PERSISTENTVOLUMECLAIMS.raw, name, namespace)
    except NotFound as failure:
        raise ConfigError(where, "", f"{where} not found") from failure
    owners = {owner.get("uid") for owner in claim["metadata"].get("ownerReferences") or () if owner.get("controller")}
    if "ephemeral" in volume and pod.metadata.uid not in owners:
        raise ConfigError(where, "", f"{where} was not created for this pod")
    bound_to = (claim.get("spec") or {}).get("volumeName")
    if (claim.get("status") or {}).get("phase") != "Bound" or not bound_to:
        raise ConfigError(where, "", f"{where} is not bound to a volume yet")
    try:
        volume_object = await client.get(PERSISTENTVOLUMES.raw, bound_to)
    except NotFound as failure:
        raise ConfigError(where, "spec.volumeName", f'persistentvolume "{bound_to}" not found') from failure
    return {"name": volume["name"], **mountable(volume_object, where)}


def mountable(volume: Mapping[str, Any], where: str) -> dict[str, Any]:
    """The source of a PersistentVolume as a pod's volume.

    Raises: ConfigError for a kind of volume that needs a driver, and for block devices.
    """
    spec = volume.get("spec") or {}
    if spec.get("volumeMode") == "Block":
        raise ConfigError(where, "spec.volumeMode", "block volumes cannot be mounted here; expected Filesystem")
    if spec.get("hostPath"):
        return {"hostPath": spec["hostPath"]}
    if spec.get("local"):
        return {"hostPath": {"path": spec["local"].get("path", ""), "type": "Directory"}}
    kinds = ", ".join(sorted(key for key in spec if key not in VOLUME_SETTINGS)) or "none"
    problem = f"no driver for volumes of the kind {kinds}; expected hostPath or local"
    raise ConfigError(where, "spec.volumeName", problem)
