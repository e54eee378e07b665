"""Clouds whose networks route to pods, one package for each."""
