"""Starts a simulated node in a container: makes its machine, enrols it once, runs the agent.

JOIN_MODEL is the machine, JOIN_POOL the pool, JOIN_API and JOIN_SERVER where the servers
are for REST and for agents; the container's host name is the node's. On a machine of your
own none of this is needed: an operator makes a join token and runs `allotment-agent enrol`.
"""

import json
import os
import pathlib
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request

STATE = pathlib.Path("/var/lib/allotment-agent")
SEED = pathlib.Path("/seed/seed.json")
MACHINE = STATE / "machine.json"
CA = pathlib.Path("/seed/ca.pem")
IDENTITY = STATE / "identity/identity.json"  # what an enrolment leaves
WAIT_SECONDS = 120  # a server needs a few seconds after the set-up has ended


def main():
    name = socket.gethostname()
    if not MACHINE.exists():
        text = subprocess.run(
            ["nvml-sim-machine", "--model", os.environ["JOIN_MODEL"], "--seed", name],
            check=True, capture_output=True, text=True,
        ).stdout
        beside = MACHINE.with_suffix(".new")
        beside.write_text(text)
        beside.rename(MACHINE)
    os.environ["ALLOTMENT_NVML_SIM_MACHINE"] = str(MACHINE)
    if not IDENTITY.exists():
        enrol(name)
    os.execvp("allotment-agent", ["allotment-agent", "run", "--config", "/etc/allotment/agent.toml"])


def enrol(name):
    made = ask_until_answered("/api/v1/nodes/join-tokens", {"pool": os.environ["JOIN_POOL"]})
    subprocess.run(
        ["allotment-agent", "enrol", "--server", os.environ["JOIN_SERVER"], "--token", made["token"],
         "--ca", str(CA), "--name", name, "--state-dir", str(STATE)],
        check=True,
    )


def ask_until_answered(path, body):
    token = json.loads(SEED.read_text())["token"]
    limit = time.monotonic() + WAIT_SECONDS
    while True:
        request = urllib.request.Request(
            os.environ["JOIN_API"] + path, data=json.dumps(body).encode(), method="POST",
            headers={"Authorization": f"Bearer {token}", "Content-Type": "application/json"},
        )
        try:
            with urllib.request.urlopen(request, timeout=10) as answer:
                return json.load(answer)
        except urllib.error.HTTPError as error:
            if error.code < 500:
                sys.exit(f"join.py: {path} was refused: {error.read().decode(errors='replace')}")
            problem = error
        except OSError as error:
            problem = error
        if time.monotonic() > limit:
            sys.exit(f"join.py: no server answered within {WAIT_SECONDS} s: {problem}")
        time.sleep(1)


if __name__ == "__main__":
    main()
