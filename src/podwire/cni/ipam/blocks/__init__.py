"""Block IPAM: a node claims blocks of pools through the API, and gives their addresses to its pods."""
