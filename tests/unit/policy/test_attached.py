"""The pods with devices on a node, and their objects with the addresses that the node gave them."""

from tests.fakes.collection import Collection

from podwire.model.meta import ObjectMeta
from podwire.model.pod import MIRROR_POD, Pod
from podwire.policy.attached import AttachedPod, AttachedPods
from podwire.policy.trim import trim_pod


def web(uid: str = "u1") -> Pod:
    return Pod(metadata=ObjectMeta(name="web", namespace="shop", uid=uid))


def test_attached_pod_has_the_addresses_of_this_node() -> None:
    pods = Collection[Pod]()
    pods.put("shop/web", web())
    attached = AttachedPods(pods, "n1")
    assert attached.add(AttachedPod(pod="shop/web", device="veth1", addresses=("10.0.0.7",), uid="u1")) == "shop/web"
    assert attached.devices() == {"shop/web": "veth1"}
    result = attached.objects(["shop/web"])["shop/web"]
    assert result is not None and result.addresses == ("10.0.0.7",)


def test_device_of_a_pod_with_another_uid_does_not_count() -> None:
    pods = Collection[Pod]()
    pods.put("shop/web", web("new"))
    attached = AttachedPods(pods, "n1")
    attached.add(AttachedPod(pod="shop/web", device="veth1", addresses=("10.0.0.7",), uid="old"))
    assert attached.devices() == {}
    assert attached.objects(["shop/web"]) == {"shop/web": web("new")}


def test_container_that_is_no_pod_is_kept_by_its_device() -> None:
    attached = AttachedPods(Collection[Pod](), "n1")
    assert attached.add(AttachedPod(pod="", device="cni0", port="veth1", addresses=("10.0.0.7",))) == "/veth1"
    assert (attached.keys(), attached.devices()) == (("/veth1",), {"/veth1": "cni0"})
    removed = attached.remove("veth1")
    assert removed is not None and removed.pod == "/veth1"
    assert (attached.keys(), attached.remove("veth1")) == ((), None)


def test_static_pod_is_known_by_the_uid_of_its_file() -> None:
    meta = ObjectMeta(name="web", namespace="shop", uid="api", annotations={MIRROR_POD: "file", "other": "x"})
    pods = Collection[Pod]()
    pods.put("shop/web", trim_pod(Pod(metadata=meta)))
    attached = AttachedPods(pods, "n1")
    attached.add(AttachedPod(pod="shop/web", device="veth1", addresses=("10.0.0.7",), uid="file"))
    assert [attached.is_known("shop/web", uid) for uid in ("file", "api", "", "old")] == [True, True, True, False]
    assert attached.devices() == {"shop/web": "veth1"}
    result = attached.objects(["shop/web"])["shop/web"]
    assert result is not None and result.addresses == ("10.0.0.7",)
    assert result.metadata.annotations == {MIRROR_POD: "file"}


def test_further_device_has_the_policies_of_its_pod() -> None:
    pods = Collection[Pod]()
    pods.put("shop/web", web())
    attached = AttachedPods(pods, "n1")
    attached.add(AttachedPod(pod="shop/web", device="veth1", addresses=("10.0.0.7",), uid="u1"))
    key = attached.add(AttachedPod(pod="shop/web", device="veth2", addresses=("10.0.0.8",), uid="u1"))
    assert key == "shop/web/veth2"
    assert attached.devices() == {"shop/web": "veth1", key: "veth2"}
    assert attached.keys() == ("shop/web", key)
    changed = attached.objects(["shop/web"])
    assert {name: pod and pod.addresses for name, pod in changed.items()} == {
        "shop/web": ("10.0.0.7",),
        key: ("10.0.0.8",),
    }
    attached.remove("veth2")
    assert (attached.objects([key]), attached.devices()) == ({key: None}, {"shop/web": "veth1"})


def test_device_of_a_replaced_pod_is_not_a_further_one() -> None:
    attached = AttachedPods(Collection[Pod](), "n1")
    attached.add(AttachedPod(pod="shop/web", device="veth1", addresses=("10.0.0.7",), uid="old"))
    assert attached.add(AttachedPod(pod="shop/web", device="veth2", addresses=("10.0.0.8",), uid="new")) == "shop/web"
