"""A machine for mixtures of experts, whose unit Seq turns selectors into instructions of the other units."""

from .machine import MACHINE, moe

__all__ = ["MACHINE", "moe"]
