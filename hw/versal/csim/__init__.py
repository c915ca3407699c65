"""The machine's C++ sources, running on this computer."""
