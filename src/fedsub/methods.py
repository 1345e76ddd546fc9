"""Named methods: short functions that return a composition of slots.

Arguments are spelt alike everywhere: ``lr``, ``local_steps`` or ``local_epochs``, ``batch_size``,
``clients_per_round``, ``server_lr``. `CATALOGUE` lists them for the command line.
"""

# The order of these lines is that of the catalogue.
# isort: off
from fedsub.method.named.catalogue import CATALOGUE, Entry, make
from fedsub.method.named.averaging import fedavg, fedsubavg, fedprox, fedsgd, local_sgd, centralsgd, sampled_heat
from fedsub.method.named.drift import scaffold, scaffold_server, fednova, feddyn, fedadmm, fedsplit, fsvrg
from fedsub.method.named.adaptive import (
    fedavgm,
    fedadam,
    fedyogi,
    fedadagrad,
    frequency_aware,
    fedsubadam,
    fedsubadagrad,
)
from fedsub.method.named.signs import signsgd, ef_signsgd
from fedsub.method.named.selection import power_of_choice, ucb_cs
from fedsub.method.named.personal import fedper
from fedsub.gossip.named import gossip, segmented_gossip, dpsgd, ring_all_reduce
from fedsub.families.asynchronous.named import fedbuff
from fedsub.families.factorisation.named import fedmavg, sfmf
from fedsub.families.mixture.named import (
    lgd,
    l2gd,
    l2gd_plus,
    l2sgd,
    l2sgd2,
    l2sgd_plus,
    apgd1,
    apgd2,
    iapgd,
    al2sgd_plus,
)
# isort: on

__all__ = [
    "CATALOGUE", "Entry", "al2sgd_plus", "apgd1", "apgd2", "centralsgd", "dpsgd", "ef_signsgd", "fedadagrad",
    "fedadam", "fedadmm", "fedavg", "fedavgm", "fedbuff", "feddyn", "fedmavg", "fednova", "fedper", "fedprox", "fedsgd",
    "fedsplit", "fedsubadagrad", "fedsubadam", "fedsubavg", "fedyogi", "frequency_aware", "fsvrg", "gossip", "iapgd",
    "l2gd", "l2gd_plus", "l2sgd", "l2sgd2", "l2sgd_plus", "lgd", "local_sgd", "make", "power_of_choice",
    "ring_all_reduce", "sampled_heat", "scaffold", "scaffold_server", "segmented_gossip", "sfmf", "signsgd", "ucb_cs",
]  # fmt: skip
