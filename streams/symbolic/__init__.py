"""Proofs that a stream program is well-typed for every size: `forall.prove`."""
