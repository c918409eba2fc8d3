"""Reads a configuration file in YAML, or in TOML if its name ends with `.toml`."""

from __future__ import annotations

import tomllib
from pathlib import Path

import yaml


class ConfigFileError(Exception):
    """A configuration file cannot be used; the message names the file and what is wrong."""


def read_config_file(path: Path) -> object:
    """The content as plain values; an empty YAML file is None. Raises ConfigFileError."""
    is_toml = path.suffix == ".toml"
    try:
        text = path.read_text(encoding="utf-8")
        return tomllib.loads(text) if is_toml else yaml.safe_load(text)
    except OSError as error:
        raise ConfigFileError(f"{path}: cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise ConfigFileError(f"{path}: is not UTF-8 text") from None
    except (ValueError, RecursionError, yaml.YAMLError) as error:  # also a date that is none
        kind = "TOML" if is_toml else "YAML"
        raise ConfigFileError(f"{path}: is not {kind}: {error}") from None
