"""Alibaba Cloud: interfaces with addresses for pods as Terway uses them, and route tables of a VPC."""
