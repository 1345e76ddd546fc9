"""Configurations and tasks: what is trained, from files and flags."""
