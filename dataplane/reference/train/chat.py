"""Talks to the exported checkpoint through the oracle: python3 -m reference.train.chat "Hello" [...]

Each argument is a user turn of one conversation. Greedy.
"""
from __future__ import annotations

import argparse

from reference import export as checkpoint

from . import render
from .evaluate import greedy
from .run import NANO, load_tokenizer
from .render import Conversation, Message
from .tokenizer import THINK_END


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("turns", nargs="+")
    parser.add_argument("--chat", action="store_true", help="chat mode instead of thinking mode")
    parser.add_argument("--system", help="system message")
    parser.add_argument("--max-tokens", type=int, default=120)
    options = parser.parse_args()
    tokenizer, model = load_tokenizer(), checkpoint.load(NANO)
    messages = [Message("system", options.system)] if options.system else []
    for turn in options.turns:
        messages.append(Message("user", turn))
        conversation = Conversation(messages, thinking=not options.chat)
        prompt, _ = render.encode(tokenizer, conversation, generate=True)
        text = tokenizer.decode(greedy(model, prompt, options.max_tokens, 1), skip_special=True)
        reasoning, mark, answer = text.partition(THINK_END)
        if not mark:
            reasoning, answer = "", text
        messages.append(Message("assistant", answer, reasoning))
        print(f"user: {turn}\nnano: {f'({reasoning}) ' if reasoning else ''}{answer}")


if __name__ == "__main__":
    main()
