"""Learning without a server: every node keeps a model of its own, and averages it with those of others.

method       `Gossip`, a method of `fedsub.run`: local steps, and a mixing over a graph
graphs       who may exchange models: ring, torus, random regular, small world, complete, your own
peers        whom nodes ask in a round
segments     a model cut into pieces that are asked for by themselves
holdings     which rows two nodes both hold
mixing       one model of those that were heard
messages     bytes
exchange, trainer, own, network, spectrum     the rounds
words, named the named methods, and how their settings are spelt
"""

from fedsub.gossip.graphs import Complete, Given, Graph, Regular, Ring, SmallWorld, Torus
from fedsub.gossip.method import AllReduce, Gossip, Metropolis, Mixing, RandomPeers
from fedsub.gossip.words import graph_of

__all__ = [
    "AllReduce", "Complete", "Given", "Gossip", "Graph", "Metropolis", "Mixing", "RandomPeers", "Regular", "Ring",
    "SmallWorld", "Torus", "graph_of",
]  # fmt: skip
