"""The table of random models is drawn from as a whole, and a seed means one model; needs no torch."""

from __future__ import annotations

from collections import Counter

from tests.official.cases import REFUSED, TABLE, browser_cases, draw_case

DRAWN = [draw_case(seed) for seed in range(400)]


def test_every_value_and_refusal_is_drawn() -> None:
    missing = {name: set(choices) - {case.values[name] for case in DRAWN} for name, choices in TABLE.items()}
    assert not any(missing.values()), missing
    assert {case.refused for case in DRAWN} == set(REFUSED)


def test_a_seed_is_one_case() -> None:
    assert draw_case(7) == draw_case(7) != draw_case(8)
    assert draw_case(7).prompts() == draw_case(7).prompts()


def test_windows_are_passed_and_caches_are_shared_in_both_ways() -> None:
    """Prompts shorter and longer than the window; shared layers with and without wider MLPs; grouped query heads."""
    assert {max(case.values["prompt_tokens"]) > case.values["window"] for case in DRAWN} == {True, False}
    assert {(case.values["kv_shared_layers"] > 0, case.values["double_wide_mlp"]) for case in DRAWN} == {
        (True, True), (True, False), (False, True), (False, False)}
    assert {case.values["heads"] > case.values["kv_heads"] > 1 for case in DRAWN} == {True, False}


def test_three_in_four_cases_of_the_browser_are_as_people_ship_them() -> None:
    """4-bit weights and an assistant; the 16 have every value of the table all the same, none in nearly all of them."""
    chosen = browser_cases(DRAWN[:62], 16)
    assert len({case.seed for case in chosen}) == 16
    assert sum(case.shipped_alike for case in chosen) >= 12
    for name, choices in TABLE.items():
        counts = Counter(case.values[name] for case in chosen if (name, case.values[name]) in case.features())
        assert counts.keys() == set(choices), name
        assert max(counts.values()) <= 13, name


def test_few_cases_are_enough_for_a_choice() -> None:
    alone, other = DRAWN[2], DRAWN[3]
    assert not alone.shipped_alike and other.shipped_alike
    assert browser_cases([alone], 1) == [alone]
    assert browser_cases([alone, other], 1) == [other]
    assert browser_cases([alone, other], 5) == [other, alone]
    assert browser_cases(DRAWN, 0) == []
