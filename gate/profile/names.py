"""8 Kernel names as tables show them: short, and no two kernels of a step alike. Records keep them whole.

A demangled name has a return type, namespaces, template arguments with whole functors inside, and parameters. What is
left without all of that is enough until two kernels share it; those also get the template arguments they differ in.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence

NAME_CHARS = 80
TAIL_CHARS = 32
ANONYMOUS = re.compile(r"(?:\(anonymous namespace\)|<unnamed>|\{anonymous\})::")
"""As demanglers write it; taken for the beginning of parameters, it would leave a bare namespace."""
GRID = re.compile(r" \[grid [^\]]*\]$")
WRAPPER = re.compile(r"[\w:]*\b(?:device_kernel|enable_sm\w+)<\s*")
"""A kernel whose template argument is the kernel."""
HEAD = re.compile(r"(?:\{[^{}]*\}|operator\(\)|[^<({])+")
"""Up to the template arguments or the parameters; parentheses of a lambda begin neither."""
QUALIFIED = re.compile(r"(?:\b\w+::)+(?=\w)")
LAMBDA = re.compile(r"(?:::operator\(\)\(\)(?: const)?)?::\{lambda(\([^()]*\))#\d+\}")
ENUMERATOR = re.compile(r"\(([\w:]+)\)(-?\w+)")


def short(name: str) -> str:
    """Without return type, template arguments and parameters."""
    return _cut(_head(name)) + _grid(name)


def shown(names: Iterable[str]) -> dict[str, str]:
    """Name -> what a table of these names shows for it: its short form, and more where that is another's too."""
    alike: dict[str, list[str]] = defaultdict(list)
    for name in dict.fromkeys(names):
        alike[short(name)].append(name)
    made = {text: group for text, group in alike.items() if len(group) > 1}
    texts = {group[0]: text for text, group in alike.items() if len(group) == 1}
    for group in made.values():
        texts |= _told_apart(group)
    return _numbered(texts)


def _head(name: str) -> str:
    if name.startswith(("Memcpy", "Memset", "(")):  # no C++: the direction is all that tells copies apart
        return GRID.sub("", name)
    plain = _plain(name)
    found = HEAD.match(plain)
    return found.group(0).strip() if found else plain


def _grid(name: str) -> str:
    found = GRID.search(name)
    return found.group(0) if found else ""


def _plain(name: str) -> str:
    plain = ANONYMOUS.sub("", GRID.sub("", name)).removeprefix("void ")
    while found := WRAPPER.match(plain):
        plain = plain[found.end() :]
    return plain


def _told_apart(group: Sequence[str]) -> dict[str, str]:
    """As few template arguments as tell the names apart, those with a name before bare numbers; dots for the rest."""
    listed = [_arguments(name) for name in group]
    count = max(map(len, listed))
    rows = [(*arguments, *[""] * (count - len(arguments))) for arguments in listed]
    differing = [place for place in range(count) if len({row[place] for row in rows}) > 1]
    chosen: list[int] = []
    for place in sorted(differing, key=lambda place: all(row[place][:1].isdigit() for row in rows)):
        before, after = (len({tuple(row[p] for p in some) for row in rows}) for some in (chosen, [*chosen, place]))
        if after > before:
            chosen.append(place)
    made = {}
    for name, row in zip(group, rows, strict=True):
        parts = [argument if place in chosen else "…" for place, argument in enumerate(row) if argument]
        kept = [part for place, part in enumerate(parts) if part != "…" or parts[place - 1 : place] != ["…"]]
        made[name] = _cut(_head(name) + (f"<{', '.join(kept)}>" if kept else "")) + _grid(name)
    return made


def _arguments(name: str) -> list[str]:
    plain = _plain(name)
    head = HEAD.match(plain)
    rest = plain[head.end() :] if head else ""
    return [_argument(text) for text in _split(rest)] if rest.startswith("<") else []


def _split(text: str) -> Iterator[str]:
    """ "<a, b<c, d>>(e)" -> "a", "b<c, d>"."""
    depth, begin = 0, 1
    for place, letter in enumerate(text):
        depth += (letter in "<({") - (letter in ">)}")
        if depth == 0 or (depth == 1 and letter == ","):
            yield text[begin:place].strip()
            begin = place + 1
        if depth == 0:
            return


def _argument(text: str) -> str:
    """Without namespaces and parameters: n::f(T&)::{lambda()#3}::operator()() const::{lambda(int)#1} is f (int)."""
    if found := ENUMERATOR.fullmatch(text):
        return f"{QUALIFIED.sub('', found.group(1))} {found.group(2)}"
    lambdas = LAMBDA.findall(text)
    bare = LAMBDA.sub("", text)
    while (less := re.sub(r"\([^()]*\)(?: const)?", "", bare)) != bare:
        bare = less
    bare = QUALIFIED.sub("", bare).replace("> >", ">>")
    return f"{bare} {QUALIFIED.sub('', lambdas[-1])}" if lambdas and "<" not in bare else bare


def _numbered(texts: dict[str, str]) -> dict[str, str]:
    """What is still alike, cut in the same place or different in its parameters alone, gets a number."""
    often, seen, made = Counter(texts.values()), Counter[str](), {}
    for name, text in texts.items():
        seen[text] += 1
        made[name] = text if often[text] == 1 else f"{text} #{seen[text]}"
    return made


def _cut(text: str) -> str:
    """In the middle: names of Inductor's kernels differ in their last number."""
    return text if len(text) <= NAME_CHARS else f"{text[: NAME_CHARS - TAIL_CHARS - 1]}…{text[-TAIL_CHARS:]}"
