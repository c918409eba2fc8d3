"""GPU models: one table by product and memory; how nodes, jobs and teams name them; their peaks.

A node offers exactly one name for each GPU (`a100-80gb`, `h100-94gb`, `rtx-4090`). Users may write
that name, another spelling of it (`rtx4090`, `A100_80GB`), or a family (`a100`, `rtx`). `covered`
alone says which exact names a written name stands for.

The peaks are the dense ones of NVIDIA's data sheets, product pages and white papers. Figures that
these print with sparsity are halved. FP16, BF16 and FP8 accumulate in FP32. A peak that they do not
state, or that is in doubt, is left out, and the trainer measures it.

Each peak was compared with public copies of NVIDIA's tables or with tables that repeat them, not
with the original documents. All agree within 1 %, after rounding. The exceptions:

- H20 and L20: no sheet was found. Their peaks are those of several public tables.
- H800 PCIe: TF32 and FP32 have no source. They are those of the H100 PCIe.
- RTX A5000: TF32 has no source. It is half of FP16.
- A2: no copy of the sheet was found. The peaks agree with those computed from its clock.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

Precision = Literal["fp32", "tf32", "fp16", "bf16", "fp8"]

DISPLAY_BELOW_GIB = 5.0
"""GPUs with less memory drive displays: no model that is worth a cluster trains on them."""
_DISPLAY_WORDS = frozenset({"gt", "nvs", "t400", "t600", "t1000"})
_PARTS_OR_OTHERS = frozenset({"grid", "mig", "laptop", "mobile"})
"""A part of a card, or a slower one of the same name."""
_VENDOR_WORDS = frozenset({"nvidia", "geforce", "tesla", "graphics"})
_LONGEST_SLUG = 48


@dataclass(frozen=True, slots=True)
class Card:
    """A product: the words of its name, its memories in GB, its dense peaks in TFLOP/s.

    Products of one `name` are one model. `fp16` counts for BF16 too, unless `bf16` says no.
    """

    product: str
    name: str
    sizes_gb: tuple[int, ...]
    fp16: float | None = None
    tf32: float | None = None
    fp32: float | None = None
    fp8: float | None = None
    bf16: bool = True

    def tflops(self, precision: Precision) -> float | None:
        """The dense peak in TFLOP/s; None where the sheet states none."""
        if precision == "bf16":
            return self.fp16 if self.bf16 else None
        known = {"fp32": self.fp32, "tf32": self.tf32, "fp16": self.fp16, "fp8": self.fp8}
        return known[precision]


_A100_GB = (80, 64, 40)
_H100_GB = (96, 94, 80, 64)
_CARDS = (
    Card("gb300", "gb300", (280,), 2500, 1250, 80, 5000),
    Card("b300", "b300", (270,), 2250, 1125, 75, 4500),
    Card("gb200", "gb200", (186,), 2500, 1250, 80, 5000),
    Card("b200", "b200", (180,), 2250, 1125, 75, 4500),
    Card("gh200", "gh200", (144, 96), 989.4, 494.7, 66.9, 1978.9),
    Card("h200 nvl", "h200", (141,), 835.5, 417.5, 60, 1671),
    Card("h200", "h200", (141,), 989.4, 494.7, 66.9, 1978.9),
    Card("h100 nvl", "h100", _H100_GB, 835.5, 417.5, 60, 1671),
    Card("h100 pcie", "h100", _H100_GB, 756, 378, 51.2, 1513),
    Card("h100", "h100", _H100_GB, 989.4, 494.7, 66.9, 1978.9),
    Card("h800 pcie", "h800", (80,), 756, 378, 51.2, 1513),
    Card("h800", "h800", (80,), 989.4, 494.7, 66.9, 1978.9),
    Card("h20", "h20", (141, 96), 148, 74, fp8=296),
    Card("a100 sxm 64gb", "a100", _A100_GB),  # custom: Leonardo; no sheet
    Card("a100", "a100", _A100_GB, 312, 156, 19.5),
    Card("a800", "a800", (80, 40), 312, 156, 19.5),
    Card("a40", "a40", (48,), 149.7, 74.8, 37.4),
    Card("a30", "a30", (24,), 165, 82, 10.3),
    Card("a16", "a16", (16,)),
    Card("a10g", "a10g", (24,), 70, 35, 35),
    Card("a10", "a10", (24,), 125, 62.5, 31.2),
    Card("a2", "a2", (16,), 18, 9, 4.5),
    Card("l40s", "l40s", (48,), 362.05, 183, 91.6, 733),
    Card("l40", "l40", (48,), 181.05, 90.5, 90.5, 362),
    Card("l20", "l20", (48,), 119.5, 59.8, 59.8, 239),
    Card("l4", "l4", (24,), 121, 60, 30.3, 242.5),
    Card("t4", "t4", (16,), 65, None, 8.1, bf16=False),
    Card("v100 pcie", "v100", (32, 16), 112, None, 14, bf16=False),
    Card("v100s", "v100s", (32,), 130, None, 16.4, bf16=False),
    Card("v100", "v100", (32, 16), 125, None, 15.7, bf16=False),
    Card("p100 pcie", "p100", (16, 12), 18.7, None, 9.3, bf16=False),
    Card("p100", "p100", (16, 12), 21.2, None, 10.6, bf16=False),
    Card("p40", "p40", (24,), None, None, 12, bf16=False),
    Card("p4", "p4", (8,), None, None, 5.5, bf16=False),
    Card("rtx pro 6000 blackwell workstation", "rtx-pro-6000", (96,), 503.8, 251.9, 126, 1007.6),
    Card("rtx pro 6000 blackwell max q", "rtx-pro-6000", (96,), 438.9, 219.5, 110, 877.9),
    Card("rtx pro 6000 blackwell server", "rtx-pro-6000", (96,), fp32=120),
    Card("rtx pro 6000 blackwell", "rtx-pro-6000", (96,)),
    Card("rtx pro 5000 blackwell", "rtx-pro-5000", (72, 48)),
    Card("rtx pro 4500 blackwell", "rtx-pro-4500", (32,)),
    Card("rtx pro 4000 blackwell", "rtx-pro-4000", (24,)),
    Card("rtx 6000 ada", "rtx-6000-ada", (48,), 364.2, 182.1, 91.1, 728.5),
    Card("rtx 5000 ada", "rtx-5000-ada", (32,)),
    Card("rtx 4500 ada", "rtx-4500-ada", (24,)),
    Card("rtx 4000 ada", "rtx-4000-ada", (20,)),
    Card("rtx a6000", "rtx-a6000", (48,), 154.8, 77.4, 38.7),
    Card("rtx a5500", "rtx-a5500", (24,)),
    Card("rtx a5000", "rtx-a5000", (24,), 111.1, 55.6, 27.8),
    Card("rtx a4500", "rtx-a4500", (20,)),
    Card("rtx a4000", "rtx-a4000", (16,)),
    Card("quadro rtx 8000", "quadro-rtx-8000", (48,), 130.5, None, 16.3, bf16=False),
    Card("quadro rtx 6000", "quadro-rtx-6000", (24,), 130.5, None, 16.3, bf16=False),
    Card("titan rtx", "titan-rtx", (24,), 130.5, None, 16.3, bf16=False),
    Card("rtx 5090 d", "rtx-5090-d", (32,)),
    Card("rtx 5090", "rtx-5090", (32,), 209.5, 104.8, 104.8, 419),
    Card("rtx 5080", "rtx-5080", (16,)),
    Card("rtx 5070 ti", "rtx-5070-ti", (16,)),
    Card("rtx 4090 d", "rtx-4090-d", (24,)),
    Card("rtx 4090", "rtx-4090", (24,), 165.2, 82.6, 82.6, 330.3),
    Card("rtx 4080 super", "rtx-4080-super", (16,)),
    Card("rtx 4080", "rtx-4080", (16,), 97.5, 48.7, 48.7, 194.9),
    Card("rtx 3090 ti", "rtx-3090-ti", (24,), 80, 40, 40),
    Card("rtx 3090", "rtx-3090", (24,), 71, 35.6, 35.6),
    Card("rtx 3080 ti", "rtx-3080-ti", (12,)),
    Card("rtx 3080", "rtx-3080", (12, 10)),
    Card("rtx 2080 ti", "rtx-2080-ti", (11,)),
)
"""Of products whose words begin alike, the longer one stands first."""


def peak_flops(product: str, precision: Precision) -> float | None:
    """Dense FLOP/s of one GPU by the driver's product name; None where no sheet states it."""
    card = _card(product)
    tflops = None if card is None else card.tflops(precision)
    return None if tflops is None else tflops * 1e12


