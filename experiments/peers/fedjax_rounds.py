"""FedJAX's FedAvg with its usual (jit) backend; the models written in JAX."""

# ruff: noqa: E402
import jax

jax.tree_map = jax.tree_util.tree_map  # gone from JAX, and fedjax 0.0.17 asks for it

import fedjax
import jax.numpy as jnp
import numpy as np
from fedjax.algorithms import fed_avg
from work import Clock, asked

work, clock = asked(), Clock("FedJAX")


def linear(key, inputs, outputs):
    bound, (one, other) = 1 / np.sqrt(inputs), jax.random.split(key)
    return {
        "w": jax.random.uniform(one, (inputs, outputs), minval=-bound, maxval=bound),
        "b": jax.random.uniform(other, (outputs,), minval=-bound, maxval=bound),
    }


def perceptron(layers, x):
    for layer in layers[:-1]:
        x = jax.nn.sigmoid(x @ layer["w"] + layer["b"])
    return x @ layers[-1]["w"] + layers[-1]["b"]


def first(key):
    keys = jax.random.split(key, 12)
    if work.name == "w1":
        return {"table": jnp.zeros((work.rows, 1)), "bias": jnp.zeros(1)}
    if work.name == "w2":
        layers = [[linear(keys[2 * i], n, 400), linear(keys[2 * i + 1], 100, 400)] for i, n in enumerate((25, 100))]
        return {"table": jax.random.normal(keys[9], (work.rows, 25)), "lstm": layers, "out": linear(keys[8], 100, 1)}
    return {
        "table": jax.random.normal(keys[0], (work.rows, 18)),
        "attention": [linear(keys[1], 72, 80), linear(keys[2], 80, 40), linear(keys[3], 40, 1)],
        "head": [linear(keys[4], 54, 80), linear(keys[5], 80, 40), linear(keys[6], 40, 1)],
    }


def recurrent(layer, inputs):  # [time, batch, width]
    of_input, of_state = layer

    def step(carried, x):
        state, cell = carried
        gates = x @ of_input["w"] + of_input["b"] + state @ of_state["w"] + of_state["b"]
        i, f, g, o = jnp.split(gates, 4, -1)
        cell = jax.nn.sigmoid(f) * cell + jax.nn.sigmoid(i) * jnp.tanh(g)
        state = jax.nn.sigmoid(o) * jnp.tanh(cell)
        return (state, cell), state

    zero = jnp.zeros((inputs.shape[1], 100))
    return jax.lax.scan(step, (zero, zero), inputs)[1]


def forward(params, ids):
    rows = params["table"][ids]
    if work.name == "w1":
        return rows.sum((1, 2)) + params["bias"]
    if work.name == "w2":
        states = rows.swapaxes(0, 1)
        for layer in params["lstm"]:
            states = recurrent(layer, states)
        return (states[-1] @ params["out"]["w"] + params["out"]["b"])[:, 0]
    candidate, past = rows[:, 0], rows[:, 1:]
    query = jnp.broadcast_to(rows[:, :1], past.shape)
    scores = perceptron(params["attention"], jnp.concatenate([query, past, query - past, query * past], -1))[..., 0]
    weights = jax.nn.softmax(jnp.where(ids[:, 1:] == 0, -1e9, scores))
    interest = (weights[..., None] * past).sum(1)
    return perceptron(params["head"], jnp.concatenate([interest, candidate, interest * candidate], -1))[:, 0]


def loss(params, ids, labels):
    said = forward(params, ids)
    return jnp.mean(jnp.maximum(said, 0) - said * labels + jnp.log1p(jnp.exp(-jnp.abs(said))))


gradient = jax.grad(lambda params, batch, key: loss(params, batch["ids"], batch["labels"]))
algorithm = fed_avg.federated_averaging(
    gradient,
    fedjax.optimizers.sgd(work.lr),
    fedjax.optimizers.sgd(1.0),
    fedjax.ShuffleRepeatBatchHParams(batch_size=work.batch, num_epochs=None, num_steps=work.steps, seed=0),
)
state = algorithm.init(first(jax.random.PRNGKey(0)))
clock.tick()
for number in range(work.rounds):
    clients = []
    for client in work.who(number):
        ids, labels = work.draw(client, number)
        data = fedjax.ClientDataset({"ids": ids.astype(np.int32), "labels": labels})
        clients.append((str(client).encode(), data, jax.random.PRNGKey(int(client))))
    state, _ = algorithm.apply(state, clients)
    jax.block_until_ready(state.params)
    clock.tick()
ids, labels = work.to_look_at()
clock.tell(float(loss(state.params, ids, labels)))
