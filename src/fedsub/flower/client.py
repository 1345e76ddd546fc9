"""`client_app`: a node's half as a ClientApp, for stock SuperNodes, resident nodes and Flower's simulation alike."""

from __future__ import annotations

import logging
import threading

from flwr.app import Context, Message
from flwr.clientapp import ClientApp

from fedsub.errors import FedsubError
from fedsub.flower import parcel
from fedsub.flower.host import Host, UnknownRun
from fedsub.flower.task import Task

log = logging.getLogger("fedsub")


def client_app(task: Task, *, piece: int = parcel.PIECE, most: int = parcel.MOST) -> ClientApp:
    """The ClientApp of a task. ``most`` bytes are taken of a letter; an answer is cut into pieces of ``piece``.

    The node's configuration has ``client``, its number, and ``state``, the directory in which it keeps its memory.
    What it cannot answer it says in words, and the server counts it as refused.
    """
    app, hosts = ClientApp(), Hosts(task, piece, most)

    @app.query("fedsub")
    def answer(message: Message, context: Context) -> Message:
        return hosts.answer(message, context)

    return app


class Hosts:
    """The hosts of the nodes that live in this process, one at work at a time.

    Flower's simulation copies an app into its workers: a copy begins without hosts, which the nodes' disks make up for.
    """

    def __init__(self, task: Task, piece: int, most: int):
        self.task, self.piece, self.most = task, piece, most
        self._hosts: dict[tuple[object, ...], Host] = {}
        self._turn = threading.Lock()

    def __reduce__(self) -> tuple[type[Hosts], tuple[Task, int, int]]:
        return Hosts, (self.task, self.piece, self.most)

    def answer(self, message: Message, context: Context) -> Message:
        with self._turn:
            try:
                key = tuple(sorted(context.node_config.items())), tuple(sorted(context.run_config.items()))
                if key not in self._hosts:
                    self._hosts[key] = Host(self.task, context.run_config, context.node_config)
                about, data = parcel.unpack(message.content, self.most)
                kind = parcel.LETTERS if about == parcel.LETTERS else parcel.LETTER
                found = parcel.pack(kind, self._hosts[key].answer(about, data), self.piece)
            except FedsubError as err:
                log.warning("refused a message of the server: %s", err)
                found = parcel.refusal(parcel.UNKNOWN if isinstance(err, UnknownRun) else parcel.REFUSED, str(err))
        return Message(found, reply_to=message)
