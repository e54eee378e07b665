"""The backend ``ovs``: flows of Open vSwitch choose the tunnel to a peer."""
