"""What is private, and what it costs: private heat, noise on what clients send, and one budget for all of it."""
