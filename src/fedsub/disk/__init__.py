"""What is on disk, atomically."""
