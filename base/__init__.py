"""What every floor uses: errors, findings, files, durations."""
