"""machine: 1 kernels, tiles of 32 x 64."""

from rsn.streams import *

input_2: f32[1, 1, 4, 16]
linear_weight: f32[1, 1, 16, 16]
linear_result: f32[1, 1, 4, 16]
linear_bias: f32[16]

input_2_tiles: Stream[f32[4, 16], 1]
linear_weight_tiles: Stream[f32[16, 16], 1]
linear_result_tiles: Stream[f32[4, 16], 1]


@task(mapping=[1], args=[input_2])
def load_input_2(input_2: f32[1, 1, 4, 16]) -> None:
    cycles(64)
    input_2_tiles.put(input_2[0, 0])
    cycles(8)


@task(mapping=[1], args=[linear_weight])
def load_linear_weight(linear_weight: f32[1, 1, 16, 16]) -> None:
    cycles(64)
    linear_weight_tiles.put(linear_weight[0, 0])
    cycles(11)


@task(mapping=[1], args=[linear_bias], rates=dict(matmul=8, elements=32))
def linear(linear_bias: f32[16]) -> None:
    # aten.linear.default at the top level
    kept_bias = linear_bias[:]
    total = input_2_tiles.get() @ linear_weight_tiles.get()
    linear_result_tiles.put(total + kept_bias[:])


@task(mapping=[1], args=[linear_result])
def store_linear_result(linear_result: f32[1, 1, 4, 16]) -> None:
    linear_result[0, 0] = linear_result_tiles.get()
    cycles(8)
    cycles(64)
