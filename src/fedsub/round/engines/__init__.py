"""Engines: how the local work of a cohort is computed."""
