"""Rewrites the images of a plan for a registry of one's own, and pins them by digest. Pure.

A plan that was made elsewhere is applied in a cluster without access to registries: the longest fitting prefix of the
mirrors decides, then the registry for all images. A digest is looked up by the image as the plan names it, then by its
new name.
"""

from collections.abc import Mapping
from typing import Any

import msgspec

from podwire.errors import ConfigError
from podwire.model.meta import Fact
from podwire.upgrade.plan.values import ImageReference, UpgradePlan, UpgradeStep, identified, parse_image

_GROUPS = ("containers", "initContainers")


class ImageRules(Fact, frozen=True, kw_only=True):
    """How images are rewritten. ``registry`` replaces the registry of every image that no mirror fits."""

    mirrors: Mapping[str, str] = {}
    digests: Mapping[str, str] = {}
    registry: str = ""
    require_digests: bool = False


def rewritten(plan: UpgradePlan, rules: ImageRules) -> UpgradePlan:
    """The plan with the new images rewritten, and the ID of its new content.

    Raises: ConfigError for an image without a digest when digests are required.
    """
    steps = tuple(_step(step, rules) for step in plan.steps)
    return plan if steps == plan.steps else identified(msgspec.structs.replace(plan, steps=steps))


def image_of(image: ImageReference, rules: ImageRules, source: str) -> ImageReference:
    """An image as it is written into a workload.

    Raises: ConfigError when it has no digest, and digests are required.
    """
    mirrored = image.mirrored(rules.mirrors)
    if mirrored == image and rules.registry:
        mirrored = parse_image(f"{rules.registry.rstrip('/')}/{image.repository}", "--registry")
        mirrored = msgspec.structs.replace(mirrored, tag=image.tag, digest=image.digest)
    digest = rules.digests.get(str(image)) or rules.digests.get(str(mirrored))
    result = msgspec.structs.replace(mirrored, digest=digest) if digest else mirrored
    if rules.require_digests and not result.digest:
        raise ConfigError(source, "", f"image {image} has no digest; add it to the digests of the image map")
    return result


def _step(step: UpgradeStep, rules: ImageRules) -> UpgradeStep:
    source = f"step {step.id}"
    images = tuple(msgspec.structs.replace(item, after=image_of(item.after, rules, source)) for item in step.images)
    changes = tuple(
        msgspec.structs.replace(change, patch=_patch(change.patch, rules, source)) for change in step.changes
    )
    return msgspec.structs.replace(step, images=images, changes=changes)


def _patch(patch: dict[str, Any], rules: ImageRules, source: str) -> dict[str, Any]:
    """A patch of a workload with its images rewritten; other patches as they are."""
    spec = ((patch.get("spec") or {}).get("template") or {}).get("spec")
    if not spec:
        return patch
    new = dict(spec)
    for group in _GROUPS:
        if group in spec:
            new[group] = [_container(item, rules, source) for item in spec[group]]
    template = {**patch["spec"]["template"], "spec": new}
    return {**patch, "spec": {**patch["spec"], "template": template}}


def _container(item: dict[str, Any], rules: ImageRules, source: str) -> dict[str, Any]:
    if not item.get("image"):
        return item
    return {**item, "image": str(image_of(parse_image(item["image"], source), rules, source))}
