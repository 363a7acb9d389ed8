"""Lowers kernels as triton-ascend does, up to where CANN's closed `hivmc` would turn the IR into a binary.

Runs in the environment of `setup_envs.sh`. The open part of the compiler does everything that can go wrong in a
kernel: the adapter (Triton IR to linalg), HFusion and HIVM compilation, planning of the unified buffer and
synchronisation. A stub stands for `hivmc`, keeps the final IR and lets the compiler end well.
"""

import os
import re
import subprocess
import tempfile
from math import prod
from pathlib import Path
from typing import Any

import ascendnpuir
import triton.backends.ascend.compiler as ascend_compiler
from launches import Specialization
from triton._C.libtriton import ir
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from triton.compiler.compiler import make_backend

BIN = Path(ascendnpuir.__file__).parent / "bin"
STUB = Path(__file__).parent / "hivmc_stub"
TARGETS = ("Ascend910B2", "Ascend910B4", "Ascend910_9382")


class CompileError(Exception):
    pass


def _metadata(options: Any, target: GPUTarget) -> dict:
    return {"hash": "none", "target": target, **options.__dict__}


def lower(specialization: Specialization) -> str:
    """Triton to linalg: the same for all targets."""
    target = GPUTarget("npu", TARGETS[0], 0)
    backend = make_backend(target)
    source = ASTSource(
        fn=specialization.kernel, signature=dict(specialization.signature), constants=dict(specialization.constants)
    )
    options = backend.parse_options(source.parse_options())
    context = ir.context()
    ir.load_dialects(context)
    metadata = _metadata(options, target)
    module = source.make_ir(options, backend.get_codegen_implementation(), backend.get_module_map(), context)
    module = ascend_compiler.make_ttir(module, metadata, options)
    try:
        linalg = ascend_compiler.ttir_to_linalg(module, metadata, options, named_ops=True)
    except subprocess.CalledProcessError as error:
        raise CompileError(f"triton-adapter-opt: {error.stderr.decode(errors='replace')[:2000]}") from None
    return ascend_compiler._parse_linalg_metadata(linalg, metadata)[0]


def compile_linalg(linalg: str, target: str) -> str:
    """Linalg to the final IR, in which every buffer has its address and the pipes are synchronised.

    Where the buffers do not fit, the compiler tries again without code motion, then without double buffering, and says
    so in notes: an error here.
    """
    with tempfile.TemporaryDirectory() as folder:
        source, final = Path(folder, "kernel.ttadapter.mlir"), Path(folder, "final.mlir")
        stub = Path(folder, "hivmc")
        source.write_text(linalg)
        stub.symlink_to(STUB)
        command = [
            str(BIN / "bishengir-compile"),
            str(source),
            f"--target={target}",
            "--enable-auto-multi-buffer=True",
            "--enable-auto-bind-sub-block=True",
            "--enable-hfusion-compile=true",
            "--enable-hivm-compile=true",
            "--enable-triton-kernel-compile=true",
            "-o",
            str(Path(folder, "kernel")),
        ]
        environment = {**os.environ, "PATH": f"{folder}:{os.environ['PATH']}", "HIVMC_KEEP": str(final)}
        result = subprocess.run(command, capture_output=True, text=True, env=environment)
        message = result.stderr + result.stdout
        given_up = re.findall(r"NOTE\] Ub overflow detected; automatically set (\S+) to false", message)
        if given_up and result.returncode == 0:
            raise CompileError(f"bishengir-compile: ub overflow: fits only without {' and '.join(given_up)}")
        if result.returncode != 0 or not final.exists():
            errors = [line for line in message.splitlines() if "error" in line or "overflow" in line]
            raise CompileError(
                f"bishengir-compile: exit {result.returncode}: " + "\n".join(errors[:5] or [message[:2000]])
            )
        return final.read_text()


def scalar_loops(final: str) -> list[str]:
    """Loops of the final IR over fewer than 8 elements of the unified buffer at a time; an instruction takes 64."""
    found, loops = [], []
    for line in final.splitlines():
        indent = len(line) - len(line.lstrip())
        if line.lstrip().startswith("}"):
            while loops and loops[-1][0] >= indent:
                loops.pop()
        if re.search(r"\bscf\.(for|while)\b", line):
            loops.append((indent, line.strip()))
        # A constant index reads what a reduction left, once; one that varies walks over a block, be it by loads or by
        # vector instructions on a few elements each.
        part = re.search(r"memref\.load %\S+\[(?P<at>.*?)(?P<sizes>)\].*address_space<ub>", line) or re.search(
            r"memref\.subview %\S+?\[(?P<at>.*?)\] \[(?P<sizes>[\d, ]+)\] \[.*address_space<ub>", line
        )
        few = part and prod(int(size) for size in part["sizes"].split(",") if size) < 8
        if few and loops and re.search(r"%(?!c-?\d+\b)", part["at"]):
            found.append(f"{loops[-1][1][:80]} :: {line.strip()[:160]}")
    return found
