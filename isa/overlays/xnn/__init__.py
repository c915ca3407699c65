"""The XNN overlay on the VCK190: units, streams, rates. Source: contract sections 1 and 2, paper section 4 and Fig. 10.

`XNN_BASE` is the published machine, `XNN` the same with our opcodes 8 to 14 (docs/extension.md). What the rates
mean is in docs/time.md#what-time-means; each says where it comes from and whether it was calibrated on published
latencies.
"""

from .wiring import XNN, XNN_BASE

__all__ = ["XNN", "XNN_BASE"]
