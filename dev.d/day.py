"""Writes a synthetic day of jobs, and the clusters that it is replayed on.

    day.py FOLDER [SEED [LOAD]]
    day.py --row NAME < REPORT      what a report of `allot simulate --json` says of it, in a line

`ours.csv` is a trace for `allot simulate` over `ours.yaml`, a cluster with a tree of teams and
this product's policy; `fifo` is the same day on the same machines with one queue that nothing
passes, `skip` one in which what does not fit is passed by whatever does.
Lengths are log-normal with a median of 122 s and a mean of 1,414 s once they are cut at a day;
sizes are powers of two with a median of 1, a mean of 5.7 and a most of 1,024 GPUs, of workers of
at most 8. Jobs arrive over 24 hours, each moment as likely as the next, until what they ask for
is LOAD percent (95) of what there is. A day before, drawn the same way, has left what still runs
at midnight; what of it has no room comes again with the rest of its time. Teams come in three sizes, and what they submit is not in
the proportion of their guarantees. Only the standard library is used; a seed gives the same day
everywhere.
"""

import json
import math
import random
import sys
from pathlib import Path

DAY = 86_400
MEDIAN_SECONDS = 122
MEAN_SECONDS = 1_414
MEAN_GPUS = 5.7
NODES = 256
NODE_GPUS = 8
SIZES = [2**k for k in range(11)]
# Whole GPUs that each team of an organisation is guaranteed, and its part of what is submitted.
GUARANTEED = [192, 128, 96, 64, 32]
SUBMITTED = [30, 20, 20, 20, 10]
ORGANISATIONS = 4


def bisect(low, high, wanted, of):
    """The x between low and high at which the growing function `of` is `wanted`."""
    for _ in range(200):
        middle = (low + high) / 2
        low, high = (middle, high) if of(middle) < wanted else (low, middle)
    return (low + high) / 2


def cut_mean(sigma):
    """The mean of a log-normal with the median, each value cut at a day."""
    normal = lambda x: (1 + math.erf(x / math.sqrt(2))) / 2
    mu, cut = math.log(MEDIAN_SECONDS), math.log(DAY)
    body = math.exp(mu + sigma**2 / 2) * normal((cut - mu - sigma**2) / sigma)
    return body + DAY * (1 - normal((cut - mu) / sigma))


def size_weights(ratio):
    """Half of all jobs and a little more on one GPU; each doubling is `ratio` times as frequent."""
    tail = [ratio**k for k in range(1, len(SIZES))]
    return [0.52] + [0.48 * weight / sum(tail) for weight in tail]


def mean_size(ratio):
    return sum(size * weight for size, weight in zip(SIZES, size_weights(ratio)))


def jobs(seed, load):
    """Rows of the trace: submitted, run seconds, GPUs, team."""
    dice = random.Random(seed)
    sigma = bisect(0.5, 4.0, MEAN_SECONDS, cut_mean)
    weights = size_weights(bisect(0.05, 2.0, MEAN_GPUS, mean_size))
    teams = [f"o{o}-t{t}" for o in range(ORGANISATIONS) for t in range(len(GUARANTEED))]
    room = NODES * NODE_GPUS * DAY * load // 100
    rows = []
    while room > 0:
        seconds = min(DAY, max(1, round(dice.lognormvariate(math.log(MEDIAN_SECONDS), sigma))))
        gpus = dice.choices(SIZES, weights)[0]
        team = dice.choices(teams, SUBMITTED * ORGANISATIONS)[0]
        rows.append((dice.randrange(DAY), seconds, gpus, team))
        room -= seconds * gpus
    return sorted(rows)


