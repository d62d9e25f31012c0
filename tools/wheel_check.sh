#!/usr/bin/env bash
# Installs one wheel beside one torch in an environment of its own and runs the smoke test there.
#   tools/wheel_check.sh PYTHON TORCH WHEEL        (TORCH as pip takes it: torch==2.13.0)
set -euo pipefail
python=$1 torch=$2 wheel=$(realpath "$3")
root=$(realpath "$(dirname "$0")/..")
environment=$root/build/wheel-check/$(printf %s "$torch" | tr -c 'A-Za-z0-9.' '_')

echo "== $(basename "$wheel") beside $torch"
test -x "$environment/bin/python" || $python -m venv "$environment"
# shellcheck disable=SC2086  # TORCH may hold several arguments of pip
"$environment/bin/python" -m pip install -q $torch
"$environment/bin/python" -m pip install -q --force-reinstall --no-deps "$wheel"
"$environment/bin/python" -m pip install -q "$wheel" # its other dependencies; torch is there
cd "$environment"                                    # away from the source tree: the wheel is what is tested
bin/python "$root/tools/smoke.py"
