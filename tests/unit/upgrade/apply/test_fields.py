"""Fields of server-side apply: what a manager owns, patches and their reverse."""

from copy import deepcopy
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from podwire.embedded.apiserver.patch import server_side
from podwire.embedded.apiserver.patch.server_side import Author
from podwire.embedded.apiserver.schema import data
from podwire.upgrade.apply import fields

SCHEMA = data.for_kind("apps", "v1", "Deployment")
BASE = {
    "apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "d", "namespace": "n"},
    "spec": {"replicas": 2, "template": {"spec": {"containers": [
        {"name": "a", "image": "a:1", "args": ["x", "y"]}, {"name": "b", "image": "b:1"},
    ]}}},
}  # fmt: skip


def applied(live: dict[str, Any], patch: dict[str, Any]) -> dict[str, Any]:
    """The object after a server-side apply as an upgrade does it."""
    assert SCHEMA is not None
    body = fields.merged(fields.owned(live, "podwire-upgrade"), patch)
    body = {**body, "apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "d", "namespace": "n"}}
    return server_side.apply(live, body, SCHEMA, Author("podwire-upgrade", "2026-01-01T00:00:00Z", force=True))


def image(name: str, value: str) -> dict[str, Any]:
    return {"spec": {"template": {"spec": {"containers": [{"name": name, "image": value}]}}}}


def test_later_applies_keep_the_fields_of_earlier_ones() -> None:
    first = applied(deepcopy(BASE), image("a", "a:2"))
    second = applied(first, {"spec": {"strategy": {"type": "Recreate"}}})
    containers = second["spec"]["template"]["spec"]["containers"]
    assert [item["image"] for item in containers] == ["a:2", "b:1"] and containers[0]["args"] == ["x", "y"]
    owned = fields.owned(second, "podwire-upgrade")["spec"]
    assert owned == {
        "strategy": {"type": "Recreate"},
        "template": {"spec": {"containers": [{"name": "a", "image": "a:2"}]}},
    }


def test_none_gives_a_field_up_and_the_api_removes_it() -> None:
    first = applied(deepcopy(BASE), {"spec": {"strategy": {"type": "RollingUpdate"}, "minReadySeconds": 5}})
    second = applied(first, {"spec": {"minReadySeconds": None}})
    assert "minReadySeconds" not in second["spec"] and second["spec"]["strategy"] == {"type": "RollingUpdate"}


def test_an_unknown_manager_owns_nothing() -> None:
    assert fields.owned(BASE, "podwire-upgrade") == {}
    assert fields.is_person("kubectl-client-side-apply") and not fields.is_person("argocd-controller")


IMAGES = st.sampled_from(["a:1", "a:2", "b:2", "c:1"])
PATCHES = st.one_of(
    st.builds(image, st.sampled_from(["a", "b"]), IMAGES),
    st.builds(lambda n: {"spec": {"minReadySeconds": n}}, st.integers(0, 3)),
    st.builds(lambda n: {"spec": {"strategy": {"rollingUpdate": {"maxSurge": n}}}}, st.integers(0, 3)),
    st.just({"spec": {"template": {"spec": {"volumes": [{"name": "v", "configMap": {"name": "c"}}]}}}}),
)  # fmt: skip


@given(PATCHES, PATCHES)
def test_the_reverse_takes_any_patch_back(one: dict[str, Any], other: dict[str, Any]) -> None:
    patch = fields.merged(one, other)
    back = fields.reverse(BASE, patch)
    changed = applied(deepcopy(BASE), patch)
    assert fields.holds(changed, patch)
    returned = applied(changed, back)
    assert fields.holds(returned, back)
    assert _content(returned) == _content(BASE)


def _content(obj: dict[str, Any]) -> Any:
    """The specification without the empty fields that an apply leaves."""

    def clean(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: inner for key, item in value.items() if (inner := clean(item)) not in ({}, [])}
        return [clean(item) for item in value] if isinstance(value, list) else value

    return clean(obj["spec"])
