"""What HLS would make of C++ sources: their loops, memories, processes and ports, derived without an HLS tool."""
