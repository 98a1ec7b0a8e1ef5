"""How the workers of one job find each other and agree on the weights.

Rank 0 listens at MASTER_PORT; the others connect to it at MASTER_ADDR. What travels is
JSON, a line each: texts that can be looked at, and nothing in them can be executed.
"""

import json
import socket
import time

CONNECT_SECONDS = 60  # all workers of a gang start within this time of each other
EXCHANGE_SECONDS = 120  # far more than an epoch takes, so longer means that a worker is gone
LINE_BYTES_MAX = 1 << 20  # a set of weights is under 20 KB; a longer line is not from a worker


class Stopped(Exception):
    """SIGTERM came."""


def connect(rank, size, address, port):
    """The group of this job's workers, once all are there."""
    if not 0 <= rank < size:
        raise ValueError(f"RANK {rank} must be from 0 to WORLD_SIZE {size} less 1")
    if size == 1:
        return Alone()
    if not address or not port:
        raise ValueError(f"WORLD_SIZE is {size}, so MASTER_ADDR and MASTER_PORT must be set")
    return First(size, int(port)) if rank == 0 else Other(rank, size, address, int(port))


class Alone:
    """A job of one worker: nothing to agree on."""

    rank, size = 0, 1

    def share(self, state):
        return state

    def average(self, weights, loss, images):
        return weights, loss, images


class First:
    """Rank 0: gathers from the others, and answers them all alike."""

    rank = 0

    def __init__(self, size, port):
        self.size = size
        self.others = {}
        limit = time.monotonic() + CONNECT_SECONDS
        with socket.create_server(("", port), backlog=size) as server:
            while len(self.others) < size - 1:
                server.settimeout(max(limit - time.monotonic(), 0.001))
                try:
                    line = Line(server.accept()[0])
                    rank = line.receive()["rank"]
                except TimeoutError:
                    absent = sorted(set(range(1, size)) - set(self.others))
                    raise OSError(f"ranks {absent} did not come within {CONNECT_SECONDS} s") from None
                except (OSError, ValueError, KeyError, TypeError):
                    continue  # whoever that was, it is none of the workers
                if rank in range(1, size) and rank not in self.others:
                    self.others[rank] = line

    def share(self, state):
        for line in self.others.values():
            line.send(state)
        return state

    def average(self, weights, loss, images):
        # In the order of ranks, since sums of floats depend on it.
        parts = [{"weights": weights, "loss": loss, "images": images}]
        parts += [self.others[rank].receive() for rank in sorted(self.others)]
        total = sum(part["images"] for part in parts)
        weights = [
            [sum(values) for values in zip(*rows)]
            for rows in zip(*(
                [[value * part["images"] / total for value in row] for row in part["weights"]]
                for part in parts
            ))
        ]
        agreed = {"weights": weights, "loss": sum(part["loss"] for part in parts), "images": total}
        return tuple(self.share(agreed).values())


class Other:
    """Any rank but 0."""

    def __init__(self, rank, size, address, port):
        self.rank, self.size = rank, size
        limit = time.monotonic() + CONNECT_SECONDS
        while True:
            try:
                self.line = Line(socket.create_connection((address, port), timeout=CONNECT_SECONDS))
                break
            except OSError as error:
                if time.monotonic() > limit:
                    raise OSError(f"rank 0 at {address}:{port} does not answer: {error}") from error
                time.sleep(0.1)  # rank 0 may start later than this one
        self.line.send({"rank": rank})

    def share(self, _state):
        return self.line.receive()

    def average(self, weights, loss, images):
        self.line.send({"weights": weights, "loss": loss, "images": images})
        agreed = self.line.receive()
        return agreed["weights"], agreed["loss"], agreed["images"]


class Line:
    """A connection on which each message is a line of JSON."""

    def __init__(self, connection):
        connection.settimeout(EXCHANGE_SECONDS)
        self.connection = connection
        self.reader = connection.makefile("rb")

    def send(self, message):
        self.connection.sendall(json.dumps(message).encode("ascii") + b"\n")

    def receive(self):
        line = self.reader.readline(LINE_BYTES_MAX)
        if not line.endswith(b"\n"):
            raise OSError("another worker of this job has ended")
        return json.loads(line)
