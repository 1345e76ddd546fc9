"""What is private, and what it costs: private heat, noise on what clients send, and one budget for all of it."""

from fedsub.privacy.heat import CentralHistogram, Hadamard, PermanentResponse, RandomizedResponse, SecureCount

__all__ = ["CentralHistogram", "Hadamard", "PermanentResponse", "RandomizedResponse", "SecureCount"]
