"""Why a selector matches nothing."""

from podwire.model.selector import LabelSelector, Requirement
from podwire.policy.check.mismatch import explain_mismatch, is_similar

THINGS = [({"app": "web", "tier": "front"}, 3), ({"app": "db"}, 1)]


def test_the_term_that_missed() -> None:
    assert (
        explain_mismatch(LabelSelector(match_labels={"app": "wep"}), THINGS, "pod")
        == "no pod has app=wep, 3 pods have app=web"
    )
    assert explain_mismatch(LabelSelector(match_labels={"app": "web"}), [], "pod") == "there is no pod"
    exists = LabelSelector(match_expressions=(Requirement(key="zone", operator="Exists"),))
    assert explain_mismatch(exists, THINGS, "pod") == "no pod has a label zone"


def test_the_most_selective_term_is_explained_first() -> None:
    both = LabelSelector(match_labels={"app": "db", "tier": "front"})
    reason = "of those with tier=front, no pod of shop has app=db; values of app there are web (3)"
    assert explain_mismatch(both, THINGS, "pod", " of shop") == reason


def test_similar_labels_may_be_typing_mistakes() -> None:
    assert is_similar(LabelSelector(match_labels={"app": "wep"}), THINGS)
    assert is_similar(LabelSelector(match_labels={"teir": "front"}), THINGS)
    assert not is_similar(LabelSelector(match_labels={"app": "kube-dns"}), THINGS)
    assert not is_similar(LabelSelector(match_labels={"zone": "a"}), THINGS)
