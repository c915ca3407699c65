"""Generation: sequences that are decoded together, join and leave between steps, and are sampled token by token."""

from .batching import Generation as Generation
from .batching import Stream as Stream
from .decoder import Decoder as Decoder
from .folder import save_folder as save_folder
from .loaded import LoadedDecoder as LoadedDecoder
from .loaded import load as load
from .reference import IntegerReference as IntegerReference
from .sampling import Sampling as Sampling
from .slots import CHUNK as CHUNK
from .slots import Slots as Slots
from .stage import load_decoder_shard as load_decoder_shard
from .stage import load_decoder_stage as load_decoder_stage
