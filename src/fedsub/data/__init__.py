"""Data of many clients: reading, splitting, saving."""

from fedsub.data.clients import Clients, Column, Space

__all__ = ["Clients", "Column", "Space"]