def midnight(rows):
    """What the rows of a day leave at its end: what runs (started seconds ago, length, team,
    nodes with their devices), and rows of what has no room, with what is left of them."""
    free = [list(range(NODE_GPUS)) for _ in range(NODES)]
    runs, comes = [], []
    left = [row for row in rows if row[0] + row[1] > DAY]
    for submitted, seconds, gpus, team in sorted(left, key=lambda row: -row[2]):
        each = min(gpus, NODE_GPUS)
        workers = max(1, gpus // NODE_GPUS)
        places = [node for node in range(NODES) if len(free[node]) >= each][:workers]
        if len(places) < workers:
            comes.append((0, submitted + seconds - DAY, gpus, team))
            continue
        placed = [(node, [free[node].pop(0) for _ in range(each)]) for node in places]
        runs.append((DAY - submitted, seconds, each, team, placed))
    return runs, comes


def running(runs):
    lines = []
    for i, (ago, seconds, each, team, placed) in enumerate(runs):
        at = "2026-01-04T%02d:%02d:%02dZ" % ((DAY - ago) // 3600, (DAY - ago) // 60 % 60, (DAY - ago) % 60)
        places = ", ".join(
            f"{{node: n{node:03}, devices: [{', '.join(f'{{index: {d}}}' for d in devices)}]}}" for node, devices in placed
        )
        lines.append(
            f"  - {{name: r{i:06}, team: {team}, class: normal, submitted: {at}, started: {at}, state: running, "
            f"predicted_seconds: {seconds}, workers: {len(placed)}, per_worker: {{gpus: {each}}}, placed: [{places}]}}"
        )
    return "\n".join(lines)


def cluster(policy, teams, work):
    nodes = "\n".join(
        f"  - {{name: n{i:03}, pool: p, gpus: {NODE_GPUS}, gpu_memory_mib: 81559, cpus: 96, "
        f"memory_mib: 1048576, nvlink: [[0, 1, 2, 3, 4, 5, 6, 7]], labels: {{rack: r{i // 16:02}}}}}"
        for i in range(NODES)
    )
    return f"now: 2026-01-05T00:00:00Z\npools:\n  - {{name: p, {policy}}}\nnodes:\n{nodes}\nclasses:\n  - {{name: normal}}\nteams:\n{teams}\nworkloads:\n{work}\n"


def tree():
    lines = []
    for o in range(ORGANISATIONS):
        lines.append(f"  - {{name: o{o}, quotas: {{p: {{guaranteed: {sum(GUARANTEED)}}}}}}}")
        for t, guaranteed in enumerate(GUARANTEED):
            lines.append(f"  - {{name: o{o}-t{t}, parent: o{o}, quotas: {{p: {{guaranteed: {guaranteed}}}}}}}")
    return "\n".join(lines)


def row(name, report):
    waits, lost = report["waits"], report["preemptions"]
    return (
        f"{name:5} mean wait {waits['mean_seconds']:8.1f} s, p50 {waits['p50_seconds']}, p95 {waits['p95_seconds']}, "
        f"p99 {waits['p99_seconds']}; Jain {report['fairness']['jain']}; "
        f"{lost['count']} preempted, {lost['lost_gpu_seconds']} GPU-seconds lost"
    )


def main():
    if sys.argv[1] == "--row":
        print(row(sys.argv[2], json.load(sys.stdin)))
        return
    folder = Path(sys.argv[1])
    seed = int(sys.argv[2]) if len(sys.argv) > 2 else 42
    load = int(sys.argv[3]) if len(sys.argv) > 3 else 95
    rows = jobs(seed, load)
    runs, comes = midnight(jobs(seed + 1_000_000, load))
    header = "name,team,submitted,run_seconds,workers,gpus"
    # The last two are replayed as one queue.
    for name, policy in (
        ("ours", "backfill: easy, preemption: {delay_seconds: 300}"),
        ("skip", "backfill: none"),
        ("fifo", "backfill: strict"),
    ):
        lines = [
            f"j{i:06},{team},{submitted},{seconds},{max(1, gpus // NODE_GPUS)},{min(gpus, NODE_GPUS)}"
            for i, (submitted, seconds, gpus, team) in enumerate(comes + rows)
        ]
        (folder / f"{name}.csv").write_text("\n".join([header, *lines]) + "\n")
        (folder / f"{name}.yaml").write_text(cluster(policy, tree(), running(runs)))
    lengths, sizes = sorted(r[1] for r in rows), sorted(r[2] for r in rows)
    middle = len(rows) // 2
    print(
        f"{len(rows)} jobs; seconds: median {lengths[middle]}, mean {sum(lengths) / len(rows):.0f}; "
        f"GPUs: median {sizes[middle]}, mean {sum(sizes) / len(rows):.2f}, most {sizes[-1]}; "
        f"{sum(len(r[4]) * r[2] for r in runs)} GPUs in use at first; load {sum(r[1] * r[2] for r in rows) / (NODES * NODE_GPUS * DAY):.3f}"
    )


if __name__ == "__main__":
    main()
