# Shared by every verb: messages, host tools, and what the host says about package sources.

say() {
    printf 'testbed: %s\n' "$*" >&2
}

die() {
    say "$*"
    exit 1
}

require_root() {
    [ "$(id -u)" = 0 ] || die "must be root: namespaces, overlay mounts and device nodes need it"
}

# Installs the host programs that are missing. Arguments: PROGRAM:PACKAGE pairs.
require_tools() {
    local pair missing=()
    for pair in "$@"; do
        command -v "${pair%%:*}" >/dev/null || missing+=("${pair##*:}")
    done
    [ ${#missing[@]} -eq 0 ] && return 0
    say "installing on this machine: ${missing[*]}"
    {
        apt-get update
        DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends "${missing[@]}"
    } >"$CACHE/host-tools.log" 2>&1 || {
        tail -n 15 "$CACHE/host-tools.log" >&2
        die "apt-get could not install ${missing[*]}"
    }
}

# The Debian mirror this machine's own apt uses for a release (not for security updates).
debian_mirror() {
    local uri
    uri=$(known_mirror)
    if [ -z "$uri" ]; then
        # A machine that has never asked its mirrors does not know which of them carry Debian.
        apt-get update >"$CACHE/host-tools.log" 2>&1 || true
        uri=$(known_mirror)
    fi
    [ -n "$uri" ] || die "apt knows no mirror of Debian here: give it one in /etc/apt/sources.list.d, then build again"
    printf '%s\n' "$uri"
}

known_mirror() {
    apt-get indextargets --format '$(SITE)|$(ORIGIN)|$(RELEASE)' 'Created-By: Packages' |
        awk -F'|' '$2 == "Debian" && $3 !~ /security/ && $1 ~ /^(https?|ftp|file|copy):/ {print $1; exit}'
}

# The host's apt transport settings (proxy, retries, TLS), to be used in the root as well.
apt_transport_settings() {
    apt-config dump 2>/dev/null | grep -E '^Acquire::(http|https|ftp|Retries|ForceIPv)' || true
    # A lagging mirror of testing can be past its Valid-Until date.
    printf 'Acquire::Check-Valid-Until "false";\n'
    printf 'Acquire::Languages "none";\nAPT::Install-Recommends "false";\n'
}

# Existing absolute paths that the host's pip configuration names: indexes, wheels, constraints. An index
# of files links to its neighbours, so of one called "simple" the folder around it is named.
pip_local_paths() {
    {
        env | grep '^PIP_' || true
        cat /etc/pip.conf /etc/xdg/pip/pip.conf "$HOME/.config/pip/pip.conf" "$HOME/.pip/pip.conf" 2>/dev/null || true
    } | grep -oE '(^|[= ]|file://)/[^ =:,]+' | sed -E 's#^([= ]|file://)##; s#/simple/?$##' | sort -u |
        while read -r path; do
            if [ -e "$path" ]; then printf '%s\n' "$path"; fi
        done
}

# The host's certificate bundle, empty where it has none.
ca_bundle() {
    local bundle=${PIP_CERT:-/etc/ssl/certs/ca-certificates.crt}
    if [ -f "$bundle" ]; then readlink -f "$bundle"; fi
}
