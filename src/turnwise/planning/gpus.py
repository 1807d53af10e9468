"""Lists the GPUs that a plan or a measurement can name, with the numbers from their data sheets."""

from __future__ import annotations

from dataclasses import dataclass

# From the manufacturer's data sheets: memory in 10^9 bytes, dense bfloat16 TFLOP/s, memory bandwidth in TB/s.
GPUS = {
    "a100": (80.0, 312.0, 2.04),
    "h100": (80.0, 989.0, 3.35),
    "h200": (141.0, 989.0, 4.8),
    "b200": (180.0, 2250.0, 8.0),
}


@dataclass(frozen=True, slots=True)
class Gpu:
    """A GPU, and the fractions of its peak throughput and bandwidth that a program reaches.

    Attributes:
        memory_gb: memory in 10^9 bytes.
        peak_tflops: peak throughput in TFLOP/s, dense, in bfloat16.
        bandwidth_tb_s: memory bandwidth in TB/s.
        utilisation: fraction of the peak throughput that prefill and training reach.
        bandwidth_utilisation: fraction of the memory bandwidth that decoding reaches.

    Raises:
        ValueError: a number is out of range.
    """

    name: str
    memory_gb: float
    peak_tflops: float
    bandwidth_tb_s: float
    utilisation: float = 0.35
    bandwidth_utilisation: float = 0.5

    def __post_init__(self) -> None:
        for name in ("memory_gb", "peak_tflops", "bandwidth_tb_s"):
            if not getattr(self, name) > 0:
                raise ValueError(f"{name} must be above 0, got {getattr(self, name)}")
        for name in ("utilisation", "bandwidth_utilisation"):
            if not 0 < getattr(self, name) <= 1:
                raise ValueError(f"{name} must be in (0, 1], got {getattr(self, name)}")

    def seconds(self, operations: float, moved: float = 0.0) -> float:
        """Returns the seconds of a computation according to the roofline model: the time to compute ``operations``
        FLOPs or the time to move ``moved`` bytes, whichever is longer.
        """
        computing = operations / (self.peak_tflops * 1e12 * self.utilisation)
        return max(computing, moved / (self.bandwidth_tb_s * 1e12 * self.bandwidth_utilisation))
