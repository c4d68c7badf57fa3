"""Plausible mistakes in an implementation of the model, by name: each must be caught by something a test asserts."""

from __future__ import annotations

from enum import StrEnum


class Fault(StrEnum):
    """A mistake that the whole-model reference can make on purpose."""

    ROPE_DENOMINATOR = "rope_denominator"
    """Full layers: exponents over the rotated dims instead of the whole head."""
    ROPE_MISSING_ON_FULL = "rope_missing_on_full"
    """Full layers: queries and keys are not turned."""
    WINDOW_PLUS_ONE = "window_plus_one"
    """Sliding attention sees one position too many."""
    WINDOW_MINUS_ONE = "window_minus_one"
    """Sliding attention sees one position too few."""
    NO_V_NORM = "no_v_norm"
    """Values are cached without their norm."""
    NO_SOFTCAP = "no_softcap"
    """Logits are not capped; greedy tokens stay, the logits differ."""
    PLE_SCALE = "ple_scale"
    """Per-layer embedding rows are not multiplied by sqrt(width)."""
    EXACT_GELU = "exact_gelu"
    """The GELU of the normal distribution instead of its tanh form."""
    WRONG_DONOR = "wrong_donor"
    """Shared sliding layers, and the assistant's, read the owner before the last."""
    DRAFT_2_EMBEDDING_SCALE = "draft_2_embedding_scale"
    """The second draft step's embedding is not scaled."""
    QUERY_POSITION_PLUS_ONE = "query_position_plus_one"
    """Drafts are queried one position later."""
    NIBBLE_ORDER = "nibble_order"
    """q4: the even column is taken from the high nibble."""
    VALUES_AFTER_K_NORM = "values_after_k_norm"
    """Values made from keys are taken behind the keys' norm and normed again."""
    VALUES_WITH_K_NORM_WEIGHT = "values_with_k_norm_weight"
    """Values made from keys are multiplied by the weight of the keys' norm."""
    WRONG_KV_HEAD = "wrong_kv_head"
    """Query heads go round the KV heads, instead of neighbours sharing one."""
    FIRST_FULL_DONOR = "first_full_donor"
    """The assistant's full layers read the first full layer with a cache instead of the last."""
    RING_ONE_ROW_SHORT = "ring_one_row_short"
    """Sliding caches hold window - 2 + rows of the largest pass."""
