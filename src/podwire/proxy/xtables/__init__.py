"""What the data planes that write rules of iptables share: whose chains are whose, texts of changes, the kernel."""
