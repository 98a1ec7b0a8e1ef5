"""Tests of the digits example: `python3 -m unittest discover examples/digits`."""

import json
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import unittest

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, HERE)

import train

LIMIT_SECONDS = 60  # for a run that takes a few seconds on a machine that does much else


def start(*arguments, folder=None, **environment):
    own = {"PATH": os.environ["PATH"], **environment}
    if folder:
        own["ALLOTMENT_CHECKPOINT_DIR"] = folder
    return subprocess.Popen(
        [sys.executable, os.path.join(HERE, "train.py"), *arguments],
        env=own, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )


def finish(process):
    out, err = process.communicate(timeout=LIMIT_SECONDS)
    return process.returncode, out, err


def run(*arguments, **rest):
    return finish(start(*arguments, **rest))


def epochs(out):
    return [line for line in out.splitlines() if line.startswith("epoch ")]


def read_checkpoint(folder):
    with open(os.path.join(folder, "checkpoint.json"), encoding="ascii") as file:
        return json.load(file)


class TrainingTest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = folder.name

    def test_the_data_has_1797_images_of_64_pixels_and_each_digit(self):
        images = train.load_images(os.path.join(HERE, "digits.txt"))
        self.assertEqual(len(images), 1797)
        self.assertEqual({len(pixels) for pixels, _ in images}, {65})
        self.assertEqual({digit for _, digit in images}, set(range(10)))
        self.assertEqual([digit for _, digit in images[:10]], list(range(10)))

    def test_twenty_epochs_learn_to_read_nine_digits_of_ten(self):
        code, out, err = run("--epochs", "20")
        self.assertEqual((code, err), (0, ""))
        accuracy = float(re.search(r"done: 20 epochs, accuracy ([\d.]+)", out).group(1))
        self.assertGreater(accuracy, 0.9)
        losses = [float(re.search(r"loss ([\d.]+)", line).group(1)) for line in epochs(out)]
        self.assertLess(losses[-1], losses[0] / 5)

    def test_the_first_line_says_what_the_job_was_given(self):
        _, out, _ = run(
            "--epochs", "1", folder=self.folder, CUDA_VISIBLE_DEVICES="GPU-1,GPU-2",
            RANK="0", WORLD_SIZE="1", MASTER_ADDR="10.0.0.1", MASTER_PORT="20001",
        )
        self.assertEqual(
            out.splitlines()[0],
            f"devices GPU-1,GPU-2; rank 0 of 1; master 10.0.0.1:20001; checkpoints {self.folder}",
        )

    def test_a_resumed_run_ends_as_an_uninterrupted_one(self):
        with tempfile.TemporaryDirectory() as whole:
            _, straight, _ = run("--epochs", "4", folder=whole)
            _, first, _ = run("--epochs", "2", folder=self.folder)
            _, second, _ = run("--epochs", "4", folder=self.folder)
            self.assertIn("resuming in epoch 3 after 0 images", second)
            self.assertEqual(
                [line.split(" ", 2)[2] for line in epochs(first) + epochs(second)],
                [line.split(" ", 2)[2] for line in epochs(straight)],
            )
            self.assertEqual(read_checkpoint(self.folder), read_checkpoint(whole))

    def test_sigterm_saves_in_the_middle_of_an_epoch_and_the_rest_is_as_if_it_had_not_come(self):
        process = start("--epochs", "100000", folder=self.folder)
        for line in process.stdout:
            if line.startswith("epoch 1/"):
                break
        process.send_signal(signal.SIGTERM)
        code, out, err = finish(process)
        self.assertEqual((code, err), (143, ""))
        saved = read_checkpoint(self.folder)
        self.assertRegex(out, rf"SIGTERM in epoch {saved['epoch'] + 1} after {saved['image']} images")
        epochs_in_all = str(saved["epoch"] + 1)
        code, _, _ = run("--epochs", epochs_in_all, folder=self.folder)
        self.assertEqual(code, 0)
        with tempfile.TemporaryDirectory() as whole:
            run("--epochs", epochs_in_all, folder=whole)
            self.assertEqual(read_checkpoint(self.folder), read_checkpoint(whole))

    def test_a_checkpoint_that_cannot_be_used_is_said_and_the_work_starts_anew(self):
        path = os.path.join(self.folder, "checkpoint.json")
        for content, words in [
            ("{", "can't be used"),
            ("[]", "can't be used"),
            (json.dumps({"seed": 0, "epoch": 0, "image": 0, "loss": 0, "weights": [[1]]}), "wrong shape"),
            (json.dumps({"seed": 7}), "of seed 7, not 0"),
        ]:
            with self.subTest(content=content):
                with open(path, "w", encoding="ascii") as file:
                    file.write(content)
                code, out, _ = run("--epochs", "1", folder=self.folder)
                self.assertEqual(code, 0)
                self.assertIn(words, out)
                self.assertIn("epoch 1/1", out)

    def test_two_workers_agree_on_the_weights(self):
        workers = self.start_workers("--epochs", "3")
        results = [finish(worker) for worker in workers]
        self.assertEqual([code for code, _, _ in results], [0, 0], results)
        ends = {out.splitlines()[-1] for _, out, _ in results}
        self.assertEqual(len(ends), 1, ends)
        self.assertEqual(read_checkpoint(self.folder)["epoch"], 3)

    def test_a_worker_whose_peer_ends_fails_with_a_sentence(self):
        workers = self.start_workers("--epochs", "100000")
        for line in workers[0].stdout:
            if line.startswith("epoch 1/"):
                break
        workers[1].kill()
        finish(workers[1])
        code, _, err = finish(workers[0])
        self.assertEqual(code, 1)
        self.assertIn("train.py: ", err)

    def test_sigterm_to_a_worker_that_waits_for_others_ends_it(self):
        worker = start("--epochs", "1", RANK="0", WORLD_SIZE="2", MASTER_ADDR="127.0.0.1",
                       MASTER_PORT=str(free_port()))
        worker.stdout.readline()
        worker.send_signal(signal.SIGTERM)
        self.assertEqual(finish(worker)[0], 143)

    def test_wrong_words_are_refused(self):
        code, _, err = run("--epochs", "0")
        self.assertEqual(code, 2)
        self.assertIn("--epochs 0: must be 1 or more", err)
        code, _, err = run("--epochs", "1", RANK="2", WORLD_SIZE="2")
        self.assertEqual(code, 1)
        self.assertIn("RANK 2", err)

    def start_workers(self, *arguments):
        port = str(free_port())
        return [
            start(*arguments, folder=self.folder, RANK=str(rank), WORLD_SIZE="2",
                  MASTER_ADDR="127.0.0.1", MASTER_PORT=port)
            for rank in range(2)
        ]


def free_port():
    with socket.create_server(("127.0.0.1", 0)) as server:
        return server.getsockname()[1]


if __name__ == "__main__":
    unittest.main()
