"""Crews: who trains the groups of a cohort. Threads, processes of this machine, actors of a Ray cluster."""
