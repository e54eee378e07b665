"""NetworkPolicy through nftables."""
