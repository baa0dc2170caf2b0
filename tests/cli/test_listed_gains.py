"""The gain of a rung as `ladder list` and `ladder show` tell it: by both clocks where a result has both."""

from ladder.cli import listing
from ladder.plan import catalog
from tests.support import made_up, two_clocks, typed


def told(made, name):
    rung = next(rung for rung in typed.typed(made).rungs if rung.name == name)
    return listing._gain(rung), listing._gain(rung, "vs previous")


def test_both_clocks_are_told_where_both_are_known():
    short, long = told(two_clocks.run(), "channels_last")
    assert short == "GPU 1.13x, step less than 8.9%"
    assert long.startswith("GPU 1.13x vs previous (1.122-1.136x), faster; step less than 8.9% vs previous (")


def test_too_few_generations_are_no_answer():
    short, long = told(two_clocks.run(2), "bf16")
    assert short == "GPU 1.26x?, step 1.05x?" and long.count("too few generations") == 2


def test_a_wide_interval_has_its_ends() -> None:
    made = two_clocks.run()
    next(each for each in made["rungs"] if each["name"] == "bf16")["gain"]["interval"] = [0.2, 30.0]
    assert "(0.200-30.000x)" in told(made, "bf16")[1]


def test_the_prediction_is_the_articles_over_the_same_rung_or_the_rungs_own_words():
    made = typed.typed(two_clocks.run())
    assert (
        listing._predicted("bf16", made) == "1.68x by the article (265 -> 158 ms/step, channels_last -> bf16)"
    )
    rung = catalog.load_rung("fused_rgb")
    assert listing._predicted("fused_rgb", made) == f"no number in the article; {rung.summary}"
    assert listing._predicted("baseline", made).startswith("no number in the article; ")


def test_an_older_result_has_the_step_alone():
    made = made_up.judged_run()
    made["rungs"][5] |= {"verdict": "no measurable gain", "gpu_gain": None}
    assert told(made, "cuda_graphs")[0] == "no gain"
    assert told(made_up.gpu_run(), "cuda_graphs") == ("", "")
