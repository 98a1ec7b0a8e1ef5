"""A job that writes when it starts and ends, and whether another process had its place."""

import fcntl
import os
import signal
import sys
import time

folder = os.environ["TRACES"]
job, attempt = os.environ["ALLOTMENT_JOB_ID"], os.environ["ALLOTMENT_ATTEMPT"]
worker, devices = os.environ["ALLOTMENT_WORKER"], os.environ.get("CUDA_VISIBLE_DEVICES", "")
os.umask(0)


def trace(what):
    line = f"{what} {os.getpid()} {attempt} {worker} {devices or '-'}\n"
    out = os.open(f"{folder}/{job}", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666)
    os.write(out, line.encode())
    os.close(out)


def hold(name, complaint):
    """Takes a lock that the kernel gives back when this process dies."""
    held = os.open(f"{locks}/{name}", os.O_RDWR | os.O_CREAT, 0o666)
    try:
        fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        trace(complaint)


def stop(*_):
    trace("term")
    sys.exit(143)


locks = folder + ".locks"
signal.signal(signal.SIGTERM, stop)
hold(f"{job}.{worker}", "double")
for device in filter(None, devices.split(",")):
    if os.environ.get("WHOLE_DEVICES", "1") == "1":
        hold(device, "taken")
trace("start")
number = 0
while not os.path.exists(f"{folder}/go"):
    print(number, flush=True)
    number += 1
    time.sleep(0.05)
print("end", flush=True)
trace("end")
