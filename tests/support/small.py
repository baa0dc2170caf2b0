"""The smallest workloads that exercise every layer of the model; a phase takes milliseconds on a CPU."""

SMALL = {
    "resolution": 16,
    "channel_base": 128,
    "channel_max": 16,
    "z_dim": 16,
    "w_dim": 16,
    "mapping_layers": 2,
    "batch": 4,
}

# The fewest resolutions, channels and samples: for kernels in Triton's interpreter.
LEAST = {
    "resolution": 8,
    "channel_base": 32,
    "channel_max": 4,
    "z_dim": 4,
    "w_dim": 4,
    "mapping_layers": 1,
    "batch": 2,
}

# Between the two: for whole trainings, one after the other.
LITTLE = {
    "resolution": 8,
    "channel_base": 64,
    "channel_max": 8,
    "z_dim": 8,
    "w_dim": 8,
    "mapping_layers": 1,
    "batch": 4,
}
