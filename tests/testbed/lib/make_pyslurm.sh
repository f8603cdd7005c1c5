#!/bin/bash
# Makes the layer of a venv with pyslurm in it.
PYSLURM=25.11.2
# shellcheck source=python_layer.sh
. "$TESTBED_DIR/lib/python_layer.sh"

# pyslurm wants headers that say its own release; Slurm 26.05 keeps what it uses under these switches:
# SLURM_BACKWARD_COMPAT for job-id arguments, and two names that changed.
build_pyslurm() {
    progress "building pyslurm $PYSLURM against Slurm $(cat "$ROOT/etc/hetsched-testbed-slurm")"
    mkdir -p "$ROOT/tmp/include"
    cp -r "$ROOT/usr/include/slurm" "$ROOT/tmp/include/slurm"
    sed -i 's/^#define SLURM_VERSION_NUMBER .*/#define SLURM_VERSION_NUMBER 0x190b05/' "$ROOT/tmp/include/slurm/slurm_version.h"
    local lib_dir flags
    lib_dir=$(dirname "$(in_root sh -c 'ls /usr/lib/*/libslurm.so /usr/lib/libslurm.so 2>/dev/null' | head -n 1)")
    flags="-O1 -DSLURM_BACKWARD_COMPAT -Dslurm_free_ctl_conf=slurm_free_conf -DESLURM_ERROR_ON_DESC_TO_RECORD_COPY=2028"
    in_root env SLURM_INCLUDE_DIR=/tmp/include SLURM_LIB_DIR="$lib_dir" CFLAGS="$flags" \
        "$VENV/bin/pip" install --no-compile "pyslurm==$PYSLURM" || {
        printf 'pyslurm %s does not build on Slurm %s, the one that Debian %s has now\n' "$PYSLURM" \
            "$(cat "$ROOT/etc/hetsched-testbed-slurm")" "$SUITE" >"$WORK/reason"
        exit 1
    }
    in_root env SLURM_CONF=/tmp/slurm.conf sh -c \
        'printf "ClusterName=t\nSlurmctldHost=localhost\nNodeName=n\nPartitionName=p Nodes=n\n" >$SLURM_CONF; '"$VENV/bin/python"' -c "import pyslurm"'
}

mount_root
in_root python3 -m venv "$VENV"
build_pyslurm
in_root "$VENV/bin/python" -m compileall -q "$VENV/lib" || true
strip_layer
