"""Which GPU of the catalogue a spelling means: a word may be left out only if no other card is told apart by it."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable

_BRANDS = r"nvidia|geforce|quadro|tesla|amd|instinct|rtx|gtx|tensor core|gpu|hbm\d?e?"
_FORMS = frozenset({"sxm", "pcie", "nvl", "nvl72"})
_NOISE = frozenset({"pairwise", "nvlink", "dgx", "hgx", "generation", "server", "workstation", "edition"})
"""Said of a card of the catalogue without telling it from another one there; Max-Q, Laptop, Ti, D, ... do."""


def words_of(name: str) -> frozenset[str]:
    """Return the words of a name in one spelling: SXM4 = SXM, 80GB = 80G, RTX4090 = 4090, RTX A6000 = A6000."""
    text = re.sub(r"sxm\d", "sxm", name.lower())
    text = re.sub(r"(\d+)\s*gi?b\b", r"\1g", text)
    text = re.sub(rf"(?<![a-z])({_BRANDS})(?![a-z])", " ", text)
    text = re.sub(r"\bpro(\d{4})\b", r"pro \1", text)
    text = re.sub(r"\ba[\s_-](\d{4})\b", r"a\1", text)
    return frozenset(re.findall(r"[a-z0-9]+", text)) - _NOISE


def rank_of(wanted: frozenset[str], gpu_id: str, arch: str, memory_bytes: int) -> tuple[int, bool, int] | None:
    """Return how well a GPU answers to the wanted words, least first; None where it is another card.

    Every word that names the card must be said, and every word that is said must be the card's (its architecture
    counts). Without a form factor the SXM part is meant, without a size the most memory.
    """
    have = words_of(gpu_id)
    named = {word for word in have - _FORMS if not re.fullmatch(r"\d+g", word)}
    extra = {*have, *arch.lower().split()}
    if not wanted or not named <= wanted or not wanted <= extra:
        return None
    return (len(have - wanted - {"sxm"}), "sxm" not in have, -memory_bytes)


def nearest(name: str, ids: Iterable[str]) -> str:
    """Return `did you mean X?` for the cards most like a name, equal numbers first; else the list of ids."""
    ids, wanted = list(ids), words_of(name)
    best: dict[frozenset[str], tuple[float, float, str]] = {}
    for gpu_id in ids:
        named = frozenset(word for word in words_of(gpu_id) - _FORMS if not re.fullmatch(r"\d+g", word))
        rank = (_likeness(wanted, named), _ratio(name, gpu_id), gpu_id)
        best[named] = max(best.get(named, rank), rank)
    near = sorted((rank for rank in best.values() if max(rank[:2]) >= 0.6), reverse=True)[:3]
    if not near:
        return f"known: {', '.join(sorted(ids))}"
    return f"did you mean {' or '.join(repr(gpu_id) for *_, gpu_id in near)}?"


def _likeness(wanted: frozenset[str], named: frozenset[str]) -> float:
    """Return 0 to 3: the share of equal letters, and 1 more for equal numbers and for a name that is all there."""
    one, other = (" ".join(sorted(words)) for words in (wanted, named))
    ratio = max([_ratio(one, other), *(_ratio(word, part) for word in wanted for part in named)])
    return ratio + (re.findall(r"\d+", one) == re.findall(r"\d+", other)) + (named <= wanted)


def _ratio(one: str, other: str) -> float:
    return difflib.SequenceMatcher(None, one, other).ratio()
