# `./dev bench NAME`: a benchmark, built with optimisation, and its table.

bench_build() {
    # Another profile, another folder: what `build` and `test` have built stays as it is.
    cargo build --quiet --release -p cli
}

# B1: the placement experiment on every openb list, in both orders of ties. The lists are those
# of the paper on fragmentation gradient descent; OPENB says where they are.
bench_placement() {
    local lists=${OPENB:-} nodes pods ties name
    nodes=$lists/openb_node_list_gpu_node.csv
    [ -r "$nodes" ] || fail "set OPENB to the folder that has the openb lists (openb_node_list_gpu_node.csv, openb_pod_list_*.csv)"
    bench_build
    printf '%-14s %-8s %8s %8s %8s %8s %8s %8s\n' list ties 80 90 95 100 130 "s"
    for pods in "$lists"/openb_pod_list_*.csv; do
        name=$(basename "$pods" .csv)
        for ties in lex reverse; do
            SECONDS=0
            target/release/allot simulate --openb "$nodes" "$pods" --strategy "${STRATEGY:-least_fragmentation}" \
                --seeds "${SEEDS:-42..51}" --ratio 1.3 --ties "$ties" --json |
                "$python" -c 'import json, sys
a = json.load(sys.stdin)["allocation_percent"]
name, ties = sys.argv[1:]
print(f"{name:14} {ties:8}", *(f"{a[at]:8.2f}" for at in ("80", "90", "95", "100", "130")), end=" ")' \
                    "${name#openb_pod_list_}" "$ties"
            printf '%8d\n' "$SECONDS"
        done
    done
}

# B2 to B5: the engine in a cluster of 80,000 GPUs, each in a process of its own, whose memory is measured.
# PART=50 takes one in fifty of its nodes and work; MILLION=1 adds B3 with a million waiting, which takes minutes.
bench_scale() { # fill|full|kept|preempt|million …
    local name
    for name in "$@"; do
        cargo bench --quiet --package engine --bench scale -- "$name" "${PART:-1}"
    done
}

# B1 to B6, but B1 only where its lists are.
bench_engine() {
    bench_scale fill full kept preempt ${MILLION:+million}
    if [ -n "${OPENB:-}" ]; then bench_placement; else say "b1 is left out: set OPENB to the folder of the openb lists"; fi
    bench_day
}

# B6: a day of jobs, by this product's policy and by two plain queues; each prediction is off by up to 30 %.
# SEEDS="42 43 44" are the days, LOAD=95 what is asked of the GPUs, in percent.
bench_day() {
    local folder seed queue
    bench_build
    folder=$(mktemp -d)
    for seed in ${SEEDS:-42 43 44}; do
        "$python" dev.d/day.py "$folder" "$seed" "${LOAD:-95}"
        for queue in ours skip fifo; do
            target/release/allot simulate "$folder/$queue.yaml" --trace "$folder/$queue.csv" --prediction-error 30 \
                $([ "$queue" = ours ] || echo --one-queue) --seeds "$seed" --json |
                "$python" dev.d/day.py --row "$queue"
        done
    done
    rm -r "$folder"
}

# B8: an array of 10,000 and a batch of 1,000 different jobs, ROUNDS times, over a durable database.
bench_submissions() {
    need_postgres
    cargo build --quiet --release --workspace --bins --lib
    target/release/allotment-rig measure-submissions --rounds "${ROUNDS:-5}"
}

# B9: from a submission to its process, and trivial jobs end to end, over AGENTS real agents and a durable database.
bench_starts() {
    need_postgres
    cargo build --quiet --release --workspace --bins --lib
    target/release/allotment-rig measure-fleet --agents "${AGENTS:-50}" --count "${COUNT:-200}" --burst "${BURST:-2000}"
}

# B11: samples of 4,000 devices, written and read over a durable database, beside plain COPY.
bench_samples() {
    need_postgres
    cargo build --quiet --package rig
    target/debug/allotment-rig with-postgres --durable \
        env SQLX_OFFLINE=true cargo bench --quiet --package server --bench samples
}

# The idle agent with eight simulated devices: its memory, and its part of a core over SECONDS_LONG seconds.
bench_agent() {
    need_postgres
    cargo build --quiet --release --workspace --bins --lib
    target/release/allotment-rig measure-agent --seconds "${SECONDS_LONG:-60}"
}

bench() { # NAME
    case $1 in
        b1) bench_placement ;;
        b2) bench_scale fill ;;
        b3) bench_scale full ${MILLION:+million} ;;
        b4) bench_scale kept ;;
        b5) bench_scale preempt ;;
        b6) bench_day ;;
        b8) bench_submissions ;;
        b9) bench_starts ;;
        b11) bench_samples ;;
        agent) bench_agent ;;
        engine) bench_engine ;;
        all) bench_engine && bench_submissions && bench_starts && bench_samples && bench_agent ;;
        *) fail "there is no benchmark $1; there are: b1 to b6, b8, b9, b11, agent, engine (b1 to b6), all" ;;
    esac
}
