"""The limit: plain torch SGD with one model over as many samples, I steps of batch K · B a round."""

import numpy as np
import torch
from torch.nn.functional import binary_cross_entropy_with_logits as loss
from work import Clock, asked

torch.set_num_threads(1)
work, clock = asked(), Clock("CentralSGD")
model, draw, size = work.model(), np.random.default_rng(0), work.cohort * work.batch
step = torch.optim.SGD(model.parameters(), lr=work.lr)
clock.tick()
for _ in range(work.rounds):
    at = draw.choice(len(work.labels), size * work.steps)
    ids, labels = torch.from_numpy(work.ids[at].astype(np.int64)), torch.from_numpy(work.labels[at])
    for some, wanted in zip(ids.split(size), labels.split(size), strict=True):
        step.zero_grad()
        loss(model(some), wanted).backward()
        step.step()
    clock.tick()
clock.tell(work.loss_of(model))
