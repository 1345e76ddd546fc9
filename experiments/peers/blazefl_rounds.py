"""BlazeFL's FedAvg, its serial trainer (Python 3.12). The trainer's loss is set, all else is the library's."""

import torch
from blazefl.contrib.fedavg import FedAvgBaseClientTrainer, FedAvgBaseServerHandler
from work import Clock, asked

torch.set_num_threads(1)
work, clock = asked(), Clock("BlazeFL")


class Models:
    def select_model(self, model_name):
        return work.model()


class Data:
    number = 0

    def get_dataloader(self, type_, cid, batch_size, generator=None):
        ids, labels = map(torch.from_numpy, work.draw(cid, self.number))
        return list(zip(ids.split(batch_size), labels.split(batch_size), strict=True))


data = Data()
server = FedAvgBaseServerHandler(
    Models(), work.name, data, work.rounds, work.clients, (work.cohort + 0.5) / work.clients, "cpu", work.batch, 0
)
trainer = FedAvgBaseClientTrainer(Models(), work.name, data, "cpu", work.clients, 1, work.batch, work.lr, 0)
trainer.criterion = torch.nn.functional.binary_cross_entropy_with_logits
clock.tick()
while not server.if_stop():
    chosen, sent = server.sample_clients(), server.downlink_package()
    assert len(chosen) == work.cohort
    trainer.local_process(sent, chosen)
    for package in trainer.uplink_package():
        server.load(package)
    data.number += 1
    clock.tick()
clock.tell(work.loss_of(server.model))
