"""A case as GGUF files: the library's own tensors and sizes in the layout of the official files, its matrices as Q4_0 blocks
with the codes and scales that the exporter packed; exported from them, it must be the same model."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any, Final

import numpy as np
from fixtures.story.training import pack
from tests.official.cases import Case
from tests.support.tiny_story import checkpoint_tensors

from gemma4web.export.folder import ModelFolder, Packed, load_weights
from gemma4web.program import codec
from gemma4web.program.certify import renewed
from gemma4web.program.decoder import ASSISTANT_PREFIX
from gemma4web.program.ir import Program

BOS: Final = 2
OFFICIAL_PREFIXES: Final = ("model.language_model.", "model.")
PLAIN_PREFIX: Final = "model."


def writable(case: Case) -> bool:
    """Whether the format, as it is read, can say all of a q4 case: only the released models' share of a full head turns."""
    return bool(case.values["partial_rotary_factor"] == pack.ROTATED_SHARE)


def _short(name: str) -> str:
    """A checkpoint's tensor name as the packing script has it."""
    for prefix in (*OFFICIAL_PREFIXES, "masked_embedding."):
        name = name.removeprefix(prefix)
    return name


def _tensors(checkpoint: Path, packed: dict[str, Packed]) -> pack.Tensors:
    """Of one role, by short names: codes and steps of what is packed, everything else as the library saved it."""
    made: pack.Tensors = {}
    for name, values in checkpoint_tensors(checkpoint).items():
        if name in packed:
            nibbles, short = packed[name].values, _short(name)
            codes = np.stack([nibbles & 15, nibbles >> 4], axis=2).reshape(len(nibbles), -1)
            made |= {f"{short}.codes": codes, f"{short}.steps": packed[name].scales}
        else:
            made[_short(name)] = values
    return made


def _sizes(fields: dict[str, Any], architecture: str) -> dict[str, Any]:
    """Metadata of what a configuration of the library says of a decoder."""
    sliding = [type_ == "sliding_attention" for type_ in fields["layer_types"]]
    heads = {"heads": fields["num_attention_heads"], "head_dim": fields["head_dim"], "window": fields["sliding_window"],
             "global_head_dim": fields["global_head_dim"], "hidden": fields["hidden_size"], "layers": len(sliding),
             "per_layer": fields.get("hidden_size_per_layer_input", 0)}
    kv_heads = fields["num_key_value_heads"]
    of_full = fields["num_global_key_value_heads"] or kv_heads
    wide = [1 + (fields["use_double_wide_mlp"] and index >= len(sliding) - fields["num_kv_shared_layers"])
            for index in range(len(sliding))]
    rope = fields["rope_parameters"]
    facts = {
        "attention.head_count_kv": [kv_heads if part else of_full for part in sliding],
        "attention.layer_norm_rms_epsilon": fields["rms_norm_eps"], "context_length": fields["max_position_embeddings"],
        "feed_forward_length": [fields["intermediate_size"] * times for times in wide],
        "rope.freq_base": rope["full_attention"]["rope_theta"], "rope.freq_base_swa": rope["sliding_attention"]["rope_theta"],
    }
    if fields["final_logit_softcapping"] is not None:
        facts["final_logit_softcapping"] = fields["final_logit_softcapping"]
    return pack.decoder_metadata(architecture, heads, heads, sliding=sliding, shared=fields["num_kv_shared_layers"]) | {
        f"{architecture}.{key}": value for key, value in facts.items()}


def _tokenizer(vocab: int) -> dict[str, Any]:
    """The least that a reader takes: special ids as the cases have them, no end of text, and one merge."""
    pieces = ["<pad>", "a", "<bos>", "<unk>", "b", "ab", *(f"piece {number}" for number in range(6, vocab))]
    return {f"tokenizer.ggml.{key}": value for key, value in {
        "model": "gemma4", "tokens": pieces, "token_type": [1] * vocab, "merges": ["a b"], "bos_token_id": BOS,
        "unknown_token_id": 3, "add_space_prefix": False}.items()}


