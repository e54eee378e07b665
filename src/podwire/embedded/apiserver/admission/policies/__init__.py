"""Admission policies: rules in the Common Expression Language that objects of the API define."""
