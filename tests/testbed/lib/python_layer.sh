# Shared by make_pyslurm.sh and make_venv.sh: each makes $WORK/layer, an overlay layer over $LOWER (layers
# joined by colons, topmost first) of which only /opt/hetsched-venv is kept. Both run in mount and pid
# namespaces of their own.
set -euo pipefail

ROOT=$WORK/root
VENV=/opt/hetsched-venv

progress() {
    printf 'testbed:   %s\n' "$*" >&3
    printf '== %s\n' "$*"
}

in_root() {
    chroot "$ROOT" env PATH=/usr/sbin:/usr/bin:/sbin:/bin HOME=/root LANG=C.UTF-8 "$@"
}

# The scratch upper layer is where pip's configuration and the like go; only the venv is kept.
mount_root() {
    mkdir -p "$WORK/layer" "$WORK/work" "$ROOT"
    mount -t overlay overlay -o "lowerdir=$LOWER,upperdir=$WORK/layer,workdir=$WORK/work" "$ROOT"
    mount -t proc proc "$ROOT/proc"
    mount --rbind /dev "$ROOT/dev"
    mount -t tmpfs tmpfs "$ROOT/tmp"
    mount -t tmpfs tmpfs "$ROOT/root"
    bind_file /etc/resolv.conf
    bind_file /etc/pip.conf
    local path bundle
    for path in "$HOME/.config/pip/pip.conf" "$HOME/.pip/pip.conf"; do
        if [ -f "$path" ]; then mkdir -p "$ROOT/root/.config/pip" && cp "$path" "$ROOT/root/.config/pip/pip.conf"; fi
    done
    while read -r path; do bind_path "$path"; done <"$WORK/pip-paths"
    if [ -f /etc/xdg/pip/pip.conf ]; then bind_file /etc/xdg/pip/pip.conf; fi
    bundle=$(cat "$WORK/ca-bundle")
    if [ -n "$bundle" ]; then mount --bind "$bundle" "$ROOT/etc/ssl/certs/ca-certificates.crt"; fi
}

bind_path() {
    if [ -d "$1" ]; then
        mkdir -p "$ROOT$1"
        mount --rbind "$1" "$ROOT$1"
    else
        bind_file "$1"
    fi
}

bind_file() {
    [ -e "$1" ] || return 0
    mountpoint -q "$ROOT$1" && return 0
    mkdir -p "$ROOT$(dirname "$1")"
    [ -e "$ROOT$1" ] || : >"$ROOT$1"
    mount --bind "$(readlink -f "$1")" "$ROOT$1"
}

# Keeps the venv alone in the layer.
strip_layer() {
    # Lazily: a compiler that has just ended may still hold a device of it.
    umount -R -l "$ROOT"
    find "$WORK/layer" -mindepth 1 -maxdepth 1 ! -name opt -exec rm -rf --one-file-system {} +
    find "$WORK/layer/opt" -mindepth 1 -maxdepth 1 ! -name hetsched-venv -exec rm -rf --one-file-system {} +
}
