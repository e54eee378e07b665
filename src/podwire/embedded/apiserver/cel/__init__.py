"""Expressions in the Common Expression Language: rules of custom resources, policies and webhooks."""
