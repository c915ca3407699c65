import numpy as np
from rsn.streams.dynamic import *

with Program() as program:
    rows = program.input("rows", [3], tile(1, 4))
    weights = Tensor.of(np.arange(32.0).reshape(4, 8) / 7, name="w")
    loaded = Flatten(0, 1)(LinearOffChipLoad(weights, (4, 8), (1, 1), (1, 1))(rows))
    program.output("sums", Map(RowSum())(Map(Matmul(dtype="f32"))(rows, Flatten(0, 1)(loaded))))
