"""Names of C++ for names of Python: the same where C++ allows it."""

from __future__ import annotations

import re

RESERVED = frozenset(
    re.findall(
        r"\w+",
        """
        alignas alignof and and_eq asm auto bitand bitor bool break case catch char char16_t char32_t class
        compl const constexpr const_cast continue decltype default delete do double dynamic_cast else enum
        explicit export extern false float for friend goto if inline int long mutable namespace new noexcept
        not not_eq nullptr operator or or_eq private protected public register reinterpret_cast return short
        signed sizeof static static_assert static_cast struct switch template this thread_local throw true
        try typedef typeid typename union unsigned using virtual void volatile wchar_t while xor xor_eq std
        rsn hls draws rsn_region main NULL assert errno stdin stdout stderr EOF linux unix
        """,
    )
)
"""Words that no name may be: those of C++, and those that the generated text uses."""


class CppNames:
    """Gives each name of a function a C++ name, no two the same. taken: C++ names that are in use already."""

    def __init__(self, taken: frozenset[str] = frozenset()) -> None:
        self._given: dict[tuple[str, str], str] = {}
        self._taken = set(taken)

    def copy(self) -> CppNames:
        """Return an independent copy: names that either makes later are unknown to the other."""
        out = CppNames(frozenset(self._taken))
        out._given = dict(self._given)
        return out

    def of(self, name: str, suffix: str = "") -> str:
        """Return the C++ name of a name; the same one each time. suffix: end of the C++ name, which tells apart two
        things of the same name."""
        key = name, suffix
        if key not in self._given:
            made = identifier(name) + suffix
            while made in self._taken:
                made += "_"
            self._given[key] = made
            self._taken.add(made)
        return self._given[key]


def identifier(name: str) -> str:
    """Return a name changed to a C++ identifier that is no keyword and no name that the generated text uses."""
    made = re.sub(r"[^A-Za-z0-9_]", lambda m: "_" if m[0] in ".#[,]" else f"u{ord(m[0]):x}_", name.replace("%", "t"))
    made = re.sub(r"_{2,}", "_", made).strip("_") or "x"
    generated = re.fullmatch(
        r"(tid\d+|(tile|chosen|drawn|table|part|token|bound|index|got|all|view)_\d+|RSN_\w+|E[A-Z0-9]+)", made
    )
    return f"{made}_" if made in RESERVED or generated or made[0].isdigit() or name.startswith("_") else made
