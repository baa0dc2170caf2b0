"""Whether all lanes of a warp compute the same sum, by the PTX.

`tl.sum` over lanes is a butterfly: each lane adds its neighbour's value to its own, so all of them hold the sum, and
all of them write it where it goes through shared memory into another layout. a + b is b + a to the last bit, unless a
multiplication and the addition become one instruction, which rounds once: one lane then computes fma(x_i, w_i, p_j),
its neighbour fma(x_j, w_j, p_i), and which of the two a reader gets is chance. That happens where a thread holds a
single product of the sum: of several, the last of its own additions stands between product and neighbour.

The rule: what comes from a butterfly is never the addend of a product. Not of an fma, and not in an addition to a
product that ptxas may make one of, which it does where neither says `.rn`. It is stricter than need be where one lane
alone stores the sum (`instance_norm_act_planes_kernel` in blocks of 32 pixels) and where the product is exact
(`moments_kernel` in tiles of 32 pixels, which are seen once): shapes that are not compiled here. Other shuffles
(`idx`) change layouts and sum nothing.
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
