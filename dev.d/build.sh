# The build: assets, checked queries, programs.

# Installs a folder's lock file; says nothing but what went wrong.
npm_ci() { npm ci --loglevel=error --no-fund --no-audit >/dev/null; }

# The pages' assets, built from the lock file when they are missing or older than it.
build_assets() {
    if [ ! -d web/dist ] || [ -n "$(find web/package-lock.json web/build.mjs -newer web/dist)" ]; then
        say "building the pages' assets"
        (cd web && npm_ci && npm run --silent build) ||
            fail "the pages' assets could not be built: npm's words are above"
        touch web/dist
    fi
}

# SQL is checked against .sqlx, so that a build needs no database.
build() {
    build_assets
    [ -n "$(ls .sqlx 2>/dev/null)" ] || prepare_queries
    export SQLX_OFFLINE=true
    say "building (cargo says what)"
    cargo build --workspace
}

# Writes .sqlx anew, from a database that has the migrations and nothing else. A shell of
# its own, so that what it does at its end is not done at the end of ours.
prepare_queries() (
    local bin work as="" url file
    bin=$(postgres_folder)
    work=$(mktemp -d /tmp/allotment-prepare-XXXXXX)
    if [ "$(id -u)" -eq 0 ]; then
        chown postgres: "$work"
        as="setpriv --reuid=postgres --regid=postgres --init-groups"
    fi
    say "starting a database to check queries with"
    trap '$as "$bin/pg_ctl" -D "$work/data" -m immediate stop >/dev/null 2>&1; rm -rf "$work"' EXIT
    (cd "$work" && $as "$bin/initdb" -D "$work/data" -U postgres -A trust --no-sync -E UTF8 --locale=C >/dev/null)
    (cd "$work" && $as "$bin/pg_ctl" -D "$work/data" -w -l "$work/log" \
        -o "-c listen_addresses='' -c unix_socket_directories='$work' -c fsync=off" start >/dev/null)
    "$bin/psql" -h "$work" -U postgres -d postgres -qc 'CREATE ROLE allotment_owner LOGIN CREATEDB CREATEROLE' \
        -c 'CREATE DATABASE prepare OWNER allotment_owner'
    url="postgres://allotment_owner@localhost/prepare?host=$work"
    for file in migrations/*.sql; do
        "$bin/psql" -d "$url" -Xq1 -v ON_ERROR_STOP=1 -f "$file" >/dev/null
    done
    say "checking queries (cargo says what)"
    rm -rf .sqlx && mkdir .sqlx
    # Macros write their query only while they are expanded.
    touch server/src/lib.rs server/tests/it/main.rs
    SQLX_OFFLINE=false SQLX_OFFLINE_DIR=$PWD/.sqlx DATABASE_URL=$url cargo check --workspace --all-targets
)
