"""The tables and figures of the FedSubAvg paper, run again: published numbers beside ours, with seeds.

published.py   what the paper prints            table1.py      clients, samples, heat
studies.py     four tasks, their data and files table2.py      rounds to the target, by method or by cohort
runs.py        training, kept by configuration  baselines.py   what DIN has to beat
hits.py        when a target is reached         output.py      table.md, table.csv, curves.png, page.html
make.py        `reproduce`, which ties them together
"""

from fedsub.study.reproduce.make import Outcome, Request, reproduce

__all__ = ["Outcome", "Request", "reproduce"]
