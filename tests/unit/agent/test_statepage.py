"""The page that tells what the parts want."""

import pytest

from podwire.agent.statepage import StatePage
from podwire.state import network
from podwire.state.share import Share, parse

CNI = Share(part="cni", protocol=112, desired=(network.parse("route 10.244.1.2/32 dev web proto 112\n"),))
POD = Share(part="cni", protocol=112, pod="shop/web", netns="/n", desired=(network.parse("link lo up\n"),))
PROXY = Share(part="proxy", note="Services are not programmed yet")


def state_page() -> StatePage:
    result = StatePage()
    result.parts["cni"] = lambda: [CNI, POD]
    result.parts["proxy"] = lambda: [PROXY]
    return result


@pytest.mark.parametrize(
    ("query", "shares"),
    [({}, [CNI, POD, PROXY]), ({"part": ["proxy"]}, [PROXY]), ({"part": ["cni", "proxy"]}, [CNI, POD, PROXY])],
)
def test_parts_are_chosen(query: dict[str, list[str]], shares: list[Share]) -> None:
    assert parse(state_page().page(query)) == shares


def test_an_unknown_part_is_refused_before_anything_is_sent() -> None:
    with pytest.raises(ValueError, match="no part routing; it runs cni, proxy"):
        state_page().page({"part": ["routing"]})
