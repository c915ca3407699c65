"""Programs of STeP's evaluation, as functions that build them."""
