"""The backend ``vxlan``: a tunnel device to all peers."""
