"""The devices of a run: the accelerator, its arithmetic precision, and the processes that train together.

Some virtual machines announce AMX but leave CPUID leaf 0x1D empty. oneDNN, which torch uses, then dies with an illegal
instruction at the first bf16 product, and takes the whole process with it. So bf16 and fp16 are tried in a child
process first; with ONEDNN_MAX_CPU_ISA set, oneDNN does not use AMX and works.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING

from gemel.errors import InputError, MissingExtra, WorkError
from gemel.files.machine import cores_per_process, disable_usage_reports, run_python
from gemel.training.journal import check_trackers
from gemel.training.options import TrainOptions

if TYPE_CHECKING:
    import torch
    from accelerate import Accelerator
    from torch import Tensor
    from torch.nn import Parameter

SAFE_SETTING = {"ONEDNN_MAX_CPU_ISA": "AVX512_CORE_BF16"}
_TYPES = {"bf16": "bfloat16", "fp16": "float16"}
_TIMEOUT_S = 300.0  # a cold start of torch on a slow disk

# Forward and backward of a layer, under autocast as accelerate does it.
_PROGRAM = """
import sys, torch
with torch.autocast("cpu", dtype=getattr(torch, sys.argv[1])):
    layer = torch.nn.Linear(64, 64)
    layer(torch.ones(32, 64, requires_grad=True)).float().sum().backward()
"""

Probe = Callable[[str, bool], bool]
"""Whether products of a precision work on this processor, with torch's defaults or with `SAFE_SETTING`."""


def open_accelerator(options: TrainOptions) -> Accelerator:
    """Device, precision and processes of a run, from accelerate; sets torch's threads and seed."""
    prepare_low_precision(options.mixed_precision, device=options.device)
    disable_usage_reports("huggingface_hub")
    try:
        import torch
        from accelerate import Accelerator
        from accelerate.state import AcceleratorState
    except ImportError as error:
        raise MissingExtra("training", error.name or "torch", "train") from error
    check_trackers(options.tracker)
    launched = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))  # processes of a launcher on this machine
    torch.set_num_threads(options.threads or cores_per_process(launched))
    torch.manual_seed(options.seed)
    AcceleratorState._reset_state()  # a second run in a program may use another precision or device
    accelerator = Accelerator(cpu=options.device == "cpu", mixed_precision=options.mixed_precision)
    if options.device is not None and accelerator.device.type != options.device.split(":")[0]:
        raise InputError(
            f"device {options.device!r} is not available; this machine has {accelerator.device.type!r}"
        )
    return accelerator


def prepare_low_precision(precision: str, *, device: str | None = None, probe: Probe | None = None) -> None:
    """Make bf16 or fp16 arithmetic safe in this process, or raise a WorkError that says how to start it.

    Call it before torch is imported: the setting that avoids the fault is read when torch loads. Only products on the
    CPU are concerned, so a GPU that is present or requested is never refused.
    """
    probe = probe or _child_survives
    if precision not in _TYPES or probe(precision, False):
        return
    setting = "".join(f"{name}={value}" for name, value in SAFE_SETTING.items())
    safe = probe(precision, True)
    if safe and "torch" not in sys.modules:
        os.environ.update(SAFE_SETTING)
    elif not _on_gpu(device):
        fault = f"mixed_precision={precision!r} ends torch on this processor with an illegal instruction"
        if not safe:
            raise WorkError(f"{fault}, also with {setting}. Train with mixed_precision='no'")
        raise WorkError(
            f"{fault} unless {setting} is set before torch is imported, and this program has imported it already. "
            "Set that environment variable and start the program again, or train with mixed_precision='no'"
        )


@cache
def _child_survives(precision: str, safe: bool) -> bool:
    done = run_python(
        ["-c", _PROGRAM, _TYPES[precision]], environment=SAFE_SETTING if safe else {}, timeout_s=_TIMEOUT_S
    )
    # A signal is negative, or above a byte on Windows. A Python exception (torch is missing) is reported elsewhere.
    return 0 <= done.returncode <= 255


def _on_gpu(device: str | None) -> bool:
    if device is not None:
        return not device.startswith("cpu")
    import torch

    return bool(torch.cuda.is_available())


@dataclass(frozen=True)
class Processes:
    """This process among all that train together.

    Each encodes its share of a batch, all compute the same loss on the gathered vectors, and each sends the gradient
    of its share through its network: the sum over processes is the gradient of the whole batch, for any objective.
    """

    rank: int = 0
    world: int = 1
    device: torch.device | None = None
    """Of the tensors that processes exchange; GPUs exchange none that are on the CPU."""

    @property
    def first(self) -> bool:
        """The one that writes files and prints."""
        return self.rank == 0

    def gather(self, own: Tensor, total: int) -> Tensor:
        """(total, d) or (total, tokens, d): the rows of all processes, in the order before `BatchPlan.share`.

        Detached. Token vectors are filled up with zeros to those of the longest text.
        """
        if self.world == 1:
            return own.detach()
        import torch

        most = -(-total // self.world)
        shape = list(own.shape[1:])
        if len(shape) > 1:  # vectors of tokens: as many as the longest text of all processes has
            longest = torch.tensor([shape[0]], device=own.device)
            torch.distributed.all_reduce(longest, op=torch.distributed.ReduceOp.MAX)
            shape[0] = int(longest)
        padded = own.new_zeros(most, *shape)
        padded[: len(own), : own.shape[1]] = own.detach()
        parts = [torch.empty_like(padded) for _ in range(self.world)]
        torch.distributed.all_gather(parts, padded)
        gathered = own.new_empty(total, *shape)
        for rank, part in enumerate(parts):
            rows = len(range(rank, total, self.world))
            gathered[rank :: self.world] = part[:rows]
        return gathered

    def sum_gradients(self, parameters: Iterable[Parameter]) -> None:
        """Replace each gradient by the sum over all processes."""
        if self.world == 1:
            return
        import torch

        for parameter in parameters:
            if parameter.requires_grad:
                if parameter.grad is None:  # a share may be empty, but all processes must take part
                    parameter.grad = torch.zeros_like(parameter)
                torch.distributed.all_reduce(parameter.grad)

    def broadcast(self, number: float | None) -> float | None:
        """The first process's number, in all of them; None stays None."""
        if self.world == 1:
            return number
        import torch

        sent = torch.tensor(
            [float("nan") if number is None else number], dtype=torch.float64, device=self.device
        )
        torch.distributed.broadcast(sent, src=0)
        return None if sent.isnan().item() else float(sent)

    def barrier(self) -> None:
        """Wait until all processes are here."""
        if self.world > 1:
            import torch

            torch.distributed.barrier()
