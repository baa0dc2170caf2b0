"""Whether all lanes of a warp compute the same sum, by the PTX.

`tl.sum` over lanes is a butterfly: each lane adds its neighbour's value to its own, so all of them hold the sum. All
of them write it where it goes through shared memory into another layout. The sums a + b and b + a agree to the last bit
unless a multiplication and the addition become one instruction, which rounds once. One lane then computes
fma(x_i, w_i, p_j), its neighbour fma(x_j, w_j, p_i), and chance decides which of the two a reader gets. That happens
where a thread holds a single product of the sum. With several, the last of its own additions stands between product and
neighbour.

The rule: a butterfly's value is never the addend of an fma. It is not added to a product either if neither instruction
says `.rn`: ptxas makes an fma of the two. The rule is stricter than need be for two kinds of shapes, which are not
compiled here. In the first a single lane stores the sum (`instance_norm_act_planes_kernel`, blocks of 32 pixels). In
the second the product is exact (`moments_kernel`, tiles of 32 pixels, seen once). Other shuffles (`idx`) change
layouts and sum nothing.
"""

import re

INSTRUCTION = re.compile(r"^\s*(?:@!?%\w+\s+)?([a-z][\w.:]*)\s+([^;]+);", re.MULTILINE)
REGISTER = re.compile(r"%\w+|\b_\b")
NUMBER = r"(?:\.ftz)?\.f(?:32|64|32x2)"
# With .rn they stay what they are.
MULTIPLY, ADD = re.compile("mul" + NUMBER), re.compile("(?:add|sub)" + NUMBER)
MOVE = re.compile(r"(?:mov|cvt\.u64|shl|or)\.[bu](?:32|64)")  # a float64 travels as two halves


def contracted_sums(ptx: str) -> list[str]:
    """The instructions that would round a sum over lanes differently in each of them."""
    instructions = [(op, written_and_read(op, text)) for op, text in INSTRUCTION.findall(ptx)]
    received = moved(
        {w for op, (to, _) in instructions if op.startswith("shfl.sync.bfly") for w in to}, instructions
    )
    products = moved({w for op, (to, _) in instructions if MULTIPLY.fullmatch(op) for w in to}, instructions)
    found = []
    for op, (to, read) in instructions:
        fused = op.startswith("fma.") and read[-1] in received
        fusible = ADD.fullmatch(op) and received & {*read} and products & {*read}
        if fused or fusible:
            found.append(f"{op} {', '.join(to + read)}")
    return found


def written_and_read(op: str, text: str) -> tuple[list[str], list[str]]:
    """Registers that an instruction writes, and those it reads."""
    first, _, rest = text.partition("}," if text.startswith("{") else ",")
    return REGISTER.findall(first), REGISTER.findall(rest)


def moved(registers: set[str], instructions: list) -> set[str]:
    """These, and those that they are moved to."""
    moves = [(to, read) for op, (to, read) in instructions if MOVE.fullmatch(op)]
    while more := {w for to, read in moves if registers & {*read} for w in to} - registers - {"_"}:
        registers = registers | more
    return registers


def run_rgb_odd(dtype, layout) -> None:
    """Run cases in which a lane may hold one product of a pixel's sum: odd channels, small maps, no alignment."""
    import torch

    import kernels

    shapes = ((2, 5, 3, 7), (2, 100, 4, 4), (2, 8, 4, 4), (2, 16, 2, 2), (2, 272, 4, 4), (2, 32, 8, 8))
    for n, c, h, w in shapes:
        offset = int((c, h) == (32, 8))
        x = torch.zeros(n * c * h * w + offset, dtype=dtype)[offset:].view(n, c, h, w)
        if layout is torch.channels_last:
            x = x.view(n, h, w, c).permute(0, 3, 1, 2)
        weight, style, bias = torch.zeros(3, c), torch.zeros(n, c), torch.zeros(3)
        kernels.to_rgb(x, weight, style, bias)
        image = torch.zeros(n, 3, h, w, dtype=dtype, requires_grad=True)
        y = kernels.from_rgb(image, weight.t(), torch.zeros(c), channels_last=layout is torch.channels_last)
        torch.autograd.grad(y, image, torch.zeros_like(y))
