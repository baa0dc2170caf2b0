"""Triton's language, or a stand-in where Triton is not installed. The plain-PyTorch references work with either."""

try:
    import triton
    import triton.language as tl
    from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

    # Triton reads this when it defines a kernel. Set TRITON_INTERPRET=1 before anything imports triton.
    INTERPRETED = bool(triton.knobs.runtime.interpret)
except ImportError:  # macOS, Windows
    INTERPRETED = False

    class _Missing:
        def __getattr__(self, _name):
            return lambda function=None, **_: function or (lambda decorated: decorated)

    triton = tl = _Missing()
    gdc_wait = gdc_launch_dependents = None

__all__ = ["INTERPRETED", "gdc_launch_dependents", "gdc_wait", "tl", "triton"]
