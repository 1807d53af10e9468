"""The critic: a transformer with a scalar head that predicts the success of histories (TRACE Eq. 17)."""

from __future__ import annotations

from typing import Any

import torch
from lightning import LightningModule
from torch import Tensor, nn

from turnwise.models.attention import Causal
from turnwise.predictors.rows import Histories


class Critic(LightningModule):
    """V(history) = sigmoid(w . h + b), h the last hidden state of the history's last token.

    The head starts at 0, so that every history is worth 1/2 before anything has been seen.

    Args:
        backbone: a transformer without head, under tree attention.
        learning_rate, weight_decay: of AdamW.
        autocast: compute in bfloat16 whatever the weights are kept in.
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
        self.eval()  # no dropout: the same history has the same value when it is asked about and when it is learned

    def forward(self, histories: Histories) -> Tensor:
        """Logits of the histories, (Q,); :meth:`values` are their sigmoids."""
        ids_BS, end_Q = histories.ids_BS.to(self.device), histories.end_Q.to(self.device)
        position_BS = torch.arange(ids_BS.shape[1], device=self.device).expand_as(ids_BS)
        with torch.autocast(self.device.type, torch.bfloat16, enabled=self.autocast):
            out = self.backbone(input_ids=ids_BS, position_ids=position_BS, use_cache=False, plan=Causal())
        hidden_Q = out.last_hidden_state.flatten(0, 1)[end_Q]
        return self.head(hidden_Q.float()).squeeze(-1)

    @torch.no_grad()
    def values(self, histories: Histories) -> Tensor:
        """Predicted success of the histories, (Q,), in [0, 1]."""
        return torch.sigmoid(self(histories))

    def training_step(self, batch: tuple[Histories, Tensor], batch_idx: int = 0) -> Tensor:
        """Summed squared error (Eq. 19 before its mean) of a pass against its targets, (Q,)."""
        histories, target_Q = batch
        return (torch.sigmoid(self(histories)) - target_Q.to(self.device)).square().sum()

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW(self.parameters(), lr=self.learning_rate, weight_decay=self.weight_decay)
