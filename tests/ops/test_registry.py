"""Every operator has all its pieces, and they agree on its arguments."""

import importlib
import importlib.util
import inspect
import re

import pytest
import torch
from backends import BACKENDS

import specdec_ops
import specdec_ops.reference

SCHEMAS = {
    schema.name.removeprefix("specdec::"): schema
    for schema in torch._C._jit_get_all_schemas()
    if schema.name.startswith("specdec::")
}


def _arguments(function):
    """Name, keyword-only and default of each parameter, as a schema would say it."""
    return [
        (p.name, p.kind is p.KEYWORD_ONLY, None if p.default is p.empty else p.default, p.default is not p.empty)
        for p in inspect.signature(function).parameters.values()
    ]


def _schema_arguments(schema):
    return [(a.name, a.kwarg_only, a.default_value, a.has_default_value()) for a in schema.arguments]


def test_every_schema_is_public():
    assert set(SCHEMAS) == set(specdec_ops.__all__) - {"check"} == set(specdec_ops.reference.__all__)


@pytest.mark.parametrize("name", sorted(SCHEMAS))
def test_kernels_are_registered(name):
    for key in ("CPU", "Meta"):
        assert torch._C._dispatch_has_kernel_for_dispatch_key(f"specdec::{name}", key), f"no {key} kernel"
    key = "CompositeImplicitAutograd"
    assert torch._C._dispatch_has_kernel_for_dispatch_key(f"specdec_check::{name}", key), "no host checks"


@pytest.mark.parametrize("name", sorted(SCHEMAS))
def test_the_simulator_has_the_ascend_c_kernel(name):
    operators, _ = BACKENDS["sim"]
    if isinstance(operators, str):
        pytest.skip(operators)
    assert torch._C._dispatch_has_kernel_for_dispatch_key(f"specdec_sim::{name}", "CPU")


@pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="triton is not installed")
def test_every_schema_has_a_triton_kernel():
    assert set(SCHEMAS) == set(importlib.import_module("specdec_ops.triton").__all__)


@pytest.mark.parametrize("name", sorted(SCHEMAS))
def test_wrapper_agrees_with_the_schema(name):
    wrapper = getattr(specdec_ops, name)
    assert _arguments(wrapper) == _schema_arguments(SCHEMAS[name])
    # Entries stand 8 columns in and name one parameter or several; what continues one stands deeper.
    arguments = re.search(r"^    Args:\n(.*?)\n\n", wrapper.__doc__, re.M | re.S).group(1)
    entries = re.findall(r"^ {8}(\w+(?:, \w+)*): ", arguments, re.M)
    assert sorted(", ".join(entries).split(", ")) == sorted(inspect.signature(wrapper).parameters)
    assert name in specdec_ops.__all__


@pytest.mark.parametrize("name", sorted(SCHEMAS))
def test_reference_agrees_with_the_schema(name):
    assert _arguments(getattr(specdec_ops.reference, name)) == _schema_arguments(SCHEMAS[name])
