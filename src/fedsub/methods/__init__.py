"""Named methods: short functions that return a composition of slots.

Arguments are spelt alike everywhere: ``lr``, ``local_steps`` or ``local_epochs``, ``batch_size``,
``clients_per_round``, ``server_lr``. `CATALOGUE` lists them for the command line.
"""

# The order of these lines is that of the catalogue.
# isort: off
from fedsub.methods.catalogue import CATALOGUE, Entry, make
from fedsub.methods.averaging import fedavg, fedsubavg, fedprox, fedsgd, local_sgd, centralsgd, sampled_heat
from fedsub.methods.drift import scaffold, scaffold_server, fednova
from fedsub.methods.adaptive import fedavgm, fedadam, fedyogi, fedadagrad, frequency_aware, fedsubadam, fedsubadagrad
from fedsub.methods.signs import signsgd, ef_signsgd
from fedsub.methods.selection import power_of_choice, ucb_cs
from fedsub.methods.personal import fedper
from fedsub.methods.factorised import fedmavg, sfmf
from fedsub.methods.mixture import lgd, l2gd, l2gd_plus, l2sgd, l2sgd2, l2sgd_plus, apgd1, apgd2, iapgd, al2sgd_plus
# isort: on

__all__ = [
    "CATALOGUE", "Entry", "al2sgd_plus", "apgd1", "apgd2", "centralsgd", "ef_signsgd", "fedadagrad", "fedadam",
    "fedavg", "fedavgm", "fedmavg", "fednova", "fedper", "fedprox", "fedsgd", "fedsubadagrad", "fedsubadam",
    "fedsubavg", "fedyogi", "frequency_aware", "iapgd", "l2gd", "l2gd_plus", "l2sgd", "l2sgd2", "l2sgd_plus",
    "lgd", "local_sgd", "make", "power_of_choice", "sampled_heat", "scaffold", "scaffold_server", "sfmf",
    "signsgd", "ucb_cs",
]  # fmt: skip
