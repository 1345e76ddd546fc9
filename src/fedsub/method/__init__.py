"""The slots of a method, what fills them, and named compositions."""
