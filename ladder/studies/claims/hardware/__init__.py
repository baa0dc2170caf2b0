"""What the hardware says of a kernel: counters, registers and occupancy."""
