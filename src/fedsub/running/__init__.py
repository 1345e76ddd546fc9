"""Runs: directories, checkpoints, results."""
