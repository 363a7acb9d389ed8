"""Every kernel as production launches it, lowered for Ascend devices up to the binary (layer B; see `ascend.py`).

Compiles, fits the unified buffer with double buffering, and no loop of the final IR walks over a block by element.
"""

import os
from concurrent.futures import Future, ThreadPoolExecutor

import pytest

pytest.importorskip("ascendnpuir", reason="needs the environment of tests/triton_backend/setup_envs.sh")

import ascend
import catalog
import faulty_kernels
import launches

from specdec_ops.triton.runtime import Device

# 910B2 and 910_9382 have 24 cube and 48 vector cores, 910B4 has 20 and 40; none of it is compiled in: launchers take it
# from the device. All have 192 KiB of unified buffer.
DEVICE = Device(vector_cores=48, cube_cores=24, unified_buffer=192 * 1024)
SPECIALIZATIONS = catalog.specializations(DEVICE)


@pytest.fixture(scope="module")
def final_ir(request):
    """The compiler is a process: as many at once as there are cores, started in the order of the tests selected."""
    selected = [item.callspec.params for item in request.session.items if "final_ir" in item.fixturenames]
    lowered: dict[str, Future[str]] = {}
    compiled: dict[tuple[str, str], Future[str]] = {}

    def compile(key: str, target: str) -> str:
        return ascend.compile_linalg(lowered[key].result(), target)

    with ThreadPoolExecutor(os.cpu_count()) as pool:
        for key, target in ((params["key"], params["target"]) for params in selected):
            if key not in lowered:
                lowered[key] = pool.submit(ascend.lower, SPECIALIZATIONS[key])
            compiled[key, target] = pool.submit(compile, key, target)
        yield lambda key, target: compiled[key, target].result()
        pool.shutdown(cancel_futures=True)


@pytest.mark.parametrize("target", ascend.TARGETS)
@pytest.mark.parametrize("key", SPECIALIZATIONS, ids=lambda key: str(SPECIALIZATIONS[key]))
def test_lowers(final_ir, key, target):
    assert ascend.scalar_loops(final_ir(key, target)) == []
    launches.shown.add((SPECIALIZATIONS[key], target))


def _faulty(kernel, signature, block):
    return launches.Specialization(kernel, kernel.__name__, tuple(signature.items()), (("BLOCK", block),))


def test_a_shift_by_element_is_found():
    signature = {"x": "*i32", "amounts": "*i32", "out": "*i32", "n": "i32"}
    final = ascend.compile_linalg(
        ascend.lower(_faulty(faulty_kernels.shift_kernel, signature, 1024)), ascend.TARGETS[0]
    )
    assert ascend.scalar_loops(final)


def test_a_strided_block_is_found():
    signature = {"x": "*fp32", "out": "*fp32", "n": "i32"}
    final = ascend.compile_linalg(
        ascend.lower(_faulty(faulty_kernels.branch_kernel, signature, 1024)), ascend.TARGETS[0]
    )
    assert ascend.scalar_loops(final)


@pytest.mark.parametrize("kernel", [faulty_kernels.reshape_kernel, faulty_kernels.scatter_kernel], ids=str)
def test_a_store_that_spreads_the_block_is_found(kernel):
    signature = {"x": "*fp32", "out": "*fp32", "n": "i32"}
    final = ascend.compile_linalg(ascend.lower(_faulty(kernel, signature, 128)), ascend.TARGETS[0])
    assert ascend.scalar_loops(final)


def test_an_oversize_block_is_found():
    signature = {"x": "*fp32", "out": "*fp32", "n": "i32"}

    def compile(block: int) -> str:
        return ascend.compile_linalg(
            ascend.lower(_faulty(faulty_kernels.copy_kernel, signature, block)), ascend.TARGETS[0]
        )

    compile(8192)
    with pytest.raises(ascend.CompileError, match="without enable-code-motion and enable-auto-multi-buffer"):
        compile(32768)  # fits once, not twice
