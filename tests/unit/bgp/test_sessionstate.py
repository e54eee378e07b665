"""The state of sessions in answers of BIRD 2.0.12."""

from podwire.bgp.sessionstate import SessionState, parse_sessions, summary

ANSWER = """\
BIRD 2.0.12 ready.
Name       Proto      Table      State  Since         Info
device1    Device     ---        up     2026-11-24 04:08:00

kernel4    Kernel     master4    up     2026-11-24 04:08:00
  Channel ipv4
    State:          UP
    Routes:         1 imported, 2 exported, 1 preferred

peer_10_89_0_99 BGP        ---        start  2026-11-24 04:08:00  Connect       Socket: No route to host
  Description:    BGPPeer tor
  BGP state:          Connect
    Neighbor address: 10.89.0.99
    Neighbor AS:      65000
    Local AS:         64512
    Last error:       Socket: No route to host
  Channel ipv4
    State:          DOWN
    Output filter:  out_peer_10_89_0_99

node_fe80__12 BGP        ---        up     2026-11-24 04:08:01  Established
  Description:    Node node-2
  BGP state:          Established
    Neighbor address: fe80::12%eth0
    Neighbor AS:      64512
    Neighbor capabilities
      Multiprotocol
        AF announced: ipv6
  Channel ipv6
    State:          UP
    Routes:         2 imported, 1 filtered, 3 exported, 2 preferred

peer_10_89_0_98 BGP        ---        down   2026-11-24 04:08:00
  Neighbor address: 10.89.0.98
"""
NODE = SessionState(
    peer="Node node-2",
    address="fe80::12",
    as_number=64512,
    state="Established",
    since="2026-11-24 04:08:01",
    received=2,
    sent=3,
)
ROUTER = SessionState(
    peer="BGPPeer tor",
    address="10.89.0.99",
    as_number=65000,
    state="Connect",
    since="2026-11-24 04:08:00",
    last_error="Socket: No route to host",
)


def test_each_session_has_state_peer_routes_and_error() -> None:
    down = SessionState(address="10.89.0.98", state="Down", since="2026-11-24 04:08:00")
    assert parse_sessions(ANSWER) == (NODE, down, ROUTER)


def test_a_session_for_any_neighbour_gives_way() -> None:
    waiting = """\
router_eth1 BGP        ---        start  2026-11-24 04:08:00  Passive
  Description:    BGPPeer tor
  BGP state:          Passive
    Neighbor range:   fe80::/10
"""
    accepted = """
router_eth1_1 BGP        ---        up     2026-11-24 04:08:01  Established
  Description:    BGPPeer tor
  BGP state:          Established
    Neighbor address: fe80::12%eth1
    Neighbor AS:      64600
"""
    (session,) = parse_sessions(waiting)
    assert (session.peer, session.state, session.address) == ("BGPPeer tor", "Passive", "")
    (session,) = parse_sessions(waiting + accepted)
    assert (session.state, session.address) == ("Established", "fe80::12")


def test_answer_without_sessions_is_empty() -> None:
    assert parse_sessions("") == parse_sessions("BIRD 2.0.12 ready.\nAccess restricted\n") == ()


def test_summary_names_the_first_sessions_that_are_not_established() -> None:
    assert summary(()) == ""
    assert summary((NODE, NODE)) == "bgp: 2 of 2 sessions established"
    text = "BGPPeer tor 10.89.0.99 AS 65000 is not (Socket: No route to host)"
    assert summary((NODE, ROUTER)) == f"bgp: 1 of 2 sessions established; {text}"
    assert summary((ROUTER,) * 5) == f"bgp: 0 of 5 sessions established; {text}; {text}; {text}; and 2 more"
