"""The largest counts that the fields of an MME op can hold."""

from ..isa.overlays.xnn.formats import Mme

MAX_A_ITER, MAX_B_ITER, MAX_K_ITER, MAX_ACC_A = (
    Mme.field(name).bounds[1] for name in ("a_iter", "b_iter", "k_iter", "acc_a")
)
