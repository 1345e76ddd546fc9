"""A round in two halves, the messages between them, and the engines."""
