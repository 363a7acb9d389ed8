#!/usr/bin/env bash
# The Triton kernels without a device: A, the conformance suite in the interpreter; B, every kernel lowered for each
# Ascend target; C, lowered kernels as native code against the references. Each prints kernels, configurations, targets.
# Needs the environment that the README makes, in $PYTHON.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
cd "$here/../.."
bash "$here/setup_envs.sh"
export PYTHONPATH=$PWD
layer() { # title, environment, arguments of pytest...
  local start=$SECONDS environment=$2 log status=0
  echo "=== $1"
  shift 2
  log=$(mktemp)
  "build/triton_envs/$environment/bin/python" -m pytest -q -p no:cacheprovider -W ignore "$@" | tee "$log" || status=1
  grep -q ' combinations$' "$log" || { echo "no kernel ran" >&2; status=1; }
  rm "$log"
  echo "took $((SECONDS - start)) s"
  return $status
}
# The interpreter takes up to a second for what takes the other backends a millisecond: fewer examples of each property.
export SPECDEC_MAX_EXAMPLES=5
status=0
# A keeps one core busy for as long as B and C take; it is shown after them.
interpreted=$(mktemp)
layer "A: conformance in the interpreter" upstream -m "not slow" -k "triton or registration or philox_words or interpreted" \
  tests/ops tests/triton_backend/test_registration.py tests/triton_backend/test_philox_words.py \
  tests/triton_backend/test_interpreted.py > "$interpreted" 2>&1 &
layer "B: lowered for Ascend" ascend tests/triton_backend/test_ascend_lowering.py || status=1
layer "C: lowered, as native code" ascend tests/triton_backend/test_native.py tests/triton_backend/test_philox_words.py || status=1
wait $! || status=1
cat "$interpreted"
rm "$interpreted"
exit $status
