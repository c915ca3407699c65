"""C++ sources of the RSN-XNN machine for the VCK190, and their checks."""
