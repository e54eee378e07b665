"""What admission adds to new pods: priority, account, token."""

from collections.abc import Callable
from typing import Any

from podwire.embedded.apiserver.admission.chain import PLUGINS
from podwire.embedded.apiserver.kinds import KINDS

PODS = "/api/v1/namespaces/default/pods"
ACCOUNTS = "/api/v1/namespaces/default/serviceaccounts"
Play = Callable[..., None]


def _pod(name: str, **spec: Any) -> dict[str, Any]:
    return {"metadata": {"name": name}, "spec": {"containers": [{"name": "c", "image": "i"}], **spec}}


def _token_volumes(pod: dict[str, Any]) -> list[str]:
    return [v["name"] for v in pod["spec"].get("volumes") or () if v["name"].startswith("kube-api-access-")]


def test_a_pod_gets_the_token_of_its_account(play: Play) -> None:
    async def scenario(api: Any) -> None:
        status, pod = await api("POST", PODS, _pod("a"))
        (name,) = _token_volumes(pod)
        assert (status, pod["spec"]["serviceAccountName"], len(name)) == (201, "default", 21)
        assert [m["name"] for m in pod["spec"]["containers"][0]["volumeMounts"]] == [name]
        kinds = [next(iter(source)) for source in pod["spec"]["volumes"][0]["projected"]["sources"]]
        assert kinds == ["serviceAccountToken", "configMap", "downwardAPI"]
        _, other = await api("POST", PODS, _pod("b"))
        assert _token_volumes(other) != [name]

    play(scenario)


def test_pod_or_account_may_refuse_the_token(play: Play) -> None:
    async def scenario(api: Any) -> None:
        account = {"metadata": {"name": "shy"}, "automountServiceAccountToken": False}
        await api("POST", ACCOUNTS, account)
        for name, spec, mounted in (
            ("a", {"automountServiceAccountToken": False}, False),
            ("b", {"serviceAccountName": "shy"}, False),
            ("c", {"serviceAccountName": "shy", "automountServiceAccountToken": True}, True),
        ):
            _, pod = await api("POST", PODS, _pod(name, **spec))
            assert bool(_token_volumes(pod)) is mounted, name

    play(scenario)


def test_pull_secrets_come_from_the_account(play: Play) -> None:
    async def scenario(api: Any) -> None:
        await api("POST", ACCOUNTS, {"metadata": {"name": "puller"}, "imagePullSecrets": [{"name": "key"}]})
        _, pod = await api("POST", PODS, _pod("a", serviceAccountName="puller"))
        assert pod["spec"]["imagePullSecrets"] == [{"name": "key"}]
        own = [{"name": "own"}]
        _, pod = await api("POST", PODS, _pod("b", serviceAccountName="puller", imagePullSecrets=own))
        assert pod["spec"]["imagePullSecrets"] == own

    play(scenario)


def test_an_account_that_does_not_exist_is_refused(play: Play) -> None:
    async def scenario(api: Any) -> None:
        status, failure = await api("POST", PODS, _pod("a", serviceAccountName="nobody"))
        assert (status, failure["message"]) == (
            403,
            'pods "a" is forbidden: error looking up service account default/nobody: serviceaccount "nobody" not found',
        )

    play(scenario)


def test_new_namespaces_accept_pods_at_once_and_after_a_restart(play: Play) -> None:
    async def first(api: Any) -> None:
        await api("POST", "/api/v1/namespaces", {"metadata": {"name": "fresh"}})
        status, _ = await api("POST", "/api/v1/namespaces/fresh/pods", _pod("a"))
        assert status == 201
        status, _ = await api("DELETE", "/api/v1/namespaces/fresh/serviceaccounts/default")
        assert status == 200
        status, _ = await api("POST", "/api/v1/namespaces/fresh/pods", _pod("b"))
        assert status == 403

    async def second(api: Any) -> None:
        status, _ = await api("POST", "/api/v1/namespaces/fresh/pods", _pod("b"))
        assert status == 201

    play(first)
    play(second)


def test_a_class_gives_its_priority(play: Play) -> None:
    async def scenario(api: Any) -> None:
        _, pod = await api("POST", PODS, _pod("a", priorityClassName="system-node-critical"))
        assert pod["spec"]["priority"] == 2000001000
        status, failure = await api("POST", PODS, _pod("b", priorityClassName="none"))
        assert (status, failure["message"]) == (
            403,
            'pods "b" is forbidden: no PriorityClass with name none was found',
        )

    play(scenario)


CLASSES = "/apis/scheduling.k8s.io/v1/priorityclasses"


def test_a_pod_that_departs_from_its_class_is_refused(play: Play) -> None:
    async def scenario(api: Any) -> None:
        await api("POST", CLASSES, {"metadata": {"name": "high"}, "value": 5, "preemptionPolicy": "Never"})
        for spec, problem in (
            ({"priority": 6}, "the integer value of priority (6) must not be provided in pod spec; priority admission "
             "controller computed 5 from the given PriorityClass name"),
            ({"preemptionPolicy": "PreemptLowerPriority"}, "the string value of PreemptionPolicy "
             "(PreemptLowerPriority) must not be provided in pod spec; priority admission controller computed Never "
             "from the given PriorityClass name"),
        ):  # fmt: skip
            status, failure = await api("POST", PODS, _pod("a", priorityClassName="high", **spec))
            assert (status, failure["message"]) == (403, f'pods "a" is forbidden: {problem}')
        same = {"priority": 5, "preemptionPolicy": "Never"}
        assert (await api("POST", PODS, _pod("a", priorityClassName="high", **same)))[0] == 201
        status, pod = await api("POST", PODS, _pod("b"))
        assert (status, pod["spec"]["priority"], pod["spec"]["preemptionPolicy"]) == (201, 0, "PreemptLowerPriority")

    play(scenario)


def test_a_default_class_is_named_and_stays_alone(play: Play) -> None:
    async def scenario(api: Any) -> None:
        default = {"metadata": {"name": "usual"}, "value": 7, "globalDefault": True}
        assert (await api("POST", CLASSES, default))[0] == 201
        _, pod = await api("POST", PODS, _pod("a"))
        assert (pod["spec"]["priorityClassName"], pod["spec"]["priority"]) == ("usual", 7)
        status, failure = await api("POST", CLASSES, {**default, "metadata": {"name": "second"}})
        assert (status, failure["message"]) == (
            403,
            'priorityclasses.scheduling.k8s.io "second" is forbidden: PriorityClass usual is already marked as '
            "default. Only one default can exist",
        )
        assert (await api("PUT", f"{CLASSES}/usual", {**default, "description": "of all pods"}))[0] == 200

    play(scenario)


def test_plugins_of_a_few_kinds_are_asked_about_no_others() -> None:
    """Every plugin that names its kinds names tables that exist, so that none is passed over by a wrong word."""
    tables = {kind.table for kind in KINDS.values()}
    named = {name: getattr(PLUGINS.load(name), "tables", None) for name in PLUGINS}
    assert {name for name, result in named.items() if result is None} == {
        "NodeRestriction", "MutatingAdmissionPolicy", "MutatingAdmissionWebhook", "ValidatingAdmissionPolicy",
        "ValidatingAdmissionWebhook", "ResourceQuota",
    }  # fmt: skip
    assert all(result <= tables for result in named.values() if result is not None)
