"""fedsub over Flower: the method, objective and data of a simulation on nodes of their own (extra ``fedsub[flower]``).

Task            what both sides need: objective, method, a node's data, what a server knows
server_app      Flower's ServerApp: plays the rounds, into a run directory
client_app      Flower's ClientApp: a node's half
resident        a node that keeps module and data in memory and runs only what is installed on it (`fedsub node run`)
"""

from fedsub.flower.client import client_app
from fedsub.flower.server import serve, server_app
from fedsub.flower.task import Settings, Task

__all__ = ["Settings", "Task", "client_app", "serve", "server_app"]
