# Long checks: `./dev check NAME`.

# The version that was tried.
SCHEMATHESIS_WHEEL=schemathesis==4.32.5
# Examples of each operation and phase: a few minutes in all.
CONTRACT_EXAMPLES=${CONTRACT_EXAMPLES:-50}

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
