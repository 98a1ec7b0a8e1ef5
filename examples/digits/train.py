"""Trains a classifier of handwritten digits, in Python's standard library alone.

A softmax regression on the 1,797 images of `digits.txt` by stochastic gradient descent.
It is small, but it is the real thing in what a scheduler sees of it: it learns, it
reports, it saves, it goes at once when told to, and it goes on where it was.
"""

import argparse
import base64
import bz2
import json
import math
import os
import random
import signal
import sys
from operator import mul

from workers import Stopped, connect

TEST_EVERY = 6  # each sixth image, 300 in all, is kept apart for the accuracy
PIXELS = 64
DIGITS = 10
LEARNING_RATE = 0.05
EXIT_ON_SIGTERM = 128 + signal.SIGTERM


def load_images(path):
    """The images as lists of 64 pixels from 0 to 1 and a constant 1, each with its digit."""
    with open(path, encoding="ascii") as file:
        packed = "".join(line for line in file if not line.startswith("#"))
    lines = bz2.decompress(base64.b64decode(packed)).decode("ascii").splitlines()
    return [
        ([(ord(pixel) - ord("a")) / 16 for pixel in line[:PIXELS]] + [1.0], int(line[PIXELS:]))
        for line in lines
    ]


class Model:
    """Ten weighted sums over the pixels; the largest names the digit."""

    def __init__(self, weights=None):
        self.weights = weights or [[0.0] * (PIXELS + 1) for _ in range(DIGITS)]

    def scores(self, pixels):
        return [sum(map(mul, weights, pixels)) for weights in self.weights]

    def learn(self, pixels, digit):
        """Takes one step towards the right answer; returns the loss before it."""
        scores = self.scores(pixels)
        highest = max(scores)
        exponents = [math.exp(score - highest) for score in scores]
        total = sum(exponents)
        for candidate, exponent in enumerate(exponents):
            step = LEARNING_RATE * ((candidate == digit) - exponent / total)
            self.weights[candidate] = [
                weight + step * pixel for weight, pixel in zip(self.weights[candidate], pixels)
            ]
        return math.log(total) - (scores[digit] - highest)

    def accuracy(self, images):
        right = 0
        for pixels, digit in images:
            scores = self.scores(pixels)
            right += scores.index(max(scores)) == digit
        return right / len(images)


class Checkpoint:
    """Where the work is: epochs done, images done in this one, their loss, the weights."""

    def __init__(self, folder, seed):
        self.path = folder and os.path.join(folder, "checkpoint.json")
        self.seed = seed

    def load(self):
        """What was saved, or None; a file that can't be used is said and left alone."""
        if self.path is None or not os.path.exists(self.path):
            return None
        try:
            with open(self.path, encoding="ascii") as file:
                saved = json.load(file)
            if saved["seed"] != self.seed:
                print(f"{self.path} is of seed {saved['seed']}, not {self.seed}: starting anew", flush=True)
                return None
            shape = [len(weights) for weights in saved["weights"]]
            if shape != [PIXELS + 1] * DIGITS:
                raise ValueError(f"weights of the wrong shape {shape}")
            return {"epoch": int(saved["epoch"]), "image": int(saved["image"]),
                    "loss": float(saved["loss"]), "weights": saved["weights"]}
        except (OSError, ValueError, KeyError, TypeError) as error:
            print(f"{self.path} can't be used ({error}): starting anew", flush=True)
            return None

    def save(self, state):
        """Replaces the file in one step, so that a kill leaves the old one or the new one."""
        if self.path is None:
            return
        beside = f"{self.path}.{os.getpid()}"
        with open(beside, "w", encoding="ascii") as file:
            json.dump({"seed": self.seed, **state}, file)
            file.flush()
            os.fsync(file.fileno())
        os.replace(beside, self.path)


