"""The version of the toolchain. Files and connections carry it; pyproject.toml reads it here."""

__version__ = "0.2.0"
