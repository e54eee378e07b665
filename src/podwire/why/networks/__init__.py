"""The explainer of pod networks: in which network each end is, and whether a contract joins two."""