def memory_gb(name: str) -> int | None:
    """The GB of a model by its exact name; None where the name does not say which size it is."""
    card = _card(name)
    if card is None:
        return None
    if len(card.sizes_gb) == 1:
        return card.sizes_gb[0]
    return next((size for size in card.sizes_gb if f"{size}gb" in _words(name)), None)


def _words(name: str) -> list[str]:
    return re.findall(r"[a-z0-9.]+", name.lower())


@lru_cache(maxsize=1024)
def _card(product: str) -> Card | None:
    words = _words(product)
    if _PARTS_OR_OTHERS & {*words}:
        return None
    text = f" {' '.join(words)} "
    return next((card for card in _CARDS if f" {card.product} " in text), None)


def is_display_card(product: str, memory_gib: float) -> bool:
    """Whether a GPU is there for a display, so that no node offers it."""
    return memory_gib < DISPLAY_BELOW_GIB or bool(_DISPLAY_WORDS & {*_words(product)})


def offered_name(product: str, memory_gib: float) -> str:
    """The exact name by which a node offers a GPU.

    `product` and `memory_gib` are what the driver says. A product that the table lacks, and one
    with another memory, keeps the words of its name: `some-card-9000-20gb`.
    """
    card = _card(product)
    size = None if card is None else _size(card, memory_gib)
    if card is None or size is None:
        words = [word for word in _words(product) if word not in _VENDOR_WORDS] or ["gpu"]
        return f"{'-'.join(words)[:_LONGEST_SLUG].strip('-')}-{round(memory_gib)}gb"
    return card.name if len(card.sizes_gb) == 1 else f"{card.name}-{size}gb"


