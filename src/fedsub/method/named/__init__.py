"""Named methods: short functions that return a composition of slots."""
