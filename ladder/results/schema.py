"""What a result of a stranger may hold: every key, and for each the values that a genuine run can write.

Whoever writes a new key into results adds it here: a key that is not named is refused. Results without the newer keys
(optional ones) stay valid.
"""

import dataclasses

from ladder.base import text
from ladder.base.rules import either, fields, items, mapping, maybe, number, one_of, pattern
from ladder.machine import environment, neighbours
from ladder.plan import content
from ladder.results import code_digest, identity
from ladder.results import store as results
from stylegan_lite.config import Recipe, Workload

TEXT = pattern(
    text.TEXT.pattern, f"plain text (1 to {text.LONGEST_TEXT} of letters, digits and  ._()+:@,/'#=-)"
)
PART = pattern(r"[a-z0-9][a-z0-9._-]{0,95}", "a name of a-z, 0-9, dot, underscore and hyphen")
IDENTIFIER = pattern(r"[A-Za-z][A-Za-z0-9_. ]{0,63}", "a name")
PHASE = one_of("G_main", "D_main", "G_pl", "D_r1")
KIND = one_of("host", "gpu")  # what bounds a rung
FLAG = one_of(True, False)
VERSION = maybe(TEXT)
MS = number(1e-4, 1e8)
SECONDS = number(0, 1e8)
BYTES = number(0, 2**50, whole=True)
COUNT = number(0, 1e9, whole=True)
FACTOR = number(1e-6, 1e6)
SCALAR = either(maybe(FLAG), number(-1e12, 1e12), TEXT)  # of a recipe, a workload or the settings of torch
MICROSECONDS = number(1e-6, 1e12)  # of a call: a time is never 0
SAMPLES = items(MS, 100_000)
NOTES = items(TEXT, 64)

MACHINE = fields(
    {
        "name": PART,
        "gpu": maybe(TEXT),
        "gpu_memory_gb": maybe(number(0.1, 1e5)),
        "driver": VERSION,
        "cuda": VERSION,
        "cudnn": VERSION,
        "torch": VERSION,
        "triton": VERSION,
        "python": TEXT,
        "cpu": TEXT,
        "cores": number(1, 1e5, whole=True),
        "ram_gb": number(0, 1e6),
        "os": TEXT,
        "device": one_of("cuda", "cpu"),
    }
)
WORKLOAD = fields(
    {
        "name": PART,
        "resolution": number(4, 2**16, whole=True),
        "batch": number(1, 2**16, whole=True),
        "data": one_of(None, "sample-photographs", "user-images"),
    },
    {field.name: SCALAR for field in dataclasses.fields(Workload) if field.name != "data"},
)
LADDER = fields(
    {"name": PART, "title": TEXT, "rungs": items(PART, 100, least=1)},
    {"digest": pattern(rf"[0-9a-f]{{{content.DIGITS}}}", f"a digest of {content.DIGITS} digits")},
)
CONDITIONS = {  # of every kind of result that is measured; where they say it
    environment.KEY: mapping(
        pattern(r"[A-Z][A-Z0-9_]{0,63}", "the name of a variable"), TEXT, environment.MOST
    ),
    identity.IMAGES: fields({"count": COUNT, "digest": pattern(r"[0-9a-f]{16}", "a digest of 16 digits")}),
}
PROTOCOL = fields(
    {
        "rounds": number(1, 1000, whole=True),
        "cycles": number(1, 100_000, whole=True),
        "cycle_steps": number(16, 16, whole=True),
        "seed": number(0, 2**32, whole=True),
        "quick": FLAG,
        "notes": NOTES,
    },
    {
        "settle_s": SECONDS,
        "settle_cycles": COUNT,
        "mode": one_of("cumulative", "solo", "leave-one-out"),
        "fixed": FLAG,
        "budget_s": maybe(SECONDS),
    },
)
RECIPE = fields({}, {field.name: SCALAR for field in dataclasses.fields(Recipe)})
SETTINGS = fields(
    {},
    dict.fromkeys(
        (
            "conv_fp32_precision",
            "matmul_fp32_precision",
            "cudnn_benchmark",
            "cudnn_deterministic",
            "adam_foreach",
            "adam_fused",
            "adam_capturable",
            "ema",
            "r1_gamma",
            "cpu_threads",
        ),
        SCALAR,
    ),
)

