"""The mixture's λ chosen on held-out data."""
