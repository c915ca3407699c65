"""Types and functions that every other folder uses: errors, findings, files, durations."""
