"""Logs, metrics, health endpoints."""
