"""Services in nftables: constant chains, one map element per frontend and endpoint."""
