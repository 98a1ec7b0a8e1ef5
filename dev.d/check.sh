# Long checks: `./dev check NAME`.

# The version that was tried.
SCHEMATHESIS_WHEEL=schemathesis==4.32.5
# Examples of each operation and phase: a few minutes in all.
CONTRACT_EXAMPLES=${CONTRACT_EXAMPLES:-50}

# Random worlds for each law of the engine: an hour or two of one core.
WORLDS_DEFAULT=20000

# New random worlds for each law of the engine, built with optimisation in a folder of its own; a law each of whose
# worlds costs as much as many others has so many fewer. WORLDS_SEED repeats a run; WORLDS_ONLY names the test
# files that are run, in place of all.
check_worlds() { # [N]
    local count=${1:-$WORLDS_DEFAULT} seed=${WORLDS_SEED:-$(od -An -N6 -tu8 /dev/urandom | tr -d ' ')} only=() name
    [[ $count =~ ^[1-9][0-9]{0,8}$ ]] || fail "worlds: $count is refused; give a number of random worlds such as $WORLDS_DEFAULT"
    [[ $seed =~ ^[0-9]{1,19}$ ]] || fail "WORLDS_SEED: $seed is refused; give a whole number"
    need_build_tools
    for name in ${WORLDS_ONLY:-}; do only+=(--test "$name"); done
    say "$count worlds for each law; WORLDS_SEED=$seed makes them again"
    PROPTEST_CASES=$count PROPTEST_RNG_SEED=$seed cargo test --release -p engine --no-fail-fast "${only[@]}" ||
        fail "a law does not hold in worlds of WORLDS_SEED=$seed; the least that shows it becomes a test in engine/tests/found.rs"
}

# Starts and ends of the agent's jobs, in all modes.
STARTS_DEFAULT=1000

# So many starts and ends in a row, after each round of which nothing may be left behind.
check_starts() { # [N]
    local count=${1:-$STARTS_DEFAULT}
    [[ $count =~ ^[1-9][0-9]{0,6}$ ]] || fail "starts: $count is refused; give a number of starts such as $STARTS_DEFAULT"
    need_build_tools
    cargo build --workspace --quiet
    say "$count starts and ends"
    ALLOTMENT_STARTS=$count cargo test --workspace --test it -- --nocapture starts::many_starts ||
        fail "something is left behind, or did not end"
}

# Sets $schemathesis to the program.
need_schemathesis() {
    schemathesis=$tools/contract/bin/schemathesis
    "$tools/contract/bin/python" -m pip freeze 2>/dev/null | grep -qx "$SCHEMATHESIS_WHEEL" && return
    if may_apt && ! python3 -c 'import ensurepip' 2>/dev/null; then apt_install python3-venv; fi
    say "fetching Schemathesis from PyPI"
    python3 -m venv "$tools/contract" >/dev/null && "$tools/contract/bin/python" -m pip install -q "$SCHEMATHESIS_WHEEL" ||
        fail "Schemathesis could not be fetched; install it with: pip install $SCHEMATHESIS_WHEEL"
}

# Ends what the check started, however it ends.
clean_contract() {
    "$contract_rig" --checkout "$contract_checkout" down >/dev/null 2>&1 || true
    rm -rf "$contract_checkout"
}

up_key() { python3 -c 'import json, sys; print(json.load(open(sys.argv[1]))[sys.argv[2]])' "$contract_checkout/.allotment/up.json" "$1"; }

# The committed OpenAPI document against a server with a simulated fleet: what it does not
# describe, what it describes and is not so, and what makes the server fail. openapi/schemathesis.toml
# says what is left out and why.
check_contract() {
    need_build_tools
    need_postgres
    need_node
    build
    need_schemathesis
    contract_rig=$PWD/target/debug/allotment-rig
    contract_checkout=$(mktemp -d /tmp/allotment-contract-XXXXXX)
    chmod 711 "$contract_checkout"
    trap clean_contract EXIT
    trap 'exit 130' INT TERM
    "$contract_rig" --checkout "$contract_checkout" up --detach --fresh --simulated --port 0
    say "trying the contract"
    # It leaves files where it runs.
    local contract=$PWD/openapi
    cd "$contract_checkout"
    "$schemathesis" --config-file "$contract/schemathesis.toml" run "$contract/openapi.yaml" \
        --url "$(up_key url)/api/v1" -H "Authorization: Bearer $(up_key token)" \
        --max-examples "$CONTRACT_EXAMPLES" --seed "${CONTRACT_SEED:-$RANDOM}" --workers 2 --continue-on-failure
}
