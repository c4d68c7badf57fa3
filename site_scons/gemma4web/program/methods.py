"""The two methods: ``text_decoder`` (plain greedy) and ``k2_round`` (a prefill, or a round of two drafts)."""

from __future__ import annotations

from dataclasses import dataclass

from gemma4web.program import ir
from gemma4web.program.architecture import Assistant, Target
from gemma4web.program.builder import GraphBuilder
from gemma4web.program.decoder import add_caches, draft_step, target_graph
from gemma4web.program.ir import Dtype, Phase, QueryPositions, Role, ScaleDtype


@dataclass(frozen=True, kw_only=True, slots=True)
class GraphOptions:
    """``prefill_rows``: rows of the largest prefill pass; ``context``: positions that the full caches are made for.

    ``group``, ``scale_dtype``: of q4 matrices.
    """

    linear_dtype: Dtype
    prefill_rows: int
    context: int
    all_logits: bool = False
    query_positions: QueryPositions = QueryPositions.CONSTANT
    group: int = ir.Q4_GROUPS[0]
    scale_dtype: ScaleDtype = ScaleDtype.F16

    @property
    def pass_rows(self) -> int:
        """Rows of the largest pass of any kind: a method-independent number, so both methods have equal caches."""
        return max(self.prefill_rows, ir.VERIFY_ROWS)


def _builder(options: GraphOptions, *, round_: bool) -> GraphBuilder:
    rows = options.pass_rows if round_ else options.prefill_rows
    return GraphBuilder(linear_dtype=options.linear_dtype, pass_rows=rows, tail_rows=ir.VERIFY_ROWS if round_ else 1,
                        group=options.group, scale_dtype=options.scale_dtype)


def _finish(g: GraphBuilder, method: str, target: Target, options: GraphOptions, inputs: tuple[int, ...],
            outputs: tuple[int, ...], draft_head: ir.DraftHead = ir.DraftHead.CENTROIDS) -> ir.Graph:
    return g.graph(
        method=method, inputs=inputs, outputs=outputs, vocab=target.vocab, hidden=target.hidden,
        context=options.context, prefill_rows=options.prefill_rows, window=target.window,
        embedding_scale=target.embedding_scale, query_positions=options.query_positions, draft_head=draft_head,
    )


def text_decoder(target: Target, options: GraphOptions) -> ir.Graph:
    """inputs ids i32[1, M], positions i32[1, M]; output next_token i32[1, 1]. Knows nothing of the assistant."""
    g = _builder(options, round_=False)
    ids, positions = (g.input(name, 1, options.prefill_rows) for name in ("ids", "positions"))
    caches = add_caches(g, target, context=options.context, pass_rows=options.pass_rows)
    greedy, _ = target_graph(g, target, caches, ids, positions, all_logits=options.all_logits)
    next_token = g.output("next_token", Dtype.I32, 1, 1)
    g.emit(ir.CopyLast(), (greedy,), (next_token,))
    return _finish(g, ir.TEXT_DECODER, target, options, (ids, positions), (next_token,))


def k2_round(target: Target, assistant: Assistant, options: GraphOptions) -> ir.Graph:
    """inputs ids, positions i32[1, M], round_flag i32[1], donor_length i32[1]; outputs candidates, target_greedy,
    match_count, bonus, state_probe. The two draft steps come first and run only when the flag is 1."""
    g = _builder(options, round_=True)
    ids, positions = (g.input(name, 1, options.prefill_rows) for name in ("ids", "positions"))
    flag, donor_length = g.input("round_flag", 1), g.input("donor_length", 1)
    caches = add_caches(g, target, context=options.context, pass_rows=options.pass_rows)
    seed = g.cache("seed", 1, 1, target.hidden)
    with g.section(Role.ASSISTANT, Phase.ROUND):
        views = {
            layer: (g.donor_view(f"donor.{layer}.k", caches.of_layer[layer][0], donor_length, window),
                    g.donor_view(f"donor.{layer}.v", caches.of_layer[layer][1], donor_length, window))
            for layer, window in sorted({(layer.donor, assistant.window_of(layer)) for layer in assistant.layers})
        }
        drafts: list[int] = []
        token, state = ids, seed
        for step in range(ir.DRAFTS):
            query_position = donor_length
            if step and options.query_positions is QueryPositions.PROGRESSIVE:
                query_position = g.add_scalar(f"draft.{step}.position", donor_length, step)
            token, state = draft_step(g, target, assistant, views, step=step, ids=token, state=state,
                                      query_position=query_position, donor_length=donor_length)
            drafts.append(token)
    pass_ids, pass_positions = g.pass_rows(ids, positions, flag, (drafts[0], drafts[1]))
    greedy, hidden = target_graph(g, target, caches, pass_ids, pass_positions, all_logits=options.all_logits)
    candidates = g.output("candidates", Dtype.I32, 1, 2)
    target_greedy = g.output("target_greedy", Dtype.I32, 1, 3)
    match_count, bonus = (g.output(name, Dtype.I32, 1, 1) for name in ("match_count", "bonus"))
    probe = g.output("state_probe", Dtype.F32, 1, 1)
    g.emit(ir.Accept(), (flag, *drafts, greedy), (candidates, target_greedy, match_count, bonus))
    g.emit(ir.SeedWrite(), (flag, hidden, match_count), (seed, probe))
    return _finish(g, ir.K2_ROUND, target, options, (ids, positions, flag, donor_length),
                   (candidates, target_greedy, match_count, bonus, probe), assistant.head)
