"""The explainer of policies: the verdict of the objects, and what the rules of the nodes do."""
