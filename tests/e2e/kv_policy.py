"""Which stored KV a prompt can use: dataplane/kv/hit_policy.h once more, for tests and benches."""

BLOCK = 128
LEAST_SUFFIX = 134  # of a prompt is run in any case


def usable_hit(prompt_tokens, stored_tokens):
    """The largest multiple of a block that is stored and leaves LEAST_SUFFIX tokens."""
    return max(0, min(stored_tokens, prompt_tokens - LEAST_SUFFIX) // BLOCK * BLOCK)


def anchor_after(end):
    """Where the window ends that a sequence of so many positions leaves; 0: it leaves none."""
    return max(0, end - 1) // BLOCK * BLOCK
