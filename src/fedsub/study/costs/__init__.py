"""What training costs: values and bytes that cross the wire, and estimated seconds on devices.

costs.ring_all_reduce(8, 1_000_000).total                  # 2 (K − 1) N
costs.submodel_round(problem).ratio                        # mean |S(i)| / M
costs.pipeline([1024] * 9, 32, 4, 8).idle                  # (p − 1)/(m + p − 1)
costs.at_socket(3200, 3300).total                          # and what Flower adds to messages of so many bytes
costs.estimated_seconds("runs/a", costs.phones())[200]     # seconds until the end of round 200
"""

from fedsub.round.clock.devices import PRESETS, Devices, LogNormal, datacentre, named, phones
from fedsub.round.clock.seconds import client_seconds, round_seconds
from fedsub.study.costs.collectives import (
    Collective,
    GossipRound,
    Ring,
    gossip_round,
    parameter_server,
    ring_all_reduce,
    simulate_ring,
)
from fedsub.study.costs.estimate import estimated_seconds
from fedsub.study.costs.flower import Bytes, Socket, at_socket
from fedsub.study.costs.model_parallel import Split, bubble, data_parallel, pipeline, pipeline_seconds, tensor_split
from fedsub.study.costs.submodels import SubmodelRound, l2gd_averagings, sign_ratio, submodel_round

__all__ = [
    "PRESETS", "Bytes", "Collective", "Devices", "GossipRound", "LogNormal", "Ring", "Socket", "Split",
    "SubmodelRound", "at_socket", "bubble", "client_seconds", "data_parallel", "datacentre", "estimated_seconds",
    "gossip_round", "l2gd_averagings", "named", "parameter_server", "phones", "pipeline", "pipeline_seconds",
    "ring_all_reduce", "round_seconds", "sign_ratio", "simulate_ring", "submodel_round", "tensor_split",
]  # fmt: skip
