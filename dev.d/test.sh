# `./dev test`: every step runs, whatever failed before it; the last line counts.

passed=0
failed=0
summary=""
browser_checkout=""
logs=$PWD/target/test-logs
mkdir -p "$logs"

# Ends what a step started, however we end.
clean() {
    [ -z "$browser_checkout" ] || target/debug/allotment-rig --checkout "$browser_checkout" down >/dev/null 2>&1 || true
}
trap clean EXIT
trap 'exit 130' INT TERM

# The number before a word in the lines of a log that end a run: cargo test prints one line
# per program, all others one in all.
count() { # WORD LOG
    if grep -aq '^test result:' "$2"; then
        { grep -a '^test result:' "$2" | grep -oE "[0-9]+ $1" || true; } | awk '{ sum += $1 } END { print sum + 0 }'
    else
        { grep -aoE "[0-9]+ $1" "$2" || true; } | tail -1 | awk '{ print $1 } END { if (NR == 0) print 0 }'
    fi
}

step() { # NAME COMMAND…
    local name=$1 log good=0 bad=0 begun=$SECONDS
    shift
    log=$logs/${name// /-}.log
    say "$name"
    if ("$@") 2>&1 | tee "$log"; then
        good=$(count passed "$log")
        # Python's unittest has words of its own.
        [ "$good" -gt 0 ] || good=$(sed -n 's/^Ran \([0-9]*\) tests\{0,1\} in.*/\1/p' "$log" | tail -1)
        [ "${good:-0}" -gt 0 ] || good=1
    else
        good=$(count passed "$log")
        bad=$(count failed "$log")
        [ "$bad" -gt 0 ] || bad=1
    fi
    passed=$((passed + good))
    failed=$((failed + bad))
    summary+=$(printf '%-22s %5d passed %5d failed %6d s' "$name" "$good" "$bad" $((SECONDS - begun)))$'\n'
}

# Without cargo-nextest, which is faster, cargo's own runner: the same tests in the same two
# steps, told apart by the name of the test program, since --exclude would unify features anew.
unit_tests() {
    if cargo nextest --version >/dev/null 2>&1; then
        cargo nextest run --workspace --no-fail-fast -E 'not package(e2e)'
    else
        cargo test --workspace --no-fail-fast --lib --bins --test '[!e]*'
    fi
}

end_to_end() {
    need_podman
    if cargo nextest --version >/dev/null 2>&1; then
        cargo nextest run --workspace --no-fail-fast -E 'package(e2e)'
    else
        # One product at a time, as .config/nextest.toml has it.
        cargo test --workspace --no-fail-fast --test e2e -- --test-threads 1
    fi
}

up_url() { "$python" -c 'import json, sys; print(json.load(open(sys.argv[1] + "/.allotment/up.json"))["url"])' "$1"; }

browser() {
    need_browser
    (cd web && npm_ci) &&
        target/debug/allotment-rig --checkout "$1" up --detach --fresh --simulated --port 0 &&
        node web/browser/run.mjs "$(up_url "$1")" "$1/.allotment/up.json"
}

lint_openapi() {
    (cd openapi && npm_ci && npx --no-install redocly lint --config redocly.yaml openapi.yaml)
}

# Whether each alert fires when it should.
alert_rules() {
    need_promtool
    "$promtool" check rules examples/prometheus/alerts.yml && (cd examples/prometheus && "$promtool" test rules alerts_test.yml)
}

example_tests() { (cd examples/digits && "$python" -m unittest -v); }

need_build_tools
need_postgres
need_node
need_python
# The mail server of the tests runs in it.
export ALLOTMENT_PYTHON=$python
step "format" cargo fmt --check
step "assets" build_assets
[ -n "$(ls .sqlx 2>/dev/null)" ] || prepare_queries
export SQLX_OFFLINE=true
step "clippy" cargo clippy --workspace --all-targets --quiet -- -D warnings
RUSTDOCFLAGS="-D warnings" step "docs" cargo doc --workspace --no-deps --quiet
step "build" cargo build --workspace --all-targets
if [ "$failed" -eq 0 ] || [ -x target/debug/allotment-rig ]; then
    export -f unit_tests
    step "tests" target/debug/allotment-rig with-postgres bash -c unit_tests
    source dev.d/cgroup2.sh
    step "control groups 2" check_cgroup2
    step "planner cases" "$python" tests/cases/run.py --plan "$PWD/target/debug/allot plan"
    step "examples" example_tests
    step "deployment files" "$python" tests/check_compose.py --bin-dir target/debug
    step "alert rules" alert_rules
    step "openapi" lint_openapi
    step "end to end" end_to_end
    browser_checkout=$(mktemp -d /tmp/allotment-browser-XXXXXX)
    chmod 711 "$browser_checkout"
    step "browser" browser "$browser_checkout"
    clean
    rm -rf "$browser_checkout"
    browser_checkout=""
fi

echo
printf '%s' "$summary"
echo "in $SECONDS s"
echo "$passed passed, $failed failed"
[ "$failed" -eq 0 ]
