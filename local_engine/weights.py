"""Finds and reads weight folders: safetensors only, only below the weights root, whole or not at all."""

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any  # config.json is free-form; decoder_config.py checks what it reads

import torch
from safetensors import SafetensorError
from safetensors.torch import load as parse_safetensors
from torch import Tensor

from local_engine.errors import StartError, WeightsError
from longturn.completion import DamagedFolderError, file_digests, is_marked
from longturn.disk import DiskError, read_json
from longturn.errors import ConfigError

INDEX_NAME = "model.safetensors.index.json"
_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}


def read_config(folder: Path) -> dict[str, Any]:
    """`config.json` of a model folder; raise `StartError` naming what is missing."""
    if not folder.is_dir():
        raise StartError(f"model folder {folder} does not exist; set engine.model_path")
    path = folder / "config.json"
    if not path.is_file():
        raise StartError(f"no config.json in {folder}; engine.model_path must name a Hugging Face model folder")
    return _json_object(path)


def eos_token_ids(folder: Path, raw: Mapping[str, Any]) -> frozenset[int]:
    """Ids that end a text, from `config.json` and `generation_config.json`; `StartError` if they are none."""
    path = folder / "generation_config.json"
    generation = _json_object(path) if path.is_file() else {}
    ids: set[int] = set()
    for source in (raw, generation):
        value = source.get("eos_token_id")
        listed = value if isinstance(value, list) else [] if value is None else [value]
        if not all(isinstance(index, int) for index in listed):
            raise StartError(f"eos_token_id of the model in {folder} is {value!r}, which is no token id; restore it")
        ids |= set(listed)
    return frozenset(ids)


def _json_object(path: Path) -> dict[str, Any]:
    try:
        return read_json(path, mend="restore it, or set engine.model_path to another folder")
    except (ConfigError, DiskError) as error:
        raise StartError(str(error)) from error


def resolve_folder(model_path: str, weights_root: Path | None) -> Path:
    """The weight folder a request names, links resolved; refused unless it lies below the weights root."""
    if weights_root is None:
        raise WeightsError("weights cannot be loaded over HTTP: the engine was started without engine.weights_root")
    root = weights_root.resolve()
    folder = (root / model_path).resolve()
    if not folder.is_relative_to(root):
        raise WeightsError("model_path is not below engine.weights_root")
    if not folder.is_dir():
        raise WeightsError(f"weight folder {model_path} does not exist below engine.weights_root")
    return folder


def read_weights(folder: Path, manifest: Mapping[str, str] | None = None) -> dict[str, Tensor]:
    """All tensors of a folder, on the CPU.

    Checksums (file name to SHA-256 in hex) come from `manifest`, else from the folder's COMPLETE marker if it has one
    (the learner's publisher writes it last). Raises `WeightsError` on a missing, damaged, linked-away or unlisted file.
    """
    checksums = dict(manifest) if manifest is not None else _checksums(folder)
    tensors: dict[str, Tensor] = {}
    for path in weight_files(folder):
        if not path.resolve().is_relative_to(folder):
            raise WeightsError(f"{path.name} is a link out of its folder")
        content = path.read_bytes()
        if checksums is not None:
            verify_checksum(path.name, content, checksums)
        try:
            part = parse_safetensors(content)
        except SafetensorError as error:
            raise WeightsError(f"{path.name} is damaged: {error}") from error
        if doubled := sorted(part.keys() & tensors.keys()):
            raise WeightsError(f"tensor {doubled[0]} is in two files")
        tensors |= part
    return tensors


def _checksums(folder: Path) -> dict[str, str] | None:
    """What the folder's completion marker says; None if it has none, as those of others have not."""
    if not is_marked(folder):
        return None
    try:
        return file_digests(folder)
    except DamagedFolderError as error:
        raise WeightsError(str(error)) from error


def weight_files(folder: Path) -> list[Path]:
    """Files that the index lists, or else every safetensors file of the folder, sorted."""
    index = folder / INDEX_NAME
    if index.is_file():
        try:
            names = sorted(set(read_json(index, mend="")["weight_map"].values()))
        except (ConfigError, DiskError, KeyError, AttributeError, TypeError) as error:
            raise WeightsError(f"{INDEX_NAME} has no weight_map") from error
        paths = [folder / str(name) for name in names]
    else:
        paths = sorted(folder.glob("*.safetensors"))
    if not paths:
        raise WeightsError(f"no safetensors file in {folder.name}; other formats are not loaded")
    if missing := [path.name for path in paths if not path.is_file()]:
        raise WeightsError(f"{missing[0]} is listed but missing")
    return paths


def verify_checksum(name: str, content: bytes, checksums: Mapping[str, str]) -> None:
    """Raise `WeightsError` unless the file is listed with exactly this content."""
    if name not in checksums:
        raise WeightsError(f"{name} is not among the checksums")
    if hashlib.sha256(content).hexdigest() != checksums[name]:
        raise WeightsError(f"{name} does not match its checksum")


def dtype_named(name: str, raw: Mapping[str, Any]) -> torch.dtype:
    """The dtype to compute in; "auto" is that of `config.json`, float32 where it has none.

    Raises `StartError` for a checkpoint in another one: what is served in its place is for the operator to say.
    """
    if name == "auto":
        name = str(raw.get("dtype") or raw.get("torch_dtype") or "float32")
    if name not in _DTYPES:
        raise StartError(
            f'the checkpoint is in {name}, which is not computed here; set engine.dtype = "float32" or "bfloat16"'
        )
    return _DTYPES[name]
