"""`python -m gangline_kube.operator`: TrainingJob objects, beside REST.

1. Once the kind is defined, kopf follows the objects in a thread of its own and calls
   `service/operator.py`.
2. This thread mirrors the states of jobs into the objects (`service/mirror.py`).
"""

from __future__ import annotations

import threading
from concurrent.futures import Future

import kopf

from gangline_kube.core.resource import TRAINING_JOBS, Object
from gangline_kube.core.training_job import shown_part
from gangline_kube.service.comparing import both_sides
from gangline_kube.service.config import OperatorSettings, exact, words
from gangline_kube.service.following import Followed
from gangline_kube.service.mirror import Mirror
from gangline_kube.service.operator import Operator, registry_of, settings_of
from gangline_service.lifecycle import Context, run

_STOP_S = 5.0


def main(context: Context[OperatorSettings]) -> None:
    """The life of the process. If kopf ends by itself, the process ends."""
    settings, health = context.settings, context.health
    health.expect("objects")
    health.expect("gateway")
    api, gateway = both_sides(settings)
    namespaces = words(settings.kube_namespaces)
    named = exact(namespaces)
    objects = [
        Followed(api, TRAINING_JOBS, context.stopping, shown_part, each)
        for each in (namespaces if named else ("",))
    ]
    for each in objects:
        each.start()
    stop: Future[None] = Future()

    def listed() -> bool:
        return all(each.listed.is_set() for each in objects)

    def follow() -> None:
        while not listed():
            if context.stopping.wait(0.5):
                return
        kopf.run(
            registry=registry_of(Operator(api, gateway), api),
            settings=settings_of(scanning=bool(namespaces) and not named),
            standalone=True,
            clusterwide=not namespaces,
            namespaces=namespaces,
            stop_flag=stop,
        )
        if not stop.done():
            raise RuntimeError("kopf has ended")

    kopf_thread = threading.Thread(target=follow, name="kopf", daemon=True)
    kopf_thread.start()

    def beat(well: bool) -> None:  # noqa: FBT001 -- see Mirror.run
        health.beat()
        health.set("objects", ok=listed())
        health.set("gateway", ok=well)

    def items() -> list[Object]:
        return [item for each in objects for item in each.items()]

    mirror = Mirror(api, gateway, items, namespaces)
    mirror.run(context.stopping, settings.kube_mirror_s, beat)
    stop.set_result(None)
    kopf_thread.join(_STOP_S)


if __name__ == "__main__":
    run("kube-operator", OperatorSettings.load(), main)
