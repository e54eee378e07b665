import msgspec
import pytest

from podwire.errors import ConfigError
from podwire.upgrade.plan.values import (
    Component,
    ContainerImage,
    ImageChange,
    ImageReference,
    PlannedChange,
    UpgradeFinding,
    UpgradePlan,
    UpgradeStep,
    Wave,
    identified,
    parse_image,
    parse_plan,
    plan_json,
)

DIGEST = "sha256:" + "0123456789abcdef" * 4

REFERENCES = {
    "nginx": ImageReference(repository="nginx"),
    "podwire/dns:1.0": ImageReference(repository="podwire/dns", tag="1.0"),
    "registry.k8s.io/coredns/coredns:v1.12.1": ImageReference(
        registry="registry.k8s.io", repository="coredns/coredns", tag="v1.12.1"
    ),
    "localhost:5000/a/b": ImageReference(registry="localhost:5000", repository="a/b"),
    "localhost/a:1": ImageReference(registry="localhost", repository="a", tag="1"),
    f"docker.io/flannel/flannel:v0.26.1@{DIGEST}": ImageReference(
        registry="docker.io", repository="flannel/flannel", tag="v0.26.1", digest=DIGEST
    ),
    f"[::1]:5000/pause@{DIGEST}": ImageReference(registry="[::1]:5000", repository="pause", digest=DIGEST),
}


@pytest.mark.parametrize("text", REFERENCES)
def test_image_reference_is_parsed_and_printed(text: str) -> None:
    assert parse_image(text, "test") == REFERENCES[text]
    assert str(REFERENCES[text]) == text


@pytest.mark.parametrize("text", ["", "UPPER", "a:", "a:b c", "a//b", "a@sha256:12", "registry.k8s.io/", "a:b:c"])
def test_wrong_image_reference_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="expected"):
        parse_image(text, "--image", "kube-proxy")


MIRRORS = {
    "registry.k8s.io": "mirror.example:5000/k8s",
    "registry.k8s.io/coredns": "dns.example",
    "docker.io": "mirror.example:5000/hub/",
    "quay.io/calico/node": "calico.example/node2",
}


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("registry.k8s.io/kube-proxy:v1.36.0", "mirror.example:5000/k8s/kube-proxy:v1.36.0"),
        ("registry.k8s.io/coredns/coredns:v1.12.1", "dns.example/coredns:v1.12.1"),
        ("flannel/flannel:v0.26.1", "mirror.example:5000/hub/flannel/flannel:v0.26.1"),
        ("quay.io/calico/node:v3.30", "calico.example/node2:v3.30"),
        (f"quay.io/calico/node@{DIGEST}", f"calico.example/node2@{DIGEST}"),
        ("quay.io/calico/nodes:v3.30", "quay.io/calico/nodes:v3.30"),
    ],
)
def test_mirrored_image_uses_the_longest_prefix(before: str, after: str) -> None:
    assert str(parse_image(before, "test").mirrored(MIRRORS)) == after


def test_new_tag_drops_the_digest_of_the_old_tag() -> None:
    image = parse_image(f"a.example/b:1@{DIGEST}", "test").with_tag("2")
    assert str(image) == "a.example/b:2"
    assert str(image.pinned({"a.example/b:2": DIGEST})) == f"a.example/b:2@{DIGEST}"
    assert image.pinned({"a.example/b:1": DIGEST}) == image


def make_plan() -> UpgradePlan:
    old, new = (
        parse_image("registry.k8s.io/kube-proxy:v1.35.0", "t"),
        parse_image("registry.k8s.io/kube-proxy:v1.36.0", "t"),
    )
    step = UpgradeStep(
        id="1-kube-proxy",
        component="kube-proxy",
        action="images",
        scope="nodes",
        images=(ImageChange(container="kube-proxy", before=old, after=new),),
        changes=(
            PlannedChange(
                api_version="apps/v1",
                kind="DaemonSet",
                namespace="kube-system",
                name="kube-proxy",
                patch={"spec": {"template": {"spec": {"containers": [{"name": "kube-proxy", "image": str(new)}]}}}},
            ),
        ),
        gates=("api-servers", "services"),
        waves=(Wave(nodes=("a",), zone="z1"), Wave(nodes=("b", "c"))),
        seconds=90,
    )
    component = Component(
        name="kube-proxy",
        kind="DaemonSet",
        namespace="kube-system",
        workload="kube-proxy",
        images=(ContainerImage(container="kube-proxy", image=old),),
        version="1.35.0",
    )
    warning = UpgradeFinding(
        severity="warning", object="Node a", field="status", message="old kernel", remedy="update it"
    )
    return identified(
        UpgradePlan(
            from_version="1.35.0", to_version="1.36", components=(component,), findings=(warning,), steps=(step,)
        )
    )


def test_plan_survives_its_json_form() -> None:
    plan = make_plan()
    assert parse_plan(plan_json(plan), "plan.json") == plan
    assert identified(plan).id == plan.id
    assert not plan.blocked


def test_edited_plan_is_refused() -> None:
    text = plan_json(make_plan()).replace('"1.36"', '"1.37"')
    with pytest.raises(ConfigError, match=r"plan\.json: id: expected .* plan again"):
        parse_plan(text, "plan.json")


@pytest.mark.parametrize("text", ["", "{}", "[]", '{"fromVersion": 1, "toVersion": "1.36"}'])
def test_document_that_is_no_plan_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="expected a plan"):
        parse_plan(text, "plan.json")


def test_id_depends_on_the_content() -> None:
    plan = make_plan()
    assert identified(msgspec.structs.replace(plan, to_version="1.37")).id != plan.id


def test_finding_prints_object_field_and_remedy() -> None:
    assert str(make_plan().findings[0]) == "warning: Node a: status: old kernel; update it"
