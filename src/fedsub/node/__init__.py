"""A client alone, and a server that never sees data: the two halves of a round in different processes.

Node            a client's half: its own data, its own memory on disk; bytes in, bytes out
serve           a server's half: parameters and a `Population`; plays rounds over channels of bytes
hand_out        writes each client of a simulation to a directory of its own, to try it
"""

from fedsub.node.node import Node
from fedsub.node.remote import Remote
from fedsub.node.serve import Served, serve
from fedsub.node.share import hand_out
from fedsub.round.channels import Channel

__all__ = ["Channel", "Node", "Remote", "Served", "hand_out", "serve"]
