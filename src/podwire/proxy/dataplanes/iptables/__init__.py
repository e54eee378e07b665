"""Services in iptables: kube-proxy's chains; a change writes only the chains of the changed Services."""
