"""Defines the critic, a transformer with a scalar head that predicts the success of histories (TRACE Eq. 17)."""

from __future__ import annotations

from typing import Any

import torch
from lightning import LightningModule
from torch import Tensor, nn

from turnwise.models.fast_llama import Forward, forward_of_body, own_forward
from turnwise.models.packed_logprobs import plan_of
from turnwise.rollouts.predictors.pack_histories import Histories


class Critic(LightningModule):
    """Predicts V(history) = sigmoid(w . h + b), where h is the last layer's hidden state at the history's last token,
    and w and b are the weights of the scalar head.

    w and b are 0 initially, so that every history has the value 1/2 before training.

    Args:
        backbone: a transformer without an output head, with tree attention.
        learning_rate: learning rate of AdamW.
        weight_decay: weight decay of AdamW.
        autocast: whether to compute in bfloat16, whatever dtype the weights have.
    """

    def __init__(
        self, backbone: Any, learning_rate: float = 3e-5, weight_decay: float = 0.0, autocast: bool = False
    ) -> None:
        super().__init__()
        self.backbone = backbone
        self.head = nn.Linear(backbone.config.hidden_size, 1, dtype=torch.float32)
        nn.init.zeros_(self.head.weight)
        nn.init.zeros_(self.head.bias)
        self.learning_rate, self.weight_decay, self.autocast = learning_rate, weight_decay, autocast
        self.eval()  # no dropout, so that prediction and training see the same value of a history

    def forward(self, histories: Histories) -> Tensor:
        """Returns the logits (Q,) of Q histories. The predicted success is the sigmoid of the logit."""
        return self._logits(histories, own_forward(self.backbone))

    @torch.no_grad()
    def values(self, histories: Histories) -> Tensor:
        """Returns the predicted success (Q,) of Q histories, in [0, 1], without gradients."""
        quickest = own_forward if self.autocast else forward_of_body
        return torch.sigmoid(self._logits(histories, quickest(self.backbone)))

    def _logits(self, histories: Histories, forward: Forward) -> Tensor:
        ids_BS, position_BS, end_BS, last_Q = (
            x.to(self.device) for x in (histories.ids_BS, histories.position_BS, histories.end_BS, histories.last_Q)
        )
        with torch.autocast(self.device.type, torch.bfloat16, enabled=self.autocast):
            hidden_BSC = forward(ids_BS, position_BS, plan_of(end_BS))
        return self.head(hidden_BSC.flatten(0, 1)[last_Q].float()).squeeze(-1)

    def training_step(self, batch: tuple[Histories, Tensor], batch_idx: int = 0) -> Tensor:
        """Returns the sum of squared errors over the Q histories of a forward pass (TRACE Eq. 19 without the mean).

        ``batch`` holds the histories and their targets (Q,).
        """
        histories, target_Q = batch
        return (torch.sigmoid(self(histories)) - target_Q.to(self.device)).square().sum()

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW(self.parameters(), lr=self.learning_rate, weight_decay=self.weight_decay, fused=True)