PERCENT = number(0, 100)
CLOCK = number(0, 1e5)
TENANCY = one_of("alone", "shared", "unknown")
GPU = either(  # `ladder.machine.gpu_state`: of one visit
    fields({"state": one_of("unknown"), "reason": TEXT, "tenancy": one_of("unknown")}),
    fields(
        {"state": one_of("known"), "polls": COUNT, "tenancy": TENANCY},
        {
            "longest_gap_ms": maybe(number(0, 1e8)),
            "sm_mhz": maybe(CLOCK),
            "sm_mhz_min": maybe(CLOCK),
            "memory_mhz": maybe(CLOCK),
            "temperature_c": maybe(number(-100, 300)),
            "power_w": maybe(number(0, 1e5)),
            "reasons": maybe(items(PART, 16)),
            "violation_ms": maybe(
                mapping(one_of("power", "thermal", "board_limit", "reliability"), number(-1e12, 1e12), 16)
            ),
            "ecc_errors": maybe(number(-1e12, 1e12)),
            "foreign_processes": maybe(COUNT),
            "display_processes": maybe(COUNT),
            "drift_bytes": maybe(BYTES),
            "quiet_percent": maybe(PERCENT),
        },
    ),
)
RUN_GPU = fields(
    {"state": one_of("known", "unknown"), "tenancy": TENANCY, "rejected_visits": COUNT, "notes": NOTES}
)
ROUND = fields(
    {"round": COUNT, "samples_ms": SAMPLES},
    {
        "event_ms": maybe(SAMPLES),
        "main_ms": maybe(MS),
        "lazy_ms": maybe(mapping(PHASE, number(-1e8, 1e8), 16)),  # what a phase adds; noise may exceed it
        "prepare_s": SECONDS,
        "capture_s": maybe(SECONDS),
        "cache_s": maybe(SECONDS),
        "compile_s": maybe(SECONDS),
        "compile_kernels_s": maybe(SECONDS),
        "start_s": maybe(SECONDS),
        "build_s": maybe(SECONDS),
        "visit_s": maybe(SECONDS),
        "beside": maybe(COUNT),
        "lead_in_cycles": COUNT,
        "settled": maybe(FLAG),
        "peak_rss_bytes": maybe(BYTES),
        "peak_reserved_bytes": maybe(BYTES),
        "peak_allocated_bytes": maybe(BYTES),
        "device_used_bytes": maybe(BYTES),
        "alloc_retries": maybe(COUNT),
        "canary_s": maybe(number(1e-9, 10)),
        "gpu": maybe(GPU),
        "rejected": NOTES,
        neighbours.KEY: maybe(number(0, 1)),
    },
)
INSPECTION = fields(
    {"error": maybe(TEXT)}, {"gpu_busy_ms": maybe(number(0, 1e8)), "kernels_per_step": maybe(number(0, 1e7))}
)
FAILED_AT = fields(
    {"round": maybe(COUNT)},
    dict.fromkeys(
        ("peak_rss_bytes", "peak_reserved_bytes", "peak_allocated_bytes", "device_used_bytes"), maybe(BYTES)
    ),
)
ERROR = number(0, 1e30)  # relative; a kernel may return anything
PARITY = fields(  # `ladder.parity.check`
    {"verdict": one_of("ok", "failed: parity"), "reason": maybe(TEXT), "problems": NOTES},
    {
        "phases": mapping(
            PHASE,
            mapping(
                IDENTIFIER,
                fields(
                    {"error": maybe(ERROR), "budget": maybe(ERROR)},
                    {
                        "nearest": TEXT,
                        "nearest_error": maybe(ERROR),
                        "nearest_budget": maybe(ERROR),
                        "judged": COUNT,
                        "unresolved": COUNT,
                    },
                ),
                16,
            ),
            16,
        ),
        "replays": mapping(PHASE, mapping(IDENTIFIER, either(ERROR, TEXT), 16), 16),
        "budget": mapping(IDENTIFIER, either(SCALAR, items(TEXT, 32)), 16),
        "reference": mapping(IDENTIFIER, either(SCALAR, items(TEXT, 32)), 16),
        "seconds": SECONDS,
    },
)
RECEIPTS = mapping(PART, fields({"engaged": FLAG, "lines": NOTES}), 64)  # `ladder.receipts.receipt`
NOTED = fields(  # of other tables than that of `kernels.choices`
    {
        "op": IDENTIFIER,
        "case": pattern(r"[ -~]{1,96}", "a line of printable ASCII"),
        "entry": pattern(r"[ -~]{1,300}", "a line of printable ASCII"),
        "rungs": items(PART, 100, least=1),
    }
)
CHOICE = fields(  # `kernels.choices`: a row that decided, what it says, and in which rungs
    {
        "op": IDENTIFIER,
        "direction": IDENTIFIER,
        **dict.fromkeys(("tile", "columns", "warps", "per_sm", "stages"), COUNT),
        "rungs": items(PART, 100, least=1),
    },
    {
        "itemsize": COUNT,
        "layout": one_of("nhwc", "nchw"),
        "architecture": COUNT,
        "size": one_of("small", "medium", "large"),
    },
)
BOUND = number(1e-30, 1e30)  # of an interval; `stats.within_everything` cuts what reaches further
INTERVAL = maybe(items(BOUND, 2, least=2))
FLOOR = number(0, 100)  # a difference of logarithms
GAIN = fields(  # `ladder.results.judging`
    {"against": PART, "ratio": FACTOR, "interval": INTERVAL, "rounds": COUNT},
    {"confidence": maybe(number(0, 1)), "least": maybe(FLOOR), "floor": maybe(FLOOR)},
)
TWIN = fields(
    {
        "name": PART,
        "of": PART,
        "status": one_of(*results.STATUSES),
        "reason": maybe(TEXT),
        "recipe": maybe(RECIPE),
        "settings": maybe(SETTINGS),
        "rounds": items(ROUND, 1000),
    },
    {"failed_at": FAILED_AT},
)
RUNG = fields(
    {
        "name": PART,
        "title": TEXT,
        "status": one_of(*results.STATUSES),
        "reason": maybe(TEXT),
        "recipe": maybe(RECIPE),
        "step_ms": maybe(MS),
        "q25_ms": maybe(MS),
        "q75_ms": maybe(MS),
        "interval_ms": INTERVAL,
        "speedup_previous": maybe(FACTOR),
        "speedup_total": maybe(FACTOR),
        "main_ms": maybe(MS),
        "main_speedup_total": maybe(FACTOR),
        "host_bound": maybe(number(0, 1)),
        "gpu_busy_ms": maybe(MS),
        "images_per_s": maybe(number(1e-6, 1e9)),
        "peak_reserved_bytes": maybe(BYTES),
        "peak_allocated_bytes": maybe(BYTES),
        "prepare_s": maybe(SECONDS),
        "samples_ms": SAMPLES,
        "rounds": items(ROUND, 1000),
        "notes": NOTES,
        "article_ms": maybe(MS),
        "settings": maybe(SETTINGS),
    },
    {
        "inspection": maybe(INSPECTION),
        "failed_at": FAILED_AT,
        "kind": maybe(KIND),
        "verdict": maybe(one_of("faster", "slower", "no measurable gain", "ambiguous")),
        "gain": maybe(GAIN),
        "total_interval": INTERVAL,
        "receipts": maybe(RECEIPTS),
        "parity": maybe(PARITY),
        "elsewhere": NOTES,
    },
)
STARTED = pattern(
    r"20\d\d-(0[1-9]|1[0-2])-(0[1-9]|[12]\d|3[01])T([01]\d|2[0-3]):[0-5]\d:[0-5]\d(\+00:00|Z)",
    "a UTC time like 2026-01-31T12:00:00+00:00",
)
MERGED = fields(  # `ladder.results.sources`: one of the runs that a result was merged from
    {"started": STARTED, "rounds": COUNT, "cpu": TEXT, "cores": number(1, 1e5, whole=True)}
)
COMMIT = pattern(r"[0-9a-f]{40}", "a commit of 40 hexadecimal digits")
DIGEST = rf"[0-9a-f]{{{code_digest.DIGITS}}}"
CODE = {  # of the other kinds of result, too; where they say it
    "commits": items(COMMIT, 100, least=2),  # where there are several that measured the same code
    code_digest.KEY: mapping(IDENTIFIER, pattern(DIGEST, f"a digest of {code_digest.DIGITS} digits"), 8),
}
NOISE = fields({"floor": FLOOR, "rounds": COUNT, "stored_rounds": COUNT}, {"resolution": maybe(FLOOR)})
RESULT = fields(
    {
        "schema": number(results.SCHEMA, results.SCHEMA, whole=True),
        "machine": MACHINE,
        "workload": WORKLOAD,
        "ladder": LADDER,
        "protocol": PROTOCOL,
        "commit": maybe(COMMIT),
        "dirty": maybe(FLAG),
        "complete": FLAG,
        "started": STARTED,
        "seconds": SECONDS,
        "baseline": maybe(PART),
        "rungs": items(RUNG, 100, least=1),
    },
    CODE
    | CONDITIONS
    | {
        "twins": items(TWIN, 100),
        "stored_twins": mapping(KIND, items(number(-100, 100), 1000), 4),
        "noise": mapping(KIND, NOISE, 4),
        "gpu": maybe(RUN_GPU),
        "merged": items(MERGED, 100, least=2),
        "choices": items(either(NOTED, CHOICE), 100),
    },
)


COMMIT_OR_NONE = maybe(COMMIT)

REAL = number(-1e30, 1e30)

RATE = number(1e-30, 1e30)

SHAPED = pattern(r"[A-Za-z0-9 ,.*_x-]{1,120}", "an op with its shape")

VERDICT = pattern(r"[a-z][a-z ]{0,40}", "a verdict")


LAYOUT = one_of("channels_last", "NCHW", "nchw", "nhwc")

SHAPE = items(number(0, 2**31, whole=True), 8, least=1)

AMOUNT = number(0, 1e30)

LINE = pattern(r"[ -~]{1,1000}", "a line of printable ASCII")
