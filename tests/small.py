"""The smallest workload that exercises every layer of the model; a phase takes milliseconds on a CPU."""

SMALL = {
    "resolution": 16,
    "channel_base": 128,
    "channel_max": 16,
    "z_dim": 16,
    "w_dim": 16,
    "mapping_layers": 2,
    "batch": 4,
}
