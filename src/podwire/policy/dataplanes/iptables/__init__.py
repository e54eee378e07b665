"""NetworkPolicy through iptables with ipset."""
