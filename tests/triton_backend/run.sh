#!/usr/bin/env bash
# The Triton kernels without a device: A, the conformance suite in the interpreter; B, every kernel lowered for Ascend;
# C, lowered kernels as native code against the references. Needs the environment that the README makes, in $PYTHON.
# B is for 910B2; with --all also for 910B4 and 910_9382, which differ in their number of cores.
set -euo pipefail
targets=(-k "not Ascend910B4 and not Ascend910_9382")
if [ "${1:-}" = --all ]; then targets=(); fi
here=$(cd "$(dirname "$0")" && pwd)
cd "$here/../.."
bash "$here/setup_envs.sh"
export PYTHONPATH=$PWD
status=0
layer() { # title, environment, arguments of pytest...
  local start=$SECONDS environment=$2 log
  echo "=== $1"
  shift 2
  log=$(mktemp)
  "build/triton_envs/$environment/bin/python" -m pytest -q -p no:cacheprovider -W ignore "$@" | tee "$log" || status=1
  grep -q ' combinations$' "$log" || { echo "no kernel ran" >&2; status=1; }
  echo "took $((SECONDS - start)) s"
}
# The interpreter takes up to a second for what takes the other backends a millisecond: fewer examples of each property.
export SPECDEC_MAX_EXAMPLES=5
layer "A: conformance in the interpreter" upstream -m "not slow" -k "triton or registration or philox_words or interpreted" \
  tests/ops tests/triton_backend/test_registration.py tests/triton_backend/test_philox_words.py \
  tests/triton_backend/test_interpreted.py
layer "B: lowered for Ascend" ascend tests/triton_backend/test_ascend_lowering.py "${targets[@]}"
layer "C: lowered, as native code" ascend tests/triton_backend/test_native.py tests/triton_backend/test_philox_words.py
exit $status
