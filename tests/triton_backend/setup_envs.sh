#!/usr/bin/env bash
# Makes build/triton_envs/{upstream,ascend}: environments with triton and with triton-ascend, which cannot share one.
# Each adds its compiler to the packages of the Python that runs this ($PYTHON, python by default), which must have torch,
# pytest and the built operators. Run it again at will: what is there is kept.
set -euo pipefail
cd "$(dirname "$0")/../.."
python=${PYTHON:-python}
packages=$("$python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
"$python" -c 'import hypothesis, pytest, torch' || { echo "setup_envs: $python needs torch, pytest and hypothesis" >&2; exit 1; }

make_env() { # name, packages...
  local folder=build/triton_envs/$1
  shift
  [ -x "$folder/bin/python" ] || "$python" -m venv "$folder"
  "$folder/bin/pip" install -q --disable-pip-version-check "$@"
  # After the environment's own packages, so that its triton wins.
  echo "$packages" > "$("$folder/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/zz_base.pth"
}

make_env upstream "triton>=3.9,<3.10" "numpy<2.4" # the shim knows this interpreter
make_env ascend triton-ascend==3.2.0 ascendnpu-ir==1.2.0 pybind11 "numpy<2.4" # the wheel does not ask for pybind11

missing=
for tool in clang-19 mlir-translate-19; do command -v "$tool" > /dev/null || missing=1; done
if [ -n "$missing" ]; then
  command -v apt-get > /dev/null || { echo "setup_envs: install clang 19 and MLIR 19's tools (clang-19, mlir-translate-19)" >&2; exit 1; }
  apt-get update -q > /dev/null
  apt-get install -yq --no-install-recommends clang-19 mlir-19-tools > /dev/null
fi
