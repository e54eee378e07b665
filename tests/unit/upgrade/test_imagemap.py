"""Images of a plan in a registry of one's own, pinned by digest."""

import pytest
from tests.unit.upgrade.apply.scenario import make_plan

from podwire.errors import ConfigError
from podwire.upgrade import imagemap
from podwire.upgrade.imagemap import ImageRules
from podwire.upgrade.plan.values import UpgradePlan, parse_plan, plan_json

DIGEST = "sha256:" + "0" * 64


def images(plan: UpgradePlan) -> list[str]:
    texts = [str(image.after) for step in plan.steps for image in step.images]
    patched = [
        container["image"]
        for step in plan.steps
        for change in step.changes
        for container in change.patch.get("spec", {}).get("template", {}).get("spec", {}).get("containers", ())
    ]
    assert texts == patched
    return texts


def test_mirrors_come_before_the_registry_of_all() -> None:
    rules = ImageRules(mirrors={"registry.k8s.io/coredns": "mirror.example/dns"}, registry="own.example:5000")
    plan = imagemap.rewritten(make_plan(), rules)
    assert images(plan) == [
        "own.example:5000/flannel/flannel:v0.26.0", "own.example:5000/kube-proxy:v1.36.0",
        "mirror.example/dns/coredns:v1.14.2",
    ]  # fmt: skip
    assert parse_plan(plan_json(plan), "x") == plan and plan.id != make_plan().id
    assert imagemap.rewritten(make_plan(), ImageRules()) == make_plan()


def test_images_are_pinned_and_a_missing_digest_is_refused() -> None:
    names = ["flannel/flannel:v0.26.0", "registry.k8s.io/kube-proxy:v1.36.0"]
    rules = ImageRules(digests=dict.fromkeys(names, DIGEST), require_digests=True)
    with pytest.raises(
        ConfigError, match=r"step 3-coredns: image registry.k8s.io/coredns/coredns:v1.14.2 has no digest"
    ):
        imagemap.rewritten(make_plan(), rules)
    digests = {**rules.digests, "m.example/coredns/coredns:v1.14.2": DIGEST}
    whole = ImageRules(digests=digests, mirrors={"registry.k8s.io": "m.example"}, require_digests=True)
    assert images(imagemap.rewritten(make_plan(), whole)) == [
        f"flannel/flannel:v0.26.0@{DIGEST}", f"m.example/kube-proxy:v1.36.0@{DIGEST}",
        f"m.example/coredns/coredns:v1.14.2@{DIGEST}",
    ]  # fmt: skip
