"""The softmax of the Hopper kernel: what a warpgroup does with a block's scores in registers.

Where the compiler's own code would cost more instructions than there is time for beside the tensor
cores, it is assembly. Import this module only where Triton's Gluon is installed.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl

from sift_index.kernels.hopper_blocks import ROOM, stage_of
from sift_index.kernels.hopper_notes import HALF, KEYS

# A row's sum as the threads hold it: four of them, in a tensor [64, 4].
SHARES = gl.constexpr(
    gl.DistributedLinearLayout(
        [[8, 0]], [[0, 1], [0, 2], [1, 0], [2, 0], [4, 0]], [[16, 0], [32, 0]], [], [HALF.value, 4]
    )
)

# How much larger than a row's reference, in powers of two, a score may be until the reference
# moves: what is summed up is hardly ever rescaled. Weights of up to 2^8 are in range of 16 bits,
# but the largest one is rounded as the others are, where 1 had been exact: 5 % more error on normal
# data, up to a quarter more where few keys have most of the weight.
SLACK = gl.constexpr(8.0)
LEAVE_ROOM_BEHIND = gl.constexpr(
    "{ .reg .pred below; .reg .b32 number; setp.lt.f32 below, $3, 0f00000000; "
    "selp.b32 number, 0, $4, below; bar.arrive number, 288; mov.b32 $0, $2; mov.b32 $1, $3; }"
)


@gluon.constexpr_function  # type: ignore[untyped-decorator]
def _for_each(values: int, begin: str, one: str, end: str = "") -> str:
    """Return assembly that changes a thread's `values` floats in place.

    A second operand of each is the same for all values of a row, so `begin` and `one` name two of
    them: {upper} for rows r, {lower} for rows r + 8. {at} is the value, {by} its row's operand, and
    {bit} the value's among those of its row: a thread holds two keys of every eight.
    """
    names = {"upper": f"${2 * values}", "lower": f"${2 * values + 2}"}
    lines = [
        one.format(at=f"${at}", by=names["lower" if at // 2 % 2 else "upper"], bit=bit)
        for at in range(values)
        for bit in [1 << (at // 4 * 2 + at % 2)]
    ]
    return " ".join(["{", begin.format(**names), *lines, end, "}"])


@gluon.constexpr_function  # type: ignore[untyped-decorator]
def _operands(values: int, kind: str) -> str:
    """Return the constraints of `_for_each`, whose second operands are of a kind."""
    tied = [str(at) for at in range(values)]
    return ",".join(["=f"] * values + tied + [kind] * values)


@gluon.constexpr_function  # type: ignore[untyped-decorator]
def _rescaling(values: int) -> str:
    """Return assembly that multiplies a thread's values, unless all of its warp's factors are 1."""
    begin = (
        ".reg .pred some, any; setp.neu.f32 some, {upper}, 0f3F800000; "
        "setp.neu.or.f32 some, {lower}, 0f3F800000, some; "
        "vote.sync.any.pred any, some, 0xffffffff; @!any bra AS_IT_IS;"
    )
    code: str = _for_each(values, begin, "mul.f32 {at}, {at}, {by};", "AS_IT_IS:")
    return code


@gluon.constexpr_function  # type: ignore[untyped-decorator]
def _hiding(values: int) -> str:
    """Return assembly that puts minus infinity in place of values whose bit is off."""
    one = "and.b32 bit, {by}, {bit}; setp.ne.b32 on, bit, 0; selp.f32 {at}, {at}, 0fFF800000, on;"
    code: str = _for_each(values, ".reg .b32 bit; .reg .pred on;", one)
    return code


@gluon.jit  # type: ignore[untyped-decorator]
def leave_behind(total, entry, STAGES: gl.constexpr):  # type: ignore[no-untyped-def]
    """Leave an entry of keys, behind the exponentials in `total` [64, 4]; returns it.

    Left to itself, the assembler waits for the values' product in front of all exponentials. So the
    barrier's number is made to depend on a row's sum: 0 if that were negative, which it never is.
    The arrival then comes behind the exponentials, and the wait stays behind the arrival.
    """
    room = gl.full([HALF, 4], ROOM + stage_of(entry, STAGES), gl.int32, layout=SHARES)
    return gl.inline_asm_elementwise(
        LEAVE_ROOM_BEHIND, "=r,=r,r,r,r,r", [total, room], gl.float32, False, 2
    )


@gluon.jit
def pairs(weights):  # type: ignore[no-untyped-def]
    """Return 16-bit weights, two to a register: from loop to loop they would go one by one."""
    return gl.inline_asm_elementwise(
        "mov.b32 $0, $1;", "=r,r", [weights], weights.dtype, is_pure=False, pack=2
    )


@gluon.jit
def shares(weights):  # type: ignore[no-untyped-def]
    """Return each row's sum over the weights of a thread; threads are added at an item's end."""
    grouped = weights.reshape([HALF, KEYS // 8, 4, 2])
    return gl.convert_layout(gl.sum(gl.sum(grouped, 3), 1), SHARES)


@gluon.jit
def row_max(scores):  # type: ignore[no-untyped-def]
    """Return each row's largest score; pairs, then fours first: one chain of 32 would take long."""
    grouped = scores.reshape([HALF, 4, KEYS // 32, 4, 2])
    found = gl.max(gl.max(gl.max(grouped, 4), 2), 1)
    return gl.convert_layout(gl.max(found, 1), gl.SliceLayout(1, scores.type.layout))


@gluon.jit
def _first_bits(keys):  # type: ignore[no-untyped-def]
    """Return a bit for each key that a thread holds of a row: on for those in front of `keys`.

    keys: int32 [64, 4], from the thread's first key on; it holds two keys of every eight.
    """
    keys = gl.maximum(keys, 0)
    count = 2 * (keys // 8) + gl.minimum(keys % 8, 2)
    return gl.where(count < 32, (1 << gl.minimum(count, 31)) - 1, -1)


@gluon.jit
def hide(scores, low, high):  # type: ignore[no-untyped-def]
    """Return scores with minus infinity for keys that are not in their row's [low, high).

    A register of bits instead of a comparison for each key: a third of the instructions.
    """
    first = 2 * gl.arange(0, 4, layout=gl.SliceLayout(0, SHARES))[None, :]
    on = _first_bits(high[:, None] - first) & ~_first_bits(low[:, None] - first)
    grouped: gl.constexpr = scores.reshape([HALF, KEYS // 8, 4, 2]).type.layout
    of_thread: gl.constexpr = gl.SliceLayout(1, gl.SliceLayout(3, grouped))
    on = gl.convert_layout(on, of_thread, assert_trivial=True).expand_dims(1).expand_dims(3)
    on, _ = gl.broadcast(on, scores.reshape([HALF, KEYS // 8, 4, 2]))
    on = gl.convert_layout(on.reshape([HALF, KEYS]), scores.type.layout, assert_trivial=True)
    values: gl.constexpr = KEYS // 2
    return gl.inline_asm_elementwise(
        _hiding(values), _operands(values, "r"), [scores, on], gl.float32, True, values
    )


@gluon.jit
def rescale(acc, factor):  # type: ignore[no-untyped-def]
    """Return acc [64, D] times its rows' factors, which are mostly 1."""
    factor = gl.convert_layout(factor, gl.SliceLayout(1, acc.type.layout))[:, None]
    factor, _ = gl.broadcast(factor, acc)
    values: gl.constexpr = acc.shape[1] // 2
    return gl.inline_asm_elementwise(
        _rescaling(values), _operands(values, "f"), [acc, factor], gl.float32, False, values
    )
