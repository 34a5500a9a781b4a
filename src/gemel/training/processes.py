"""Several processes, one batch: each encodes its share of the items, all see all vectors.

Every process computes the same loss on the gathered vectors and sends the gradient of its own share through its
network; the sum over processes is the gradient of the whole batch, for any objective.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch
    from torch import Tensor
    from torch.nn import Parameter


@dataclass(frozen=True)
class Processes:
    """This process among all that train together."""

    rank: int = 0
    world: int = 1
    device: torch.device | None = None
    """Where tensors lie that processes send one another; a group of GPUs sends none that lie elsewhere."""

    @property
    def first(self) -> bool:
        """The one that writes files and speaks to the user."""
        return self.rank == 0

    def gather(self, own: Tensor, total: int) -> Tensor:
        """Rows dealt out by `Plan.share`, put together again: (total, d), without a graph."""
        if self.world == 1:
            return own.detach()
        import torch

        most = -(-total // self.world)
        padded = own.new_zeros(most, own.shape[1])
        padded[: len(own)] = own.detach()
        parts = [torch.empty_like(padded) for _ in range(self.world)]
        torch.distributed.all_gather(parts, padded)
        whole = own.new_empty(total, own.shape[1])
        for rank, part in enumerate(parts):
            rows = len(range(rank, total, self.world))
            whole[rank :: self.world] = part[:rows]
        return whole

    def sum_gradients(self, parameters: Iterable[Parameter]) -> None:
        """The gradients of all processes, added up."""
        if self.world == 1:
            return
        import torch

        for parameter in parameters:
            if parameter.requires_grad:
                if parameter.grad is None:  # a share may be empty, but all processes must take part
                    parameter.grad = torch.zeros_like(parameter)
                torch.distributed.all_reduce(parameter.grad)

    def tell(self, number: float | None) -> float | None:
        """The first process's number, in all of them; None stays None."""
        if self.world == 1:
            return number
        import torch

        given = float("nan") if number is None else number
        told = torch.tensor([given], dtype=torch.float64, device=self.device)
        torch.distributed.broadcast(told, src=0)
        return None if told.isnan().item() else float(told)

    def wait(self) -> None:
        """Until all processes are here."""
        if self.world > 1:
            import torch

            torch.distributed.barrier()
