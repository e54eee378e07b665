"""The fast forms give what ``ipaddress`` gives, for any text."""

from collections.abc import Callable
from ipaddress import ip_address, ip_network
from typing import Any

from hypothesis import example, given
from hypothesis import strategies as st

from podwire.model.ip import parse_address, parse_network
from podwire.state.address import ip_text, network_text, pack_ip

TEXTS = st.one_of(
    st.from_regex(r"[0-9]{1,3}(\.[0-9]{1,3}){3}(/[0-9]{1,2})?", fullmatch=True),
    st.ip_addresses().map(str),
    st.ip_addresses(v=4).map("{}/24".format),
    st.text("0123456789./:-_+ ", max_size=12),
)


def result(function: Callable[[str], Any], text: str) -> object:
    try:
        return function(text)
    except ValueError:
        return "refused"


@given(TEXTS)
@example("10.0.0.256")
@example("10.0.0.01")
@example("10.0.0.1\n")
@example("10.0.0.0/8\n")
@example("10.0.0.0/08")
@example("10.0.0.0/33")
@example("0.0.0.0/0")
def test_texts_are_read_as_by_ipaddress(text: str) -> None:
    assert result(parse_address, text) == result(ip_address, text)
    assert result(parse_network, text) == result(lambda item: ip_network(item, strict=False), text)
    assert result(ip_text, text) == result(lambda item: str(ip_address(item)), text)
    assert result(network_text, text) == result(lambda item: str(ip_network(item)), text)
    assert result(pack_ip, text) == result(lambda item: ip_address(item).packed, text)
