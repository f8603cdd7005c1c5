# The verbs that boot a cluster. Everything of a run lives in namespaces whose first process dies with
# this shell, so that neither Ctrl-C nor kill -9 leaves a process, a mount or a file.

CLUSTER_FILE=$TESTBED_DIR/clusters/default.toml
WITH_HETSCHED=1
KEEP_LOGS=

# Reads the options of run and shell; leaves what follows "--" in COMMAND.
parse_run_options() {
    COMMAND=()
    while [ $# -gt 0 ]; do
        case "$1" in
        --cluster)
            [ $# -ge 2 ] || die "--cluster needs a file"
            CLUSTER_FILE=$2
            shift 2
            ;;
        --without-hetsched) WITH_HETSCHED=0 && shift ;;
        --keep-logs)
            [ $# -ge 2 ] || die "--keep-logs needs a directory"
            KEEP_LOGS=$2
            shift 2
            ;;
        --)
            shift
            COMMAND=("$@")
            return 0
            ;;
        *) die "unknown option '$1'; write: testbed run [options] -- COMMAND..." ;;
        esac
    done
}

run_verb() {
    parse_run_options "$@"
    [ ${#COMMAND[@]} -gt 0 ] || die "no command; write: testbed run [options] -- COMMAND..."
    boot_cluster run
}

shell_verb() {
    parse_run_options "$@"
    COMMAND=(/bin/bash -i)
    boot_cluster shell
}

boot_cluster() {
    local verb=$1
    [ -f "$CLUSTER_FILE" ] || die "no cluster file $CLUSTER_FILE; see $TESTBED_DIR/clusters for some"
    CLUSTER_FILE=$(readlink -f "$CLUSTER_FILE")
    ensure_layers quiet
    # Held for the life of the run: a rebuild must not remove the layers under it.
    exec 5>"$BASE_LAYER.use" 6>"$PYSLURM_LAYER.use" 7>"$VENV_LAYER.use"
    flock --shared 5
    flock --shared 6
    flock --shared 7
    mkdir -p "$CACHE/mnt" "$SOURCE_DIR/build"
    if [ -n "$KEEP_LOGS" ]; then
        mkdir -p "$KEEP_LOGS"
        KEEP_LOGS=$(readlink -f "$KEEP_LOGS")
    fi
    start_namespaces "$verb"
}

# Runs lib/enter.sh as the first process of new namespaces and passes its exit status on. The death
# signals make a chain: this shell, unshare, the first process, and with it all others.
start_namespaces() {
    local child status=0 stopped=0
    env TESTBED_VERB="$1" TESTBED_CACHE="$CACHE" TESTBED_LAYERS="$VENV_LAYER:$PYSLURM_LAYER:$BASE_LAYER" \
        TESTBED_SOURCE="$SOURCE_DIR" TESTBED_CLUSTER="$CLUSTER_FILE" TESTBED_LOGS="$KEEP_LOGS" \
        TESTBED_HETSCHED="$WITH_HETSCHED" \
        setpriv --pdeathsig KILL -- \
        unshare --mount --pid --net --uts --ipc --fork --kill-child=KILL \
        bash "$TESTBED_DIR/lib/enter.sh" "${COMMAND[@]}" <&0 5>&- 6>&- 7>&- &
    child=$!
    # Whoever read our output may be gone already: the shell's word about a killed child must not end it.
    trap '' PIPE
    trap : INT
    trap 'stopped=143; kill -KILL "$child" 2>/dev/null' TERM
    trap 'stopped=129; kill -KILL "$child" 2>/dev/null' HUP
    while kill -0 "$child" 2>/dev/null; do
        status=0
        wait "$child" || status=$?
    done
    [ -z "$KEEP_LOGS" ] || chown -R root: "$KEEP_LOGS"
    [ "$stopped" = 0 ] || status=$stopped
    exit "$status"
}
