import pytest

from stylegan_lite import ConfigError, Recipe, Workload

SMALL = {"resolution": 32, "channel_base": 1024, "batch": 4}


def test_a_config_survives_the_trip_through_plain_data():
    workload = Workload.from_dict(SMALL | {"norm": "instance", "r1_gamma": 2})
    assert Workload.from_dict(workload.to_dict()) == workload
    recipe = Recipe.from_dict({"precision": "bf16", "workers": 2, "prefetch_factor": 3})
    assert Recipe.from_dict(recipe.to_dict()) == recipe


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"resolutoin": 32}, ["w.yaml", "'resolutoin'", "resolution"]),
        (SMALL | {"batch": "8"}, ["w.yaml", "batch", "an integer", "'8'"]),
        (SMALL | {"batch": True}, ["batch", "an integer", "True"]),
        (SMALL | {"norm": "batch"}, ["norm", "demod, instance"]),
        (SMALL | {"lr": float("nan")}, ["lr", "a number"]),
        (SMALL | {"resolution": 48}, ["resolution", "power of two", "48"]),
        (SMALL | {"batch": 6}, ["batch", "multiple of mbstd_group (4)", "6"]),
        (SMALL | {"pl_interval": 3}, ["pl_interval", "16-step cycle"]),
        (SMALL | {"channel_base": 16}, ["channel_base", "32"]),
        ({"resolution": 32, "batch": 4}, ["missing key", "channel_base"]),
        (["resolution"], ["w.yaml", "mapping"]),
        (SMALL | {"beta2": 1.0}, ["beta2", "below 1"]),
        (SMALL | {"r1_gamma": -1.0}, ["r1_gamma", "0 or more"]),
        (SMALL | {"pl_weight": -1.0}, ["pl_weight", "0 or more"]),
    ],
)
def test_a_wrong_workload_is_refused_in_one_line_naming_file_and_key(values, words):
    with pytest.raises(ConfigError) as refusal:
        Workload.from_dict(values, where="w.yaml")
    message = str(refusal.value)
    assert "\n" not in message
    assert all(word in message for word in words), message


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"cuda_graph": True}, ["'cuda_graph'", "cuda_graphs"]),
        ({"channels_last": 1}, ["channels_last", "true or false"]),
        ({"precision": "fp8"}, ["precision", "fp32"]),
        ({"cuda_graphs": True}, ["cuda_graphs", "adam: capturable"]),
        ({"async_copy": True}, ["async_copy", "pin_memory"]),
        ({"persistent_workers": True}, ["persistent_workers", "workers: 1"]),
        ({"prefetch_factor": 0, "workers": 1}, ["prefetch_factor", "at least 1"]),
        ({"workers": -1}, ["workers", "-1"]),
    ],
)
def test_an_impossible_recipe_is_refused_in_one_line(values, words):
    with pytest.raises(ConfigError) as refusal:
        Recipe.from_dict(values, where="r.yaml")
    message = str(refusal.value)
    assert "\n" not in message and message.startswith("r.yaml")
    assert all(word in message for word in words), message


@pytest.mark.parametrize("key", ["cuda_graphs", "pin_memory"])
def test_what_needs_cuda_is_refused_on_the_cpu(key):
    recipe = Recipe.from_dict({key: True, "adam": "capturable"})
    with pytest.raises(ConfigError, match=key):
        recipe.refuse_on("cpu")
    recipe.refuse_on("cuda")


def test_the_recipe_defaults_are_the_baseline():
    baseline = Recipe()
    assert not any(
        (
            baseline.channels_last,
            baseline.fused_norm,
            baseline.set_to_none,
            baseline.cuda_graphs,
            baseline.fused_act,
            baseline.workers,
        )
    )
    assert baseline.precision == "fp32"


def test_r1_gamma_follows_resolution_and_batch_unless_set():
    assert Workload(resolution=256, channel_base=16384, batch=8).gamma == pytest.approx(1.6384)
    assert Workload(resolution=256, channel_base=16384, batch=8, r1_gamma=10.0).gamma == 10.0
