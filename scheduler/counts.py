"""What the fields of an MME op count to."""

from ..isa.overlays.xnn_formats import Mme

MOST_A_ITER, MOST_B_ITER, MOST_K_ITER, MOST_ACC_A = (
    Mme.field(name).bounds[1] for name in ("a_iter", "b_iter", "k_iter", "acc_a")
)
