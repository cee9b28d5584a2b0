"""Makes vectors.txt: what the codec puts on the wire and keeps, as the independent NumPy model says.

    ECHO_ORACLE=../shared/reference/oracle.py python3 tests/codec/golden/make.py > tests/codec/golden/vectors.txt

golden_test.cpp makes the same inputs: integers of a linear congruential generator times powers of two, exact in every
type. Five groups: two of different size, one of zeros, one with a NaN, one cut off after 37 elements.
"""

import importlib.util
import os
import struct
import sys

import numpy as np

G, COUNT, SEED = 64, 4 * 64 + 37, 20240229
EXPONENTS = (0, -9, 0, 3, 5)  # of the groups: values are below 2^(exponent + 1)
ZERO_GROUP, NAN_ELEMENT = 2, 3 * G + 31
BITS_OF = {"fp32": 24, "bf16": 8, "fp16": 11}  # bits of an integer that each type holds exactly
WIDTHS, EXACT = (3, 4, 5, 6, 8), 16


def load_oracle():
    path = os.environ.get("ECHO_ORACLE")
    if not path:
        sys.exit("set ECHO_ORACLE to the file of the NumPy model")
    spec = importlib.util.spec_from_file_location("oracle", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def integers(count, bits, state):
    """The upper `bits` bits of 32-bit states, signed."""
    values = []
    for _ in range(count):
        state = (state * 1664525 + 1013904223) % 2**32
        values.append((state - 2**32 * (state >> 31)) >> (32 - bits))
    return np.array(values, np.float64)


def tensor(dtype, call):
    bits = BITS_OF[dtype]
    x = integers(COUNT, bits, SEED + call)
    for group, exponent in enumerate(EXPONENTS):
        x[group * G : (group + 1) * G] *= 2.0 ** (exponent - bits + 2)
    x[ZERO_GROUP * G : (ZERO_GROUP + 1) * G] = 0
    x[NAN_ELEMENT] = np.nan
    return x.astype(np.float32)


def elements(oracle, x, dtype):
    """The bytes of an array in a type."""
    with np.errstate(all="ignore"):
        if dtype == "fp16":
            bits = x.astype(np.float16).view(np.uint16)
            return np.where(np.isnan(x), np.uint16(0x7E00), bits).astype("<u2").tobytes()
        if dtype == "bf16":
            return oracle.bf16_nearest(x).astype("<u2").tobytes()
        return np.where(np.isnan(x), np.uint32(0x7FC00000), x.view(np.uint32)).astype("<u4").tobytes()


def widened(oracle, data, dtype):
    if dtype == "fp16":
        return np.frombuffer(data, "<f2").astype(np.float32)
    if dtype == "bf16":
        return oracle.from_bf16(np.frombuffer(data, "<u2"))
    return np.frombuffer(data, "<f4")


def stored(oracle, e, kind):
    """The bytes of a residual [g, 64], and what is left of it."""
    if kind == "fp32":
        return e.astype("<f4").tobytes(), e
    top = {"int8": 127, "int16": 32767}[kind]
    largest = np.abs(e).max(-1)
    live = largest >= oracle.TINY_STORE
    scale = np.where(live, oracle.bf16_up(np.where(live, largest / np.float32(top), np.float32(1))), np.uint16(0))
    factor = np.where(live, oracle.from_bf16(scale), np.float32(1))
    r = np.clip(np.rint(e * (np.float32(1) / factor)[:, None]), -top, top) * live[:, None]
    left = oracle.store(e, kind)
    assert np.array_equal((r * factor[:, None]).astype(np.float32), left)
    return r.astype("<i1" if kind == "int8" else "<i2").tobytes() + scale.astype("<u2").tobytes(), left


def show(name, data):
    for at in range(0, len(data), 48):
        print(f"  {name} {data[at : at + 48].hex()}")


def coded(oracle, bits, rotation, dtype, kind):
    """Two calls with feedback; then the decode of the second, which clears what the NaN's group owes (nothing)."""
    turn = oracle.rotate if rotation else lambda v: v
    e = np.zeros((len(EXPONENTS), G), np.float32)
    for call in (0, 1):
        with np.errstate(all="ignore"):
            v = turn(oracle.to_groups(tensor(dtype, call))) + e
        codes, scales, rest, poisoned = oracle.encode(v, bits)
        assert list(poisoned) == [False, False, False, True, False]
        data, e = stored(oracle, rest, kind)
        show("payload", oracle.pack(codes, bits).tobytes() + scales.astype("<u2").tobytes())
    show("residual", data)
    if bits == 4:
        with np.errstate(all="ignore"):
            y = oracle.from_groups(turn(oracle.decode(codes, scales)), COUNT)
        show("output", elements(oracle, y, dtype))


def exact(oracle, rotation, dtype):
    """One call that owes 2^-16 of the input of another, in the tensor's type."""
    turn = oracle.rotate if rotation else lambda v: v
    e = np.nan_to_num(oracle.to_groups(tensor("fp32", 7)), nan=0.0) * np.float32(2.0**-16)
    with np.errstate(all="ignore"):
        v = oracle.to_groups(tensor(dtype, 0)) + turn(e)
    payload = elements(oracle, oracle.from_groups(v, COUNT), dtype)
    sent = oracle.to_groups(widened(oracle, payload, dtype))
    # Padding is not sent, but takes part in the rounding: what is owed there stays within the type.
    tail = widened(oracle, elements(oracle, v.reshape(-1), dtype), dtype).reshape(-1, G)
    sent[-1, COUNT % G :] = tail[-1, COUNT % G :]
    with np.errstate(all="ignore"):
        left = turn(v - sent)
    left[3] = 0  # the decode clears the NaN's group
    show("payload", payload)
    show("residual", left.astype("<f4").tobytes())


def stores(bits, dtype):
    """All of them for one width and type, one for the others."""
    if bits == 4 and dtype == "bf16":
        return ("int8", "int16", "fp32")
    return ("int16",) if bits == 6 else ("int8",)


def main():
    oracle = load_oracle()
    print("# Made by make.py from the NumPy model; golden_test.cpp compares the library with it. Bytes in hex.")
    sequence, count = 0x0102030405060708, 0x010203040506
    print(f"header two-shot bf16 bits 5 sequence {sequence} count {count} row 4096 flags 27 shot 2 rank 513")
    show("payload", struct.pack("<4sBBBBQQIBBH", b"ECHO", 1, 2, 9, 5, sequence, count, 4096, 27, 2, 513))
    for bits in WIDTHS:
        for rotation in (1, 0):
            for dtype in BITS_OF:
                for kind in stores(bits, dtype):
                    print(f"case bits {bits} rotation {rotation} dtype {dtype} store {kind}")
                    coded(oracle, bits, rotation, dtype, kind)
    for rotation in (1, 0):
        for dtype in ("bf16", "fp16"):
            print(f"case bits {EXACT} rotation {rotation} dtype {dtype} store fp32")
            exact(oracle, rotation, dtype)


if __name__ == "__main__":
    main()
