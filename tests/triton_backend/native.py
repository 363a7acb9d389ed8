"""Runs kernels as triton-ascend lowers them, compiled for the CPU: what the interpreter cannot see is a miscompile.

`install()` replaces Triton's launch: a kernel is lowered to linalg (see `ascend.py`), from there with bishengir-opt,
Debian's mlir-translate and clang to a shared library, and called once a program of the grid.
"""

import ctypes
import os
import re
import subprocess
from functools import cache
from itertools import product
from pathlib import Path
from typing import Any

import ascend
import launches
import torch
from torch import Tensor
from triton.runtime.jit import JITFunction

CACHE = Path(os.environ.get("SPECDEC_NATIVE_CACHE", Path(__file__).parents[2] / "build" / "triton_native"))
PASSES = (
    "--execution-engine-convert-hfusion-to-upstream --execution-engine-convert-hivm-to-upstream "
    "--convert-elementwise-to-linalg --decompose-tensor-concat --empty-tensor-to-alloc-tensor "
    "--one-shot-bufferize=bufferize-function-boundaries=true@function-boundary-type-conversion=identity-layout-map@"
    "allow-return-allocs-from-loops=true "
    "--convert-bufferization-to-memref --annotation-lowering --expand-strided-metadata --convert-linalg-to-loops "
    "--convert-scf-to-cf --lower-affine --arith-expand --convert-vector-to-llvm --convert-math-to-llvm "
    "--finalize-memref-to-llvm --convert-func-to-llvm --convert-cf-to-llvm --convert-index-to-llvm "
    "--convert-arith-to-llvm --reconcile-unrealized-casts"
).split()


class MemRef(ctypes.Structure):
    """MLIR's descriptor of a one-dimensional memref."""

    _fields_ = (
        ("allocated", ctypes.c_void_p),
        ("aligned", ctypes.c_void_p),
        ("offset", ctypes.c_int64),
        ("size", ctypes.c_int64),
        ("stride", ctypes.c_int64),
    )


def _memref(tensor: Tensor) -> MemRef:
    return MemRef(tensor.data_ptr(), tensor.data_ptr(), 0, max(tensor.numel(), 1), 1)


def _run(*command: str) -> None:
    result = subprocess.run(command, capture_output=True, text=True)
    if result.returncode != 0:
        raise ascend.CompileError(f"{Path(command[0]).name}: {result.stderr[:3000]}")


def _with_pointer_casts(linalg: str) -> str:
    """Integers made pointers: by `memref_helpers.c`, for bishengir-opt does not lower `hivm.hir.pointer_cast`."""
    linalg, count = re.subn(
        r"hivm\.hir\.pointer_cast\((%\S+)\) \[(%\S+)\] : memref<\?xi(\d+)>",
        r"func.call @memref_at_i\3(\1, \2) : (i64, index) -> memref<?xi\3>",
        linalg,
    )
    declarations = "".join(
        f"  func.func private @memref_at_i{bits}(i64, index) -> memref<?xi{bits}> "
        "attributes {llvm.emit_c_interface}\n"
        for bits in sorted(set(re.findall(r"@memref_at_i(\d+)", linalg)))
    )
    return re.sub(r"^module.*\{\n", lambda match: match[0] + declarations, linalg, count=1) if count else linalg


@cache
def compiled(specialization: launches.Specialization) -> Any:
    CACHE.mkdir(parents=True, exist_ok=True)
    linalg = ascend.lower(specialization)
    linalg = re.sub(r"attributes \{", "attributes {llvm.emit_c_interface, ", linalg, count=1)
    linalg = _with_pointer_casts(linalg)
    stem = CACHE / specialization.key
    library = stem.with_suffix(".so")
    source = stem.with_suffix(".mlir")
    if not library.exists() or source.read_text() != linalg:
        source.write_text(linalg)
        llvm_mlir, llvm_ir = stem.with_suffix(".llvm.mlir"), stem.with_suffix(".ll")
        passes = [name.replace("@", " ") for name in PASSES]
        _run(str(ascend.BIN / "bishengir-opt"), str(source), *passes, "-o", str(llvm_mlir))
        _run("mlir-translate-19", "--mlir-to-llvmir", str(llvm_mlir), "-o", str(llvm_ir))
        helper = str(Path(__file__).with_name("memref_helpers.c"))
        _run("clang-19", "-O1", "-shared", "-fPIC", "-w", str(llvm_ir), helper, "-lm", "-o", str(library))
    function = getattr(ctypes.CDLL(str(library)), f"_mlir_ciface_{specialization.name}")
    function.restype = None
    return function


def run(self: JITFunction, *args: Any, grid: Any, warmup: bool, **constants: Any) -> None:
    specialization = launches.specialize(self, args, constants)
    function = compiled(specialization)
    # Ahead of the kernel's own parameters: the lock of cross-core synchronisation, and the workspace.
    scratch = torch.zeros(1 << 20, dtype=torch.uint8)
    keep: list[Any] = [_memref(scratch), _memref(scratch)]
    call: list[Any] = [ctypes.byref(memref) for memref in keep]
    for value in args:
        if isinstance(value, Tensor):
            keep.append(_memref(value))
            call.append(ctypes.byref(keep[-1]))
        elif isinstance(value, float):
            call.append(ctypes.c_float(value))
        elif value is not None:
            call.append(ctypes.c_int32(value) if -(2**31) <= value < 2**31 else ctypes.c_int64(value))
    sizes = [*grid, 1, 1, 1][:3]
    for program in product(*map(range, sizes)):
        function(*call, *map(ctypes.c_int32, sizes), *map(ctypes.c_int32, program))
    launches.shown.add((specialization, "native code"))


def install() -> None:
    JITFunction.run = run
