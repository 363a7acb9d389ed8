"""Makes Triton's interpreter fit for the conformance suite. Import before any kernel is defined.

Faults of the interpreter (seen in 3.2 and 3.9) stand in the way: `range` over runtime values fails with numpy >= 2.4,
`tl.dot` of bfloat16 multiplies the raw bits as integers, casts between bfloat16 and integers take the raw bits for the
number, a scalar comparison keeps the dtype of what it compared and is no mask when broadcast, reductions that return
indices, or min and max under triton-ascend, walk element by element in Python, and every call of a function patches the
whole language anew.
"""

import os
from types import SimpleNamespace

os.environ["TRITON_INTERPRET"] = "1"

import launches
import numpy as np
import triton.language as tl
from triton.runtime import interpreter


def _patch_range() -> None:
    original = interpreter._patch_lang_tensor

    def patch(tensor, *args):
        result = original(tensor, *args)
        tensor.__index__ = lambda self: int(np.asarray(self.handle.data).reshape(-1)[0])
        return result

    interpreter._patch_lang_tensor = patch


def _patch_dot() -> None:
    original = interpreter.InterpreterBuilder.create_dot

    def widen(handle):
        if handle.dtype.scalar != tl.bfloat16:
            return handle
        return interpreter.TensorHandle((handle.data.astype(np.uint32) << 16).view(np.float32), tl.float32)

    def create_dot(self, a, b, d, *args):
        return original(self, widen(a), widen(b), d, *args)

    interpreter.InterpreterBuilder.create_dot = create_dot


def _patch_casts() -> None:
    original = interpreter.InterpreterBuilder.cast_impl

    def cast_impl(self, src, dst_type):
        types = {src.dtype.scalar, dst_type.scalar}
        if tl.bfloat16 in types and len(types) == 2 and tl.float32 not in types:
            src = original(self, src, tl.float32)
        return original(self, src, dst_type)

    interpreter.InterpreterBuilder.cast_impl = cast_impl


def _patch_comparisons() -> None:
    original = interpreter.InterpreterBuilder.binary_op

    def binary_op(self, lhs, rhs, op):
        result = original(self, lhs, rhs, op)
        return interpreter.TensorHandle(result.data, tl.int1) if result.data.dtype == bool else result

    interpreter.InterpreterBuilder.binary_op = binary_op


def _patch_reductions() -> None:
    original = interpreter.ReduceOps.apply_impl
    reductions = {"max": (np.max, np.argmax), "min": (np.min, np.argmin)}

    def apply_impl(self, input):
        name = getattr(getattr(self.combine_fn, "fn", self.combine_fn), "__name__", "")
        for kind, (value, index) in reductions.items():
            if name.startswith(f"_elementwise_{kind}"):
                return self.min_max(input[0], val_reduce_op=value)
            if name.startswith(f"_arg{kind}_combine"):
                return self.min_max(input[0], val_reduce_op=value, idx_reduce_op=index)
        return original(self, input)

    interpreter.ReduceOps.apply_impl = apply_impl


def _patch_language_once() -> None:
    interpreter._patch_lang(SimpleNamespace(__globals__={"tl": tl, "core": tl.core}))
    interpreter._patch_lang = lambda fn: interpreter._LangPatchScope()  # which restores nothing


def _tally_launches() -> None:
    original = interpreter.InterpretedFunction.run

    def run(self, *args, **kwargs):
        result = original(self, *args, **kwargs)
        constants = {name: value for name, value in kwargs.items() if name not in ("grid", "warmup")}
        launches.shown.add((launches.specialize(self, args, constants), "interpreter"))
        return result

    interpreter.InterpretedFunction.run = run


_patch_range()
_patch_dot()
_patch_casts()
_patch_comparisons()
_patch_reductions()
_patch_language_once()
_tally_launches()
