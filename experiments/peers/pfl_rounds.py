"""Apple's pfl-research on PyTorch; under `-m torch.distributed.run --nproc-per-node 2` with two processes."""

import os

import torch
from pfl.aggregate.simulate import SimulatedBackend
from pfl.algorithm.base import NNAlgorithmParams
from pfl.algorithm.federated_averaging import FederatedAveraging
from pfl.callback.base import TrainingProcessCallback
from pfl.data.dataset import Dataset
from pfl.data.federated_dataset import FederatedDataset
from pfl.data.sampling import get_user_sampler
from pfl.hyperparam import NNTrainHyperParams
from pfl.metrics import Metrics, Weighted
from pfl.model.pytorch import PyTorchModel
from torch.nn.functional import binary_cross_entropy_with_logits
from work import Clock, asked

torch.set_num_threads(1)
work, processes = asked(), int(os.environ.get("WORLD_SIZE", 1))
clock = Clock("pfl" if processes == 1 else f"pfl, {processes} processes")
module = work.model()


class Learned(type(module)):
    def loss(self, ids, labels):
        return binary_cross_entropy_with_logits(self(ids), labels)

    def metrics(self, ids, labels):
        with torch.no_grad():
            return {"loss": Weighted(self.loss(ids, labels).item() * len(labels), len(labels))}


module.__class__ = Learned


class Tick(TrainingProcessCallback):
    played = 0

    def after_central_iteration(self, aggregate_metrics, model, *, central_iteration):
        clock.tick()
        Tick.played += 1
        return False, Metrics()


def data_of(client):
    return Dataset([torch.from_numpy(values) for values in work.draw(client, Tick.played)], user_id=str(client))


data = FederatedDataset(data_of, get_user_sampler("minimize_reuse", list(range(work.clients))))
model = PyTorchModel(module, torch.optim.SGD, torch.optim.SGD(module.parameters(), lr=1.0))
clock.tick()
FederatedAveraging().run(
    algorithm_params=NNAlgorithmParams(
        central_num_iterations=work.rounds, evaluation_frequency=10**9, train_cohort_size=work.cohort, val_cohort_size=0
    ),
    backend=SimulatedBackend(training_data=data, val_data=data),
    model=model,
    model_train_params=NNTrainHyperParams(local_batch_size=work.batch, local_num_epochs=1, local_learning_rate=work.lr),
    callbacks=[Tick()],
)
if int(os.environ.get("RANK", 0)) == 0:
    clock.tell(work.loss_of(module))
