"""What a stream network is, and how it runs. Knows no instruction and no overlay."""
