"""Serving: how requests queue, share runs, and are answered. The runner (`rsn.host.runner`) joins these parts."""

from .health import Health, State
from .policy import ALONE, QueueFull, RequestTimeout, Serving

__all__ = ["ALONE", "Health", "QueueFull", "RequestTimeout", "Serving", "State"]