class Training:
    """One worker's run over the epochs."""

    def __init__(self, options, group, checkpoint, stop):
        images = load_images(options.data)
        self.test = images[::TEST_EVERY]
        training = [image for place, image in enumerate(images) if place % TEST_EVERY]
        self.own = training[group.rank::group.size]
        self.options, self.group, self.checkpoint, self.stop = options, group, checkpoint, stop

    def run(self):
        # Rank 0 alone reads and writes checkpoints, so that a folder on its machine is enough.
        fresh = {"epoch": 0, "image": 0, "loss": 0.0, "weights": Model().weights}
        mine = (self.checkpoint.load() if self.group.rank == 0 else None) or fresh
        state = self.group.share(mine)
        if state["epoch"] or state["image"]:
            print(f"resuming in epoch {state['epoch'] + 1} after {state['image']} images", flush=True)
        model = Model(state["weights"])
        while state["epoch"] < self.options.epochs:
            state = self.run_epoch(model, state)
        print(f"done: {self.options.epochs} epochs, accuracy {model.accuracy(self.test):.4f}", flush=True)

    def run_epoch(self, model, state):
        epoch, loss = state["epoch"], state["loss"]
        # The order follows from seed, epoch and rank: a resumed epoch goes on in it.
        order = list(range(len(self.own)))
        random.Random(f"{self.options.seed}/{epoch}/{self.group.rank}").shuffle(order)
        # A worker alone saves wherever it stands. Of several none knows where the others
        # stand, so they go back to the epoch's start.
        start = {**state, "weights": [list(weights) for weights in model.weights]}
        try:
            for place in range(state["image"], len(order)):
                if self.stop.asked:
                    raise Stopped
                loss += model.learn(*self.own[order[place]])
                if self.group.size == 1:
                    start = {"epoch": epoch, "image": place + 1, "loss": loss, "weights": model.weights}
            with self.stop.at_once():
                model.weights, loss, images = self.group.average(model.weights, loss, len(order))
        except Stopped:
            self.leave(start)
        state = {"epoch": epoch + 1, "image": 0, "loss": 0.0, "weights": model.weights}
        print(
            f"epoch {epoch + 1}/{self.options.epochs} loss {loss / images:.4f}"
            f" accuracy {model.accuracy(self.test):.4f}",
            flush=True,
        )
        if self.group.rank == 0:
            self.checkpoint.save(state)
        return state

    def leave(self, state):
        if self.group.rank == 0:
            self.checkpoint.save(state)
        print(f"SIGTERM in epoch {state['epoch'] + 1} after {state['image']} images", flush=True)
        sys.exit(EXIT_ON_SIGTERM)


class Stop:
    """Whether SIGTERM came: looked at between images, raised only out of a wait."""

    def __init__(self):
        self.asked = False
        self.waiting = False
        signal.signal(signal.SIGTERM, self.ask)

    def ask(self, _number, _frame):
        self.asked = True
        if self.waiting:
            raise Stopped

    def at_once(self):
        return self

    def __enter__(self):
        self.waiting = True
        if self.asked:
            self.waiting = False
            raise Stopped

    def __exit__(self, *_):
        self.waiting = False


def parse_options(arguments):
    beside = os.path.join(os.path.dirname(os.path.abspath(__file__)), "digits.txt")
    parser = argparse.ArgumentParser(description="Train a classifier of handwritten digits.")
    parser.add_argument("--epochs", type=int, default=20, help="passes over the images (20)")
    parser.add_argument("--seed", type=int, default=0, help="what the order of images follows from (0)")
    parser.add_argument("--data", default=beside, help="the images (digits.txt beside this program)")
    options = parser.parse_args(arguments)
    if options.epochs < 1:
        parser.error(f"--epochs {options.epochs}: must be 1 or more")
    return options


def main(arguments=None):
    options = parse_options(arguments)
    stop = Stop()
    environment = os.environ.get
    rank, size = int(environment("RANK", "0")), int(environment("WORLD_SIZE", "1"))
    folder = environment("ALLOTMENT_CHECKPOINT_DIR")
    print(
        f"devices {environment('CUDA_VISIBLE_DEVICES') or 'none'}; rank {rank} of {size};"
        f" master {environment('MASTER_ADDR') or 'none'}:{environment('MASTER_PORT') or 'none'};"
        f" checkpoints {folder or 'none'}",
        flush=True,
    )
    if folder:
        os.makedirs(folder, exist_ok=True)
    try:
        with stop.at_once():
            group = connect(rank, size, environment("MASTER_ADDR"), environment("MASTER_PORT"))
        Training(options, group, Checkpoint(folder, options.seed), stop).run()
    except Stopped:
        # Before the first image there is nothing to save.
        sys.exit(EXIT_ON_SIGTERM)
    except (OSError, ValueError) as error:
        sys.exit(f"train.py: {error}")


if __name__ == "__main__":
    main()