def _file(role: str, architecture: str, fields: dict[str, Any], tensors: pack.Tensors, **more: Any) -> pack.File:
    share = fields["rope_parameters"]["full_attention"]["partial_rotary_factor"]
    return pack.File(
        architecture=architecture,
        metadata=pack.general(f"Random {role}", "Compared with its checkpoint") | _sizes(fields, architecture)
        | {f"{architecture}.{key}": value for key, value in more.items()} | _tokenizer(fields["vocab_size"]),
        tensors=pack.stored(tensors, fields["num_hidden_layers"]) | {
            "rope_freqs.weight": (pack.rope_freqs(fields["global_head_dim"], share), pack.Type.F32)})


def write(case: Case, checkpoint: Path, exported: ModelFolder, out: Path) -> None:
    """target.gguf and assistant.gguf of the checkpoint's folders; ``exported`` is its q4 export."""
    method = max(exported.receipt["methods"], key=lambda name: name == "k2_round")
    packed = {name: stored for name, stored in load_weights(exported.program(method), exported.path).items()
              if isinstance(stored, Packed)}
    out.mkdir()
    _file("target", "gemma4", case.target, _tensors(checkpoint / "target", packed)).write(out / "target.gguf")
    if case.assistant is None:
        return
    outer, text = case.assistant
    own = {name.removeprefix(ASSISTANT_PREFIX): stored for name, stored in packed.items() if name.startswith(ASSISTANT_PREFIX)}
    centroids = {"n_centroids": outer["num_centroids"], "centroid_top_k": outer["centroid_intermediate_top_k"]}
    _file("assistant", "gemma4-assistant", text, _tensors(checkpoint / "assistant", own),
          embedding_length_out=outer["backbone_hidden_size"], nextn_predict_layers=text["num_hidden_layers"],
          **(centroids if outer["use_ordered_embeddings"] else {})).write(out / "assistant.gguf")


def _bytes(program: Program, like: Program) -> bytes:
    """A program's file, were its source receipt the other's: the one thing in it that tells where it came from."""
    return codec.to_bytes(dataclasses.replace(program, source_sha256=like.source_sha256))


def _renamed(program: Program) -> Program:
    """Under the names that GGUF has; names lie in shards too, so that places and hashes of these are other ones."""
    tensors = tuple(dataclasses.replace(tensor, name=tensor.name.replace(*OFFICIAL_PREFIXES))
                    for tensor in program.graph.tensors)
    graph = dataclasses.replace(program.graph, tensors=tensors)
    return dataclasses.replace(program, graph=graph, certificate=renewed(program.certificate, graph))


def differences(found: ModelFolder, wanted: ModelFolder) -> list[str]:
    """Where the export of GGUF files is not that of the checkpoint: programs, but for the hash of their source, and shards,
    byte for byte. A multimodal checkpoint's names are longer: of it the graphs and the bytes of every weight."""
    wrong = [] if found.receipt["methods"].keys() == wanted.receipt["methods"].keys() else ["other methods"]
    longer = wanted.target().prefix != PLAIN_PREFIX
    for method in wanted.receipt["methods"]:
        own, other = found.program(method), wanted.program(method)
        if longer:
            weights = {name.replace(*OFFICIAL_PREFIXES): stored for name, stored in load_weights(other, wanted.path).items()}
            other = _renamed(other)
            if (own.graph, own.stop_ids, own.certificate) != (other.graph, other.stop_ids, other.certificate):
                wrong.append(f"another graph of {method}")
            if _plain(load_weights(own, found.path)) != _plain(weights):
                wrong.append(f"other weights of {method}")
        elif _bytes(own, other) != (wanted.path / wanted.receipt["methods"][method]["program"]).read_bytes():
            wrong.append(f"another program {method}")
    shards = [{name: entry for name, entry in folder.receipt["files"].items() if name.endswith(".safetensors")}
              for folder in (found, wanted)]
    return wrong + (["other shards"] if not longer and shards[0] != shards[1] else [])


def _plain(weights: dict[str, Any]) -> dict[str, tuple[bytes, ...]]:
    return {name: (stored.values.tobytes(), stored.scales.tobytes()) if isinstance(stored, Packed) else (stored.tobytes(),)
            for name, stored in weights.items()}
