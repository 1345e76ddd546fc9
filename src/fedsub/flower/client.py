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
    app, hosts, turn = ClientApp(), dict[tuple[object, ...], Host](), threading.Lock()

    @app.query("fedsub")
    def answer(message: Message, context: Context) -> Message:
        with turn:
            try:
                key = tuple(sorted(context.node_config.items())), tuple(sorted(context.run_config.items()))
                if key not in hosts:
                    hosts[key] = Host(task, context.run_config, context.node_config)
                about, data = parcel.unpack(message.content, most)
                found = parcel.pack(parcel.LETTER, hosts[key].answer(about, data), piece)
            except FedsubError as err:
                log.warning("refused a message of the server: %s", err)
                found = parcel.refusal(parcel.UNKNOWN if isinstance(err, UnknownRun) else parcel.REFUSED, str(err))
        return Message(found, reply_to=message)

    return app
