"""What a run will need before it is started: memory, bytes on the wire, time a round, cost; and what to choose.

fs.plan(method, objective, clients, rounds=1000, population=100_000_000, rows={"item": 10**9}, cluster=fs.Cluster(8))

`counted` plays two rounds on the clients at hand and counts what they do; `scaled` says what a round of the population
that is meant would carry; `constants` says how long a machine takes for what was counted (`calibrate` measures it);
`memory` what each process holds; `choice` which engine, tables and workers follow, and why.
"""

from fedsub.study.planning.calibrate import calibrate
from fedsub.study.planning.choice import Plan, plan
from fedsub.study.planning.cluster import Cluster
from fedsub.study.planning.constants import Constants

__all__ = ["Cluster", "Constants", "Plan", "calibrate", "plan"]
