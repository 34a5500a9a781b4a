"""Trains in forked children, some of which kill themselves at a given point. Run as a program by the tests.

    python train_child.py MODEL DATA EVAL FOLDER POINT...

For every POINT: a child that is killed there (SIGKILL), then one that resumes. A point is `module:function:call`, the
number of the call at which it dies. Point `none` is a run that is not killed.
"""

import os
import signal
import sys
from importlib import import_module
from pathlib import Path

import torch
import transformers.models.bert.modeling_bert  # noqa: F401 - loaded once, for all children

import gemel
import gemel.training.train


def arm(point):
    """Replace a function by one that dies in the middle of its n-th call: after the work, before the return."""
    path, name, calls = point.split(":")
    holder = import_module(path.split("/")[0])
    for part in path.split("/")[1:]:
        holder = getattr(holder, part)
    original, left = getattr(holder, name), [int(calls)]

    def dies(*arguments, **named):
        left[0] -= 1
        result = original(*arguments, **named)
        if left[0] == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        return result

    setattr(holder, name, dies)


def train(model, data, evaluation, out, resume):
    gemel.train(
        model,
        data,
        objective="classification",
        out=out,
        resume=resume,
        eval_data=evaluation,
        batch_size=4,
        max_steps=12,
        learning_rate=1e-3,
        eval_steps=3,
        threads=1,
        device="cpu",
    )


def in_child(work):
    """The exit status of a forked child that does the work."""
    child = os.fork()
    if child == 0:
        try:
            work()
        except BaseException as error:
            sys.stderr.write(f"{type(error).__name__}: {error}\n")
            os._exit(1)
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def main(model, data, evaluation, folder, *points):
    torch.set_num_threads(1)
    for number, point in enumerate(points):
        out = Path(folder) / str(number)
        if point != "none":
            status = in_child(
                lambda point=point, out=out: (arm(point), train(model, data, evaluation, out, False))
            )
            assert status == -signal.SIGKILL, f"{point}: the child ended with {status}"
        status = in_child(lambda out=out, point=point: train(model, data, evaluation, out, point != "none"))
        assert status == 0, f"{point}: the resumed child ended with {status}"


if __name__ == "__main__":
    main(*sys.argv[1:])
