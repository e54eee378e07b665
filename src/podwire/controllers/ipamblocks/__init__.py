"""The controller that takes blocks of pod addresses back from nodes that are gone."""
