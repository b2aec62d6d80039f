"""Bucket sizes and multipliers of the Engram hash."""

import functools

import numpy

_WITNESSES = (2, 3, 5, 7, 11, 13, 17, 19, 23, 29, 31, 37)


def is_prime(n):
    """Deterministic Miller-Rabin, valid for every n below 3.3e24."""
    if n < 2:
        return False
    for p in _WITNESSES:
        if n % p == 0:
            return n == p
    d, s = n - 1, 0
    while d % 2 == 0:
        d, s = d // 2, s + 1
    for a in _WITNESSES:
        x = pow(a, d, n)
        if x in (1, n - 1):
            continue
        for _ in range(s - 1):
            x = x * x % n
            if x == n - 1:
                break
        else:
            return False
    return True


@functools.lru_cache(maxsize=32)
def bucket_primes(layer_count, max_ngram_size, head_count, base):
    """primes[layer][n - 2][head]: successive primes from `base` on, none handed out twice."""
    used, result = set(), []
    for _ in range(layer_count):
        table = []
        for _ in range(2, max_ngram_size + 1):
            row, candidate = [], base - 1
            while len(row) < head_count:
                candidate += 1
                if is_prime(candidate) and candidate not in used:
                    used.add(candidate)
                    row.append(candidate)
            table.append(tuple(row))
        result.append(tuple(table))
    return tuple(result)


def multipliers(layer, max_ngram_size, compressed_vocab_size):
    """Odd 64-bit multipliers of look-back 0..max_ngram_size-1 for one Engram layer."""
    bound = max(1, (2 ** 63 - 1) // compressed_vocab_size // 2)
    drawn = numpy.random.default_rng(10007 * layer).integers(0, bound, max_ngram_size, dtype=numpy.int64)
    return [2 * int(value) + 1 for value in drawn]
