"""Hash constants, golden ids and the token map against the published values."""

import itertools

import pytest
import torch

from reference import config as presets
from reference import engram_map, primes
from reference.engram import EngramHash, lookback_of_rows
from reference.options import Rows


def test_multipliers_of_the_released_vocabulary():
    assert primes.multipliers(1, 4, 99092) == [
        76632096046245, 4839876093313, 35959672319349, 73987337458391]
    assert primes.multipliers(14, 4, 99092) == [
        67716810739261, 51510806800915, 30921347202721, 82619226485591]


def test_multipliers_of_a_vocabulary_of_64():
    assert primes.multipliers(1, 4, 64) == [
        118650432209603643, 7493640653728489, 55676810147952557, 114555519428547269]
    assert primes.multipliers(2, 4, 64) == [
        118457471727074801, 57438995613704923, 35065230140349983, 110587526576600489]


def test_released_bucket_primes_and_their_sums():
    first, second = primes.bucket_primes(2, 4, 8, 16000000)
    assert sum(map(sum, first)) == 384006168 and sum(map(sum, second)) == 384016682
    short = [[p - 16000000 for p in row] for row in (*first, *second)]
    assert short == [
        [57, 79, 81, 97, 121, 129, 133, 183], [189, 207, 211, 253, 277, 289, 307, 321],
        [339, 381, 393, 399, 403, 409, 447, 463], [477, 487, 499, 507, 511, 573, 609, 627],
        [667, 669, 693, 697, 711, 729, 759, 769], [781, 799, 813, 819, 841, 877, 879, 889]]


def test_bucket_primes_of_a_small_base():
    assert primes.bucket_primes(2, 3, 2, 64) == (((67, 71), (73, 79)), ((83, 89), (97, 101)))


def test_is_prime_agrees_with_trial_division():
    for n in itertools.chain(range(2000), (3215031751, 3825123056546413051, 2 ** 31 - 1)):
        if n < 10 ** 7:
            expected = n > 1 and all(n % d for d in range(2, int(n ** 0.5) + 1))
        else:
            expected = n == 2 ** 31 - 1
        assert primes.is_prime(n) == expected, n


def _released_hash():
    """A hash whose token ids are the compressed ids themselves; pad is 2."""
    return EngramHash(presets.official(vocab_size=129280), torch.arange(129280) % 99092)


@pytest.mark.parametrize("layer, position, expected", [
    (1, 3, [3696153, 143487630, 261154234, 382908965]),
    (1, 0, [5412672, 143494632, 256353435, 372009279]),
    (14, 3, [13123107, 143323937, 263124849, 378331785]),
    (14, 0, [6939818, 131576092, 268363546, 382274687]),
])
def test_golden_engram_rows(layer, position, expected):
    lookback = lookback_of_rows(Rows.single([5, 7, 11, 99091]), 4)
    rows = _released_hash().rows(layer, lookback)[0, position]
    assert rows[[0, 8, 16, 23]].tolist() == expected


def test_golden_engram_rows_behind_a_dead_token():
    rows = Rows.single([5, 9, 11, 13], image=torch.tensor([[False, True, False, False]]))
    table_rows = _released_hash().rows(1, lookback_of_rows(rows, 4))[0, 3]
    assert table_rows[[0, 8, 16, 23]].tolist() == [4449004, 139548245, 256194719, 369991666]


def test_look_back_stops_at_the_start_of_a_document():
    packed = Rows(torch.tensor([[1, 2, 3, 9, 4, 5]]), torch.tensor([[0, 1, 2, 0, 0, 1]]),
                  torch.tensor([[0, 0, 0, -1, 1, 1]]))
    assert lookback_of_rows(packed, 3)[0].tolist() == [
        [1, -1, -1], [2, 1, -1], [3, 2, 1], [9, -1, -1], [4, -1, -1], [5, 4, -1]]


def test_a_dead_token_changes_exactly_the_positions_it_reaches():
    tokens = torch.arange(10, 30)
    dead = torch.zeros(1, 20, dtype=torch.bool)
    dead[0, 8] = True
    hashing = _released_hash()
    plain = hashing.rows(1, lookback_of_rows(Rows.single(tokens), 4))[0]
    changed = hashing.rows(1, lookback_of_rows(Rows.single(tokens, image=dead), 4))[0]
    assert (plain != changed).any(-1).nonzero().flatten().tolist() == [8, 9, 10, 11]


@pytest.mark.parametrize("text, key", [
    ("Éa", "ea"), ("\uff21", "a"), ("  \t\n", " "), (" ", " "), (" the\r\n ", "the"),
    ("a \t b", "a b"), ("\u0301", ""), ("\x1f", "\x1f"), ("\u3000x", "x"), ("ΣΑΣ", "σασ"),
])
def test_normalisation(text, key):
    assert engram_map.normalise(text) == key


def test_token_map_groups_by_normalised_text_in_order_of_first_appearance():
    tokenizer = {
        "added_tokens": [{"id": 0, "content": "<b>"}, {"id": 1, "content": "<e>"}, {"id": 2, "content": "<p>"}],
        "model": {"vocab": {"A": 3, "a": 4, "Ġa": 5, "Ġ": 6, "ĊĊ": 7, "Ã": 8, "Å": 9, "Ãī": 10, "e": 11}},
    }
    # "Ã" and "Å" are single bytes of longer characters: their raw strings keep them apart.
    assert engram_map.token_map(tokenizer) == [0, 1, 2, 3, 3, 3, 4, 4, 5, 6, 7, 7]
