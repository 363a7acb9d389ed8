"""Every operator of the NPU binding, on a fake NPU: `test_fake_npu.py` runs this file in a process of its own."""

import copy
import json
from collections.abc import Iterator
from typing import Any

import fake_npu
import pytest
import torch
from calls import Call, calls
from torch import Tensor
from torch.utils import _pytree as pytree

import specdec_ops
from bench import npu_check, npu_model

fake_npu.install()
torch.ops.load_library(str(fake_npu.ROOT / "specdec_ops" / "_sim.so"))

ON_CPU = calls("cpu")
operators = pytest.mark.parametrize("name", list(ON_CPU))


def operator(name: str, namespace: Any = torch.ops.specdec) -> Any:
    return getattr(namespace, name)


def call_on(name: str, device: str) -> Call:
    """The call of `calls`, with tensors of its own."""
    return pytree.tree_map_only(Tensor, lambda x: x.clone().to(device), ON_CPU[name])


def on_cpu(tree: Any) -> Any:
    return pytree.tree_map_only(Tensor, lambda x: x.cpu(), tree)


def run(function: Any, call: Call) -> tuple[Any, Call]:
    """What the operator returns, and its arguments afterwards."""
    args, kwargs = call
    return function(*args, **kwargs), call


def assert_equal(actual: Any, expected: Any) -> None:
    """Bit for bit; NaN equals NaN."""
    torch.testing.assert_close(on_cpu(actual), on_cpu(expected), rtol=0, atol=0, equal_nan=True)


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    fake_npu.take_launches()
    yield
    torch.ops.fake_npu.configure("910B3", 20)
    for device in range(2):
        torch.accelerator.set_stream(torch.Stream(stream_id=0, device_index=device, device_type=20))


def test_every_operator_has_a_call_and_is_bound():
    assert set(ON_CPU) == set(specdec_ops.__all__) - {"check"}
    for name in ON_CPU:
        assert torch._C._dispatch_has_kernel_for_dispatch_key(f"specdec::{name}", "PrivateUse1"), name


@operators
@pytest.mark.parametrize(("profile", "cube_cores"), [("910B3", 20), ("910B1", 24)])
def test_launches_and_results_are_those_of_the_simulator(name, profile, cube_cores):
    """Same kernels on as many cores with the same traffic and products: the binding gave them the same arguments."""
    torch.ops.fake_npu.configure(profile, cube_cores)
    actual = run(operator(name), call_on(name, "npu"))
    launches = fake_npu.take_launches()
    torch.ops.specdec_sim.configure(profile, keep_reports=True)
    assert_equal(actual, run(operator(name, torch.ops.specdec_sim), call_on(name, "cpu")))
    reports = json.loads(torch.ops.specdec_sim.take_reports())
    assert launches
    for launch, report in zip(launches, reports, strict=True):
        assert launch.kernel == report["kernel"]
        assert launch.cores == len(report["cores"])
        for quantity in ("gm_read", "gm_written", "macs"):
            assert getattr(launch, quantity) == report[quantity]


def test_more_cores_are_used_where_there_are_more():
    seeds = torch.arange(240, device="npu")
    for profile, cube_cores, cores in [("910B3", 20, 40), ("910B1", 24, 48)]:
        torch.ops.fake_npu.configure(profile, cube_cores)
        torch.ops.specdec.philox_uniform(seeds, seeds, 8, 1)
        assert [launch.cores for launch in fake_npu.take_launches()] == [cores]


@operators
def test_the_host_reads_nothing(name):
    """Neither the operator nor its wrapper: all is still waiting in the queue when they return."""
    for function in (operator(name), operator(name, specdec_ops)):
        call = call_on(name, "npu")
        fake_npu.take_launches()
        with fake_npu.no_host_reads():
            run(function, call)
        assert torch.ops.fake_npu.waiting_tasks() > 0
    assert fake_npu.take_launches()


def test_the_guard_fires():
    x = torch.arange(4, device="npu")
    for read in (x.cpu, x.sum, x[0].item, x.tolist, lambda: bool(x[0] > 1), lambda: torch.empty(4).copy_(x)):
        with pytest.raises(RuntimeError, match="the host reads device data"), fake_npu.no_host_reads():
            read()
    x.tolist()


@operators
def test_launches_go_to_the_current_stream_of_the_tensors_device(name):
    call = {device: call_on(name, f"npu:{device}") for device in range(2)}
    streams = [torch.Stream(device="npu:0"), torch.Stream(device="npu:0"), torch.Stream(device="npu:1")]
    expected = []
    fake_npu.take_launches()
    for stream in streams:
        torch.accelerator.set_stream(stream)
        torch.accelerator.set_device_index(1 - stream.device_index)  # not the tensors'
        run(operator(name), copy.copy(call[stream.device_index]))
        waiting = torch.ops.fake_npu.waiting_tasks()
        expected.append((stream.device_index, stream.stream_id))
    assert waiting
    torch.accelerator.set_device_index(0)
    assert list(dict.fromkeys((launch.device, launch.stream) for launch in fake_npu.take_launches())) == expected


@operators
def test_schema_fake_kernel_and_functionalisation(name):
    """Among others: what is written has a mark, and nothing else is written."""
    args, kwargs = call_on(name, "npu")
    torch.library.opcheck(operator(name).default, args, kwargs)


@operators
def test_what_has_a_mutation_mark_is_written(name):
    (args, _), schema = run(operator(name), call_on(name, "npu"))[1], operator(name).default._schema
    for argument, before, after in zip(schema.arguments, ON_CPU[name][0], on_cpu(args), strict=False):
        if argument.alias_info is not None and argument.alias_info.is_write:
            pairs = zip(pytree.tree_leaves(before), pytree.tree_leaves(after), strict=True)
            assert not any(torch.equal(*pair) for pair in pairs), argument.name


@operators
def test_compiled(name):
    """Results and written arguments as uncompiled, in one graph."""
    expected = run(operator(name), call_on(name, "npu"))
    fake_npu.take_launches()
    torch.compiler.reset()  # all operators are compiled through one function of torch, whose recompiles are limited
    compiled = torch.compile(operator(name), backend="aot_eager", fullgraph=True)
    assert_equal(run(compiled, call_on(name, "npu")), expected)
    assert fake_npu.take_launches()


def test_the_benchmarks_of_npu_check(monkeypatch):
    """A time for what is here, a reason for what is not."""
    philox = npu_model.philox_uniform
    monkeypatch.setattr(npu_check, "OURS", {philox: {"batch": [2], "nodes": [9]}})
    for axes in ("ATTENTION", "CHAINS", "TREES"):
        monkeypatch.setattr(npu_check, axes, {axis: [2] for axis in getattr(npu_check, axes)})
    ours, *peers = npu_check.benchmarks()
    assert ours["operator"] == "philox_uniform" and ours["microseconds"] > 0
    assert len(peers) == 3
    for peer in peers:
        assert peer["error"].startswith("ModuleNotFoundError")