def exact_name(name: str) -> str:
    """The exact name of a node's GPUs, which a cluster file may spell in another way.

    A family without its memory stays one: nodes of earlier logs and of traces have `a100`.
    """
    return covered(name)[-1]


@lru_cache(maxsize=4096)
def covered(name: str) -> tuple[str, ...]:
    """The exact names that a written name stands for, best first, the bare family last.

    `a100` is every A100, `a100-80gb` and `A100_80GB` are one model. A name that the table lacks
    stands for itself, in lower case.
    """
    return _COVERED.get(_key(name)) or (name.lower(),)


def covered_by(names: Iterable[str]) -> tuple[str, ...]:
    """All that these written names stand for, in their order, each once."""
    return tuple(dict.fromkeys(exact for name in names for exact in covered(name)))


def in_short(names: Iterable[str]) -> str:
    """Exact names for a reader, with "or" between: a whole family by its own name."""
    left, found = [*names], []
    while left:
        first = left[0]
        whole = (
            family
            for family, members in _FAMILIES.items()
            if first in members and {*members} <= {*left}
        )
        name = next(whole, first)
        found.append(name)
        gone = {first, *_FAMILIES.get(name, ())}
        left = [other for other in left if other not in gone]
    return " or ".join(found)


def _size(card: Card, memory_gib: float) -> int | None:
    """Its memory in GB as it is sold: the driver reports up to 15 % less."""
    nearest = min(card.sizes_gb, key=lambda size: abs(size - memory_gib))
    return nearest if 0.85 * nearest <= memory_gib <= 1.05 * nearest else None


def _key(name: str) -> str:
    return re.sub(r"[^a-z0-9]", "", name.lower())


def _families() -> dict[str, tuple[str, ...]]:
    """Exact names by family, the widest family first."""
    found: dict[str, tuple[str, ...]] = {}
    every_rtx: dict[str, None] = {}
    for card in _CARDS:
        members: tuple[str, ...] = (card.name,)
        if len(card.sizes_gb) > 1:
            members = (*(f"{card.name}-{size}gb" for size in card.sizes_gb), card.name)
            found[card.name] = members
        if "rtx" in card.product.split():
            every_rtx.update(dict.fromkeys(members))
    return {"rtx": (*every_rtx, "rtx"), **found}


def _spellings() -> dict[str, tuple[str, ...]]:
    """Exact names by the letters and digits of each accepted spelling."""
    found: dict[str, tuple[str, ...]] = {}
    for card in _CARDS:
        members = _FAMILIES.get(card.name, (card.name,))
        names = [(card.name, members)]
        for size in card.sizes_gb:
            sized = f"{card.name}-{size}gb"
            names.append((sized, (sized,) if len(members) > 1 else members))
        for name, exact in names:
            found[_key(name)] = exact
            found.setdefault(_key(name.removeprefix("rtx-")), exact)
    return found | {_key(family): members for family, members in _FAMILIES.items()}


_FAMILIES = _families()
_COVERED = _spellings()
