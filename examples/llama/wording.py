"""The text of tokens as they arrive, up to where a stop string begins."""

from collections.abc import Sequence

from .tokenizer import Tokenizer

_UNKNOWN = "\N{REPLACEMENT CHARACTER}"  # for bytes that are not, or not yet, a character
_BYTES = 4  # the most bytes of a character
_CONTEXT, _WINDOW = 8, 64  # tokens that are decoded again with each new one


class Wording:
    """The text of tokens after a prompt.

    The bytes of a character may be in several tokens, and the text of a token may depend on those
    before it. So a few of these are decoded again with each token, and characters that may still
    change are held back, as is whatever may become a stop string.

    Args:
        tokenizer: knows the tokens.
        prompt: the tokens before.
        stops: strings before which the text ends.
    """

    def __init__(self, tokenizer: Tokenizer, prompt: Sequence[int], stops: Sequence[str] = ()):
        self._tokenizer, self._stops = tokenizer, tuple(stops)
        self._window = list(prompt[-_CONTEXT:])
        self._said = len(tokenizer.decode(self._window))  # characters of the window
        self._known = len(self._window)  # tokens of the window whose text is all said
        self._held = ""
        self.stopped = False

    def add(self, token: int) -> str:
        """The text that is certain after another token."""
        self._window.append(token)
        text = self._tokenizer.decode(self._window)
        open_end = len(text) - len(text.rstrip(_UNKNOWN))
        certain = max(len(text) - min(open_end, _BYTES), self._said)
        new, self._said = text[self._said : certain], certain
        if not open_end:
            self._shorten(self._known, text)
            self._known = len(self._window) - 1
        elif len(self._window) > _WINDOW:
            self._shorten(len(self._window) - _CONTEXT, text)
        return self._until_stop(new)

    def end(self) -> str:
        """The remaining text, when no more tokens follow."""
        text = self._tokenizer.decode(self._window)
        said = self._until_stop(text[self._said :])
        held, self._held = self._held, ""
        return said if self.stopped else said + held

    def _shorten(self, tokens: int, text: str) -> None:
        """Drop the first tokens of the window; the unsaid characters at its end stay unsaid."""
        unsaid = len(text) - self._said
        self._window = self._window[tokens:]
        self._said = len(self._tokenizer.decode(self._window)) - unsaid

    def _until_stop(self, new: str) -> str:
        text = self._held + new
        found = [place for stop in self._stops if (place := text.find(stop)) >= 0]
        if self.stopped or found:
            self.stopped, self._held = True, ""
            return text[: min(found, default=0)]
        keep = max((_overlap(text, stop) for stop in self._stops), default=0)
        self._held = text[len(text) - keep :]
        return text[: len(text) - keep]


def _overlap(text: str, stop: str) -> int:
    """How much of the beginning of `stop` is at the end of `text`."""
    sizes = range(min(len(text), len(stop) - 1), 0, -1)
    return next((n for n in sizes if text.endswith(stop[:n])), 0)
