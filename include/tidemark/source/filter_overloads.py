"""An operator or function by its name and the types it is given -> the one that PostgreSQL itself would take, or none.

    candidates of that name ──exact──► one ─────────────────────────────────► its polymorphic types made plain
            └──those that accept the types──► one, or the best by parse_func.c ──┘

A quoted literal has no type yet and counts as "unknown". Source: PostgreSQL documentation, 10.2 "Operators", 10.3
"Functions", 36.2.5 "Polymorphic Types"; oper_select_candidate() of parse_oper.c.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from tidemark.source.filter_catalogue import STRING, UNKNOWN, Catalogue, Routine

# Polymorphic types: of which family, and what they are made of the element type.
_SIMPLE: Final = {2283: "element", 2277: "array", 2776: "element", 3500: "enum", 3831: "range", 4537: "multirange"}
_COMPATIBLE: Final = {5077: "element", 5078: "array", 5079: "element", 5080: "range", 4538: "multirange"}


@dataclass(frozen=True, slots=True)
class Overloads:
    """The choice among routines of one name, for one filter's catalogue."""

    catalogue: Catalogue

    def chosen(self, candidates: list[Routine], types: list[int], *, assume_same: bool = False) -> Routine | None:
        """The candidate for the types, under "unknown" for a quoted literal; None if there is none or no single one.

        `assume_same` is the rule of binary operators: an unknown side is first taken to be of the other side's type.
        """
        exact = {candidate.arguments: candidate for candidate in candidates}
        if UNKNOWN not in types and tuple(types) in exact:
            return self._concrete(exact[tuple(types)], types)
        if assume_same and len(types) == 2 and types.count(UNKNOWN) == 1:
            typed = next(type_ for type_ in types if type_ != UNKNOWN)
            for same in (typed, self.catalogue.base(typed)):
                if (same, same) in exact:
                    return exact[same, same]
        fitting = [c for c in candidates if self._accepts(c, types)]
        chosen = fitting[0] if len(fitting) == 1 else self._best(fitting, types)
        return None if chosen is None else self._concrete(chosen, types)

    def _accepts(self, candidate: Routine, types: list[int]) -> bool:
        fits = all(
            to in _SIMPLE or to in _COMPATIBLE or self.catalogue.converts(type_, to)
            for type_, to in zip(types, candidate.arguments, strict=True)
        )
        return fits and self._concrete(candidate, types) is not None

    def _best(self, candidates: list[Routine], types: list[int]) -> Routine | None:
        """func_select_candidate() of parse_func.c."""
        catalogue = self.catalogue
        bases = [type_ if type_ == UNKNOWN else catalogue.base(type_) for type_ in types]
        typed = [i for i, type_ in enumerate(bases) if type_ != UNKNOWN]
        unknown = [i for i, type_ in enumerate(bases) if type_ == UNKNOWN]

        def exact(candidate: Routine) -> int:
            return sum(candidate.arguments[i] == bases[i] for i in typed)

        def exact_or_preferred(candidate: Routine) -> int:
            return sum(
                to == bases[i] or (catalogue.preferred(to) and catalogue.category(to) == catalogue.category(bases[i]))
                for i in typed
                for to in (candidate.arguments[i],)
            )

        for measure in (exact, exact_or_preferred):
            most = max(map(measure, candidates), default=0)
            candidates = [c for c in candidates if measure(c) == most]
            if len(candidates) < 2:
                return candidates[0] if candidates else None
        if not unknown:
            return None
        categories_wanted: dict[int, tuple[str, bool]] = {}
        for i in unknown:
            alternatives = {
                (catalogue.category(c.arguments[i]), catalogue.preferred(c.arguments[i])) for c in candidates
            }
            categories = {category for category, _ in alternatives}
            category = STRING if STRING in categories else next(iter(categories)) if len(categories) == 1 else None
            if category is None:
                break
            categories_wanted[i] = category, (category, True) in alternatives
        else:
            matching = [
                c
                for c in candidates
                if all(
                    catalogue.category(c.arguments[i]) == category
                    and (catalogue.preferred(c.arguments[i]) or not preferred)
                    for i, (category, preferred) in categories_wanted.items()
                )
            ]
            candidates = matching or candidates
            if len(candidates) == 1:
                return candidates[0]
        if len({bases[i] for i in typed}) == 1:
            of_all = bases[typed[0]]
            candidates = [c for c in candidates if self._accepts(c, [of_all] * len(types))]
            return candidates[0] if len(candidates) == 1 else None
        return None

    def _concrete(self, routine: Routine, types: list[int]) -> Routine | None:
        """The routine with its polymorphic types replaced by what they are for these; None if they do not agree."""
        everything = (*routine.arguments, routine.result)
        if not any(type_ in _SIMPLE or type_ in _COMPATIBLE for type_ in everything):
            return routine
        concrete: dict[int, int] = {}
        for family in (_SIMPLE, _COMPATIBLE):
            elements_given = [
                self._element_of(type_, family[to])
                for type_, to in zip(types, routine.arguments, strict=True)
                if to in family and type_ != UNKNOWN
            ]
            if None in elements_given:
                return None
            elements = [element for element in elements_given if element is not None]
            element = self.catalogue.common(elements) if family is _COMPATIBLE else _only_one(elements)
            if element is None:
                if any(type_ in family for type_ in everything):
                    return None
                continue
            for polymorphic, shape in family.items():
                concrete[polymorphic] = self._of_element(element, shape, types)
        replaced = tuple(concrete.get(type_, type_) for type_ in everything)
        if 0 in replaced:
            return None
        return Routine(routine.name, replaced[:-1], replaced[-1], routine.immutable, routine.set_returning)

    def _element_of(self, type_: int, shape: str) -> int | None:
        """What the polymorphic type's element is, where an argument of `type_` takes its place."""
        base = self.catalogue.types.get(self.catalogue.base(type_))
        if base is None:
            return None
        if shape == "element":
            return base.oid
        if shape == "enum":
            return base.oid if base.kind == "e" else None
        if shape == "range":
            return base.subtype or None
        if shape == "multirange":
            of_range = self.catalogue.types.get(base.range)
            return None if of_range is None else of_range.subtype
        return base.element or None

    def _of_element(self, element: int, shape: str, types: list[int]) -> int:
        """The reverse; a range is that of an argument, since several may have one subtype. 0 if there is none."""
        if shape in ("element", "enum"):
            return element
        if shape == "array":
            return self.catalogue.types[element].array
        arguments = [self.catalogue.types.get(self.catalogue.base(type_)) for type_ in types]
        ranges = {a.oid if a.subtype else a.range for a in arguments if a is not None and (a.subtype or a.range)}
        if len(ranges) != 1:
            return 0
        (range_,) = ranges
        if shape == "range":
            return range_
        return next((t.oid for t in self.catalogue.types.values() if t.range == range_), 0)


def _only_one(elements: list[int]) -> int | None:
    return elements[0] if len(set(elements)) == 1 else None
