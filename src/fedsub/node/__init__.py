"""A client alone, and a server that never sees data: the two halves of a round in different processes.

Node            a client's half: its own data, its own memory on disk; bytes in, bytes out
serve           a server's half: parameters and a `Population`; plays rounds over channels of bytes, or any `Post`
run             the same with a run directory: checkpoints, resume, metrics, and a model that can be loaded
hand_out        writes each client of a simulation to a directory of its own, to try it
outline         data without its samples: all that such a server may know of them
"""

from fedsub.node.node import Node
from fedsub.node.post import Channels, Post
from fedsub.node.remote import Remote
from fedsub.node.rounds import Patience
from fedsub.node.run import run
from fedsub.node.serve import Served, serve
from fedsub.node.share import hand_out, outline
from fedsub.round.channels import Channel

__all__ = [
    "Channel", "Channels", "Node", "Patience", "Post", "Remote", "Served", "hand_out", "outline", "run", "serve",
]  # fmt: skip
