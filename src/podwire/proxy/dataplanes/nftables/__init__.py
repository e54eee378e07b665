"""Services in nftables: constant chains, and one map element for each frontend and endpoint."""
