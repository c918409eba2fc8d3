"""`run.config` and `run.summary`: what a run was started with, and what it came to."""

from __future__ import annotations

import numbers
from collections.abc import Callable, Iterator, Mapping, MutableMapping, Sequence
from typing import Any, Final

from gangline.tracking.values import TAG_CHARS, Point, check_name, params_of, points_of, text_of

SUMMARY: Final = "summary"


class Config(Mapping[str, Any]):
    """A run's parameters: `config["lr"]` or `config.lr`. A value that is set does not change."""

    _values: dict[str, Any]
    _fixed: frozenset[str]
    _params: dict[str, str]
    _send: Callable[[Mapping[str, str]], None]

    def __init__(self, fixed: Mapping[str, Any], send: Callable[[Mapping[str, str]], None]) -> None:
        """`fixed`: the job's hyperparameters, which go before all others and are known already."""
        self.__dict__.update(_values=dict(fixed), _fixed=frozenset(fixed), _params={}, _send=send)

    def update(self, values: Any) -> None:
        """Add parameters: a mapping, or an object with attributes such as argparse's Namespace.

        Nested ones are kept as `outer/inner`. Raises ValueError if one is set to another value;
        TypeError or ValueError for a name or a text that MLflow does not take.
        """
        given = mapping_of(values).items()
        new = {name: value for name, value in given if name not in self._fixed}
        params = params_of(new)
        for name, text in params.items():
            if self._params.get(name, text) != text:
                raise ValueError(
                    f"{name}: is {self._params[name]!r} already; a parameter cannot be changed"
                )
        fresh = {name: text for name, text in params.items() if name not in self._params}
        self._params.update(fresh)
        self._values.update(new)
        if fresh:
            self._send(fresh)

    def __getitem__(self, name: str) -> Any:
        return self._values[name]

    def __setitem__(self, name: str, value: Any) -> None:
        self.update({name: value})

    def __getattr__(self, name: str) -> Any:
        try:
            return self.__dict__["_values"][name]
        except KeyError:
            raise AttributeError(f"no parameter {name!r}") from None

    def __setattr__(self, name: str, value: Any) -> None:
        self.update({name: value})

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def __repr__(self) -> str:
        return repr(self._values)


class Summary(MutableMapping[str, Any]):
    """The last value of each metric, and what is set here: the run's own figures and texts.

    A number that is set becomes the metric `summary/NAME`, a text the tag `summary/NAME`.
    """

    def __init__(
        self,
        put: Callable[[Sequence[Point]], None],
        tag: Callable[[Mapping[str, str]], None],
    ) -> None:
        self._put, self._tag = put, tag
        self._last: dict[str, Any] = {}
        self._own: dict[str, Any] = {}

    def saw(self, points: Sequence[Point]) -> None:
        """Remember a step's values."""
        self._last.update(points)

    def __getitem__(self, name: str) -> Any:
        return self._own[name] if name in self._own else _plain(self._last[name])

    def __setitem__(self, name: str, value: Any) -> None:
        check_name(name)
        full = f"{SUMMARY}/{name}"
        if isinstance(value, numbers.Number) or hasattr(value, "item"):
            self._put(points_of({full: value}, set()))
        else:
            self._tag({full: text_of(name, value, TAG_CHARS)})
        self._own[name] = value

    def __delitem__(self, name: str) -> None:
        raise TypeError(f"{name}: what is in a summary stays")

    def __iter__(self) -> Iterator[str]:
        return iter({**self._last, **self._own})

    def __len__(self) -> int:
        return len({**self._last, **self._own})

    def __repr__(self) -> str:
        return repr(dict(self))


def mapping_of(config: Any) -> Mapping[str, Any]:
    """A configuration as a mapping. Raises TypeError unless it has names and values."""
    if isinstance(config, Mapping):
        return config
    if hasattr(config, "__dict__"):
        found: dict[str, Any] = vars(config)
        return found
    raise TypeError(f"config: a {type(config).__name__} has no names; give a mapping")


def _plain(value: Any) -> float:
    return float(value)
