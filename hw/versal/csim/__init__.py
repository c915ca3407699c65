"""Native run: the machine's C++ sources, compiled for this computer."""
