# The layers of the root: "base" (Debian with Slurm and a ready database), "pyslurm" (a venv with pyslurm,
# which takes the longest) and "venv" (what setup.py asks for). Each is a folder named by the hash of what it is made from; it is built under another
# name and renamed when whole, so a folder that has its name is a finished one.

SUITE=forky

base_hash() {
    { cat "$TESTBED_DIR/packages.list" "$TESTBED_DIR"/lib/{make_base,lay_tables}.sh; echo "$SUITE $(uname -m)"; } | sha256sum | cut -c1-16
}

# What setup.py asks for, one requirement a line.
dependencies() {
    python3 "$TESTBED_DIR/lib/dependencies.py" "$SOURCE_DIR/setup.py"
}

pyslurm_hash() {
    { base_hash; cat "$TESTBED_DIR"/lib/{python_layer,make_pyslurm}.sh; } | sha256sum | cut -c1-16
}

venv_hash() {
    { pyslurm_hash; dependencies; cat "$TESTBED_DIR/lib/make_venv.sh"; } | sha256sum | cut -c1-16
}

# Where a layer belongs as its inputs are now.
layer_path() {
    printf '%s/%s-%s\n' "$CACHE" "$1" "$("$1_hash")"
}

# Sets BASE_LAYER, PYSLURM_LAYER and VENV_LAYER.
locate_layers() {
    BASE_LAYER=$(layer_path base)
    PYSLURM_LAYER=$(layer_path pyslurm)
    VENV_LAYER=$(layer_path venv)
}

# Builds what is missing. Finds both layers there in well under a second.
ensure_layers() {
    mkdir -p "$CACHE"
    require_tools python3:python3
    locate_layers
    if [ -d "$BASE_LAYER" ] && [ -d "$PYSLURM_LAYER" ] && [ -d "$VENV_LAYER" ]; then
        [ "${1:-}" = quiet ] || say "up to date: $CACHE"
        return 0
    fi
    require_tools debootstrap:debootstrap unshare:util-linux flock:util-linux
    exec 8>"$CACHE/build.lock"
    flock --nonblock 8 || { say "another build is running, waiting for it"; flock 8; }
    rm -rf --one-file-system "$CACHE"/tmp.*
    [ -d "$BASE_LAYER" ] || build_layer base "$BASE_LAYER" ""
    [ -d "$PYSLURM_LAYER" ] || build_layer pyslurm "$PYSLURM_LAYER" "$BASE_LAYER"
    [ -d "$VENV_LAYER" ] || build_layer venv "$VENV_LAYER" "$PYSLURM_LAYER:$BASE_LAYER"
    collect_old_layers
    exec 8>&-
    say "built: $CACHE"
}

# Builds one layer in namespaces of its own, so that an interrupted build leaves no mount or process.
build_layer() {
    local kind=$1 target=$2 lower=$3 work started=$SECONDS
    work=$(mktemp -d "$CACHE/tmp.XXXXXX")
    chmod 755 "$work"
    say "building the $kind layer (log: $CACHE/build-$kind.log)"
    apt_transport_settings >"$work/apt.conf"
    pip_local_paths >"$work/pip-paths"
    ca_bundle >"$work/ca-bundle"
    dependencies >"$work/requirements"
    local mirror
    mirror=$(debian_mirror)
    env WORK="$work" LOWER="$lower" SUITE=$SUITE MIRROR="$mirror" TESTBED_DIR="$TESTBED_DIR" \
        setpriv --pdeathsig KILL -- unshare --mount --pid --ipc --fork --kill-child=KILL \
        bash "$TESTBED_DIR/lib/make_$kind.sh" 3>&2 >"$CACHE/build-$kind.log" 2>&1 8>&- || {
        say "the $kind layer failed; the end of $CACHE/build-$kind.log:"
        tail -n 20 "$CACHE/build-$kind.log" >&2
        if [ -s "$work/reason" ]; then say "$(cat "$work/reason")"; fi
        rm -rf --one-file-system "$work"
        exit 1
    }
    # Somebody may have edited an input since its hash was taken.
    [ "$target" = "$(layer_path "$kind")" ] || {
        rm -rf --one-file-system "$work"
        die "what the $kind layer is made from changed during the build; build again"
    }
    sync -f "$work"
    mv -T "$work/layer" "$target"
    rm -rf --one-file-system "$work"
    say "$kind layer done in $((SECONDS - started)) s"
}

# Removes layers that nothing asks for any more, unless a running cluster stands on them.
collect_old_layers() {
    local layer
    for layer in "$CACHE"/base-* "$CACHE"/pyslurm-* "$CACHE"/venv-*; do
        case "$layer" in
        "$BASE_LAYER" | "$PYSLURM_LAYER" | "$VENV_LAYER" | *.use) continue ;;
        esac
        [ -d "$layer" ] || continue
        (
            exec 7>"$layer.use"
            flock --nonblock 7 || exit 0
            mv -T "$layer" "$CACHE/tmp.old-$$" && rm -rf --one-file-system "$CACHE/tmp.old-$$" "$layer.use"
        )
    done
}

remove_layers() {
    [ -d "$CACHE" ] || return 0
    exec 8>"$CACHE/build.lock"
    flock 8
    BASE_LAYER='' PYSLURM_LAYER='' VENV_LAYER='' collect_old_layers
    rm -rf --one-file-system "$CACHE"/tmp.* "$CACHE"/*.log
    exec 8>&-
    rm -f "$CACHE"/build.lock
    rmdir "$CACHE/mnt" "$CACHE" 2>/dev/null || say "a running cluster still uses $CACHE"
}
