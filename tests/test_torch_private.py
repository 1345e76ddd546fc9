"""What fedsub takes from torch's private parts does what public operations do, and a torch without it costs no run."""

from __future__ import annotations

import re
import shutil
import warnings
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.fx import GraphModule
from torch.overrides import TorchFunctionMode
from worlds import bag, equal, item_data

import fedsub as fs
from fedsub import torch_private
from fedsub.round.engines.batched import Batched
from fedsub.round.engines.compiled import CompiledSteps

aten = torch.ops.aten
SOURCES = Path(torch_private.__file__).parent


def some(*shapes, seed: int = 0) -> list[Tensor]:
    draw = torch.Generator().manual_seed(seed)
    return [torch.randn(shape, generator=draw) for shape in shapes]


def test_no_other_file_reads_a_private_name_of_torch() -> None:
    private = re.compile(r"torch\._[a-z]|\._op\b|\._schema\b|\._parameters\b|fx\.(experimental|graph|node)\b")
    found = {
        f"{file.relative_to(SOURCES)}: {line.strip()}"
        for file in SOURCES.rglob("*.py")
        if file.name != "torch_private.py"
        for line in file.read_text().splitlines()
        if private.search(line)
    }
    assert not found


# ---------------------------------------------------------------------- against public operations


def test_foreach() -> None:
    x, y = some((3, 4), (5,)), some((3, 4), (5,), seed=1)
    expected = [(a + (-0.3) * b) * 0.7 for a, b in zip(x, y, strict=True)]
    torch_private.foreach_add_(x, y, alpha=-0.3)
    torch_private.foreach_mul_(x, 0.7)
    for got, want in zip(x, expected, strict=True):
        torch.testing.assert_close(got, want, rtol=1e-6, atol=1e-7)
    torch_private.foreach_copy_(x, y)
    assert all(torch.equal(a, b) for a, b in zip(x, y, strict=True))
    torch_private.foreach_zero_(x)
    assert not any(a.any() for a in x)


@pytest.mark.skipif(not torch_private.has_fused_lstm(), reason="this torch has no oneDNN")
def test_fused_lstm_layer_is_the_modules() -> None:
    module = nn.LSTM(3, 4)
    x, h, c, dy, dlast = some((6, 2, 3), (2, 4), (2, 4), (6, 2, 4), (2, 4))
    own = [t.requires_grad_() for t in (x, h, c)]
    y, (_, last) = module(x, (h[None], c[None]))
    wi, wh, bi, bh = (p.detach() for p in module.parameters())
    expected = torch.autograd.grad((y * dy).sum() + (last[0] * dlast).sum(), [*own, *list(module.parameters())[:3]])
    with torch.no_grad():
        found, end, kept = torch_private.fused_lstm_layer(x, wi, wh, bi, bh, h, c)
        grads = torch_private.fused_lstm_layer_backward(dy, dlast, x, wi, wh, bi, bh, h, c, found, end, kept)
    for a, b in zip((found, end, *grads), (y, last[0], *expected), strict=True):
        torch.testing.assert_close(a, b)


def test_fused_adam_is_the_optimisers_step() -> None:
    values = some((4, 4), (16,))
    tuned = [nn.Parameter(v.clone()) for v in values]
    optimiser = torch.optim.Adam(tuned, lr=0.1, betas=(0.8, 0.95), eps=1e-6)
    means, squares = ([torch.zeros_like(v) for v in values] for _ in range(2))
    for step in (1, 2, 3):
        grads = some((4, 4), (16,), seed=step)
        for p, g in zip(tuned, grads, strict=True):
            p.grad = g.clone()
        optimiser.step()
        torch_private.fused_adam_(
            values, grads, means, squares, [], [torch.tensor(float(step))] * 2,
            lr=0.1, beta1=0.8, beta2=0.95, eps=1e-6, weight_decay=0.0, amsgrad=False, maximize=False,
        )  # fmt: skip
        for got, want in zip(values, tuned, strict=True):
            torch.testing.assert_close(got, want.detach(), rtol=1e-5, atol=1e-6)


class Seen(TorchFunctionMode):
    def __init__(self) -> None:
        super().__init__()
        self.calls: list = []

    def __torch_function__(self, func, types, args=(), kwargs=None):
        self.calls.append(func)
        return func(*args, **(kwargs or {}))


