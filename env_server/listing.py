"""Lists environments and tasks as messages."""

from __future__ import annotations

from env_server.calls import check_lengths
from env_server.catalog import Catalog
from env_server.environment import EnvironmentSpec, KnobSpec
from env_server.preparers import Preparers
from env_server.refusals import RefusedError
from longturn.codec import knob_to_proto, task_to_proto
from longturn.records import Task
from longturn.v1 import environment_pb2

DEFAULT_PAGE = 1000
MAX_PAGE = 10_000
_KINDS = {
    "int": environment_pb2.KNOB_KIND_INT,
    "float": environment_pb2.KNOB_KIND_FLOAT,
    "bool": environment_pb2.KNOB_KIND_BOOL,
    "choice": environment_pb2.KNOB_KIND_CHOICE,
}
_DETERMINISMS = {
    "exact": environment_pb2.DETERMINISM_EXACT,
    "up_to_order": environment_pb2.DETERMINISM_UP_TO_ORDER,
    "none": environment_pb2.DETERMINISM_NONE,
}


class Listing:
    """Answers ListEnvironments and ListTasks."""

    def __init__(self, catalog: Catalog, preparers: Preparers) -> None:
        self._catalog, self._preparers = catalog, preparers

    def environments(self) -> environment_pb2.ListEnvironmentsResponse:
        """All environments, in the order of their names."""
        return environment_pb2.ListEnvironmentsResponse(
            environments=[environment_to_proto(spec) for spec in self._catalog.specs.values()]
        )

    async def tasks(self, request: environment_pb2.ListTasksRequest) -> environment_pb2.ListTasksResponse:
        """One page of an environment's tasks."""
        check_lengths("the question", request.environment, request.split, *request.filters, *request.filters.values())
        spec = self._catalog.spec(request.environment)
        self._catalog.check_split(spec, request.split)
        start = _start_of(request.page_token)
        count = min(request.page_size or DEFAULT_PAGE, MAX_PAGE)
        page = await self._preparers.list_tasks(spec.name, request.split, dict(request.filters), start, count)
        end = start + len(page["tasks"])
        return environment_pb2.ListTasksResponse(
            tasks=[
                environment_pb2.TaskInfo(
                    # What the id already fixes is not repeated as knobs of the task.
                    task=task_to_proto(Task(environment=spec.name, task_id=item["task_id"])),
                    kind=item["kind"],
                    score_max=item["score_max"],
                )
                for item in page["tasks"]
            ],
            next_page_token=str(end) if page["tasks"] and end < page["num_tasks"] else "",
            num_tasks=page["num_tasks"],
        )


def _start_of(page_token: str) -> int:
    if not page_token:
        return 0
    if not (page_token.isascii() and page_token.isdecimal() and len(page_token) < 19):
        raise RefusedError("BAD_REQUEST", "page_token is not one that this server gave out")
    return int(page_token)


def environment_to_proto(spec: EnvironmentSpec) -> environment_pb2.EnvironmentInfo:
    """What the server says about an environment."""
    return environment_pb2.EnvironmentInfo(
        name=spec.name,
        version=spec.version,
        data_hash=spec.data_hash,
        action_format=spec.action_format,
        max_turns=spec.max_turns,
        knobs=[_knob(knob) for knob in spec.knobs],
        determinism=_DETERMINISMS[spec.determinism.value],
        is_forkable=spec.is_forkable,
        score_min=spec.score_min,
        score_max=spec.score_max,
        splits=spec.splits,
        has_oracle=spec.has_oracle,
        has_progress=spec.has_progress,
        licence=spec.licence,
        description=spec.description,
        random_success_ceiling=spec.random_success_ceiling,
    )


def _knob(knob: KnobSpec) -> environment_pb2.KnobSpec:
    return environment_pb2.KnobSpec(
        name=knob.name,
        kind=_KINDS[knob.kind],
        default_value=knob_to_proto(knob.default),
        minimum=knob.minimum,
        maximum=knob.maximum,
        choices=knob.choices,
        description=knob.description,
    )
