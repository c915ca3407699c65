"""Generation: sequences that are decoded together, join and leave between steps, and are sampled token by token."""

from .batching import Generation as Generation
from .batching import Stream as Stream
from .decoder import CHUNK as CHUNK
from .decoder import Decoder as Decoder
from .sampling import Sampling as Sampling