def test_the_property_that_is_read_has_a_name() -> None:
    (x,) = some((2, 3))
    with Seen() as seen:
        _ = x.T, x.mT, x.data, x.grad, x.shape, x.dtype, x.device, x.requires_grad
        x.t()
    read = [torch_private.property_read(func) for func in seen.calls]
    assert read == ["T", "mT", "data", "grad", "shape", "dtype", "device", "requires_grad", None]


def test_a_mode_sees_what_a_function_without_dispatch_calls() -> None:
    layer, (x,) = nn.MultiheadAttention(6, 2), some((4, 1, 6))
    given = (x, x, x, 6, 2, layer.in_proj_weight, layer.in_proj_bias, None, None, False, 0.0)
    given = (*given, layer.out_proj.weight, layer.out_proj.bias)
    inside = torch_private.without_dispatch(F.multi_head_attention_forward)
    with Seen() as closed:
        want, _ = F.multi_head_attention_forward(*given, need_weights=False)
    with Seen() as opened:
        got, _ = inside(*given, need_weights=False)
    assert torch.equal(got, want)
    assert closed.calls == [F.multi_head_attention_forward]
    assert F.scaled_dot_product_attention in opened.calls


def step(table: Tensor, ids: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    table = table.detach().requires_grad_()
    loss = ((table[ids] @ weight).sigmoid() ** 2).sum()
    return loss.detach(), torch.autograd.grad(loss, [table])[0]


def recorded() -> GraphModule:
    like, weight = some((2, 3), (3,))
    return torch_private.record(step, [(1_000_003, like)], [torch.tensor([1, 1, 4]), weight])


def test_what_is_recorded_is_plain_operations_and_takes_no_memory() -> None:
    graph = recorded().graph
    calls = [n for n in graph.nodes if n.op == "call_function"]
    first = next(iter(graph.nodes))
    assert first.meta["val"].shape == (1_000_003, 3)
    assert {n.target for n in calls} >= {aten.sigmoid.default, aten.index.Tensor}
    assert all(torch_private.results(n.target) is not None for n in calls)


def test_recorded_and_called_directly_gives_the_same_numbers() -> None:
    (table, weight), ids = some((6, 3), (3,), seed=2), torch.tensor([1, 1, 4])
    graph = recorded()
    for node in graph.graph.nodes:
        node.args = torch_private.map_arguments(node.args, lambda value: 6 if value == 1_000_003 else value)
    torch_private.flat_arguments(graph)
    run = torch_private.called_directly(graph)
    for got, want in zip(run(table, ids, weight), step(table, ids, weight), strict=True):
        torch.testing.assert_close(got, want)
    assert "torch.ops" in graph.graph.python_code("self").src  # what is replaced
    names = run.func.__code__.co_names  # type: ignore[attr-defined]
    assert "ops" not in names
    assert "_sigmoid_default" in names


def test_arguments_are_changed_in_lists_and_slices() -> None:
    change = lambda value: value * 2 if isinstance(value, int) else value  # noqa: E731
    found = torch_private.map_arguments((1, [2, (3,)], {"a": 4}, slice(5, None)), change)
    assert found == (2, [4, (6,)], {"a": 8}, slice(10, None))


def test_where_results_lie() -> None:
    (x,) = some((4, 4))
    shown = {
        aten.mul.Tensor: ("fresh",),
        aten.transpose.int: ("view",),
        aten.slice.Tensor: ("view",),
        aten.add_.Tensor: ("written",),
        aten.sigmoid_backward.grad_input: ("written",),
        aten.topk.default: ("fresh", "fresh"),
    }
    assert {op: torch_private.results(op) for op in shown} == shown
    assert aten.transpose.int(x, 0, 1).data_ptr() == x.data_ptr() != aten.mul.Tensor(x, x).data_ptr()
    assert aten.add_.Tensor(x, x).data_ptr() == x.data_ptr()
    assert torch_private.results(len) is None


@pytest.mark.skipif(shutil.which("g++") is None, reason="torch.compile needs a C++ compiler")
@pytest.mark.parametrize("vectors", [True, False])
def test_compiled_once_for_any_number_of_rows(vectors: bool) -> None:
    def gather(table: Tensor, ids: Tensor) -> Tensor:
        return table[ids].sigmoid().sum(1)

    run, ids = torch_private.compiled(gather, vectors=vectors), torch.tensor([0, 3, 3])
    for rows, stance in ((5, "default"), (9, "fail_on_recompile"), (23, "fail_on_recompile")):
        (table,) = some((rows, 4), seed=rows)
        torch_private.vary_rows(table)
        with torch.compiler.set_stance(stance):
            torch.testing.assert_close(run(table, ids), gather(table, ids))


# ---------------------------------------------------------------------- a torch that was never tested


METHOD = fs.methods.fedsubavg(lr=0.3, local_steps=2, batch_size=3, clients_per_round=4)


@pytest.fixture
def new_torch(monkeypatch):
    monkeypatch.setattr(torch, "__version__", "2.99.1+cpu")
    return monkeypatch


def missing(*_, **__):
    raise AttributeError("module 'torch' has no attribute '_gone'")


def run(**options):
    clients = item_data()
    return fs.run(METHOD, bag(clients), clients, rounds=2, **options)


def broken(monkeypatch, where: str) -> None:
    if where == "import":
        monkeypatch.delattr("torch._subclasses.fake_tensor.FakeTensorMode")
    elif where == "replay":
        monkeypatch.setattr(Batched, "_eager_steps", missing)
    else:
        monkeypatch.setattr(torch_private, where, missing)


TRACING = ["import", "record", "map_arguments", "flat_arguments", "called_directly", "results"]


def test_this_torch_is_tested() -> None:
    assert torch_private.untested() == ""
    other = "forward or loss does what torch cannot record for many clients at once"
    assert torch_private.reason(ValueError("no\nmore. And so on.")) == f"{other} (ValueError: no more)"
    assert torch_private.reason(ValueError()) == f"{other} (ValueError)"


@pytest.mark.parametrize("where", [*TRACING, "replay"])
@pytest.mark.parametrize("engine", ["auto", "batched"])
def test_where_tracing_fails_on_a_new_torch_the_serial_engine_takes_over(new_torch, where: str, engine: str) -> None:
    serial = run(engine="serial")
    broken(new_torch, where)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        result = run(engine=engine)
    assert result.engine == "serial"
    (sentence,) = [e for e in result.events if e.startswith("engine serial, because")]
    assert "this torch 2.99 was never tested with fedsub's traced engine (tested: 2.13)" in sentence
    assert ("ImportError" if where == "import" else "AttributeError: module 'torch' has no") in sentence
    assert equal(result.params, serial.params)


@pytest.mark.parametrize("where", TRACING)
def test_where_tracing_fails_on_a_tested_torch_the_sentence_gives_the_reason_alone(monkeypatch, where: str) -> None:
    broken(monkeypatch, where)
    result = run()
    assert result.engine == "serial"
    (sentence,) = [e for e in result.events if e.startswith("engine serial, because")]
    assert "tested" not in sentence
    assert "Error: " in sentence


def test_on_a_new_torch_that_works_nothing_is_said(new_torch) -> None:
    result = run(engine="batched")
    assert result.engine == "batched"
    assert not any("tested" in e for e in result.events)


def test_a_compiler_that_fails_stops_only_a_run_on_a_tested_torch(monkeypatch) -> None:
    plain = run(engine="batched")
    monkeypatch.setattr(CompiledSteps, "run", missing)
    with pytest.raises(AttributeError, match="_gone"):
        run(engine="batched", compile=True)
    monkeypatch.setattr(torch, "__version__", "2.99.1")
    with pytest.warns(UserWarning, match=r"compile=True has no effect.*this torch 2\.99 was never tested") as caught:
        result = run(engine="batched", compile=True)
    assert len(caught) == 1
    assert equal(result.params, plain.params)


def test_what_operations_cost_is_counted() -> None:
    x, w, b = some((6, 4), (4, 5), (5,))
    with torch_private.Counted() as seen:
        y = torch.addmm(b, x, w)
        y.t().view(5, 6)
        torch_private.foreach_add_([x, w], [x, w])
        torch.sort(b)
    assert seen.flops == 2 * 6 * 4 * 5
    assert seen.calls == 3  # views compute nothing
    assert seen.bytes == 4 * (6 * 5) + 4 * (6 * 4 + 4 * 5) + (4 + 8) * 5
