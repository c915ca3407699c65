"""Whether accesses to tensors that task instances share are ordered by tokens."""
