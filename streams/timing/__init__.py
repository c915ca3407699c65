"""The time of a stream program: a compiled evaluation of the beats of its task instances."""
