"""Stream programs: `rsn run FILE.py`."""
