#!/bin/bash
# Makes the layer of the project's own dependencies, on top of the one with pyslurm.
# shellcheck source=python_layer.sh
. "$TESTBED_DIR/lib/python_layer.sh"

mount_root
progress "installing the project's Python dependencies"
cp "$WORK/requirements" "$ROOT/tmp/requirements"
# setuptools and wheel: make install may build with them.
in_root "$VENV/bin/pip" install --no-compile setuptools wheel -r /tmp/requirements
progress "compiling their modules"
in_root "$VENV/bin/python" -m compileall -q -j 2 "$VENV/lib" || true
strip_layer
