"""Play a real game over plain gRPC; first run: longturn serve --env textworld."""

import sys
import uuid

import grpc

from longturn.v1 import environment_pb2 as pb
from longturn.v1.environment_pb2_grpc import EnvironmentServiceStub

with grpc.insecure_channel(sys.argv[1] if len(sys.argv) > 1 else "127.0.0.1:50051") as channel:
    server = EnvironmentServiceStub(channel)
    wanted = {"family": "coin_collector", "level": "10"}
    listing = pb.ListTasksRequest(environment="textworld", split="train", filters=wanted, page_size=1)
    tasks = server.ListTasks(listing).tasks
    start = pb.StartEpisodeRequest(request_id=uuid.uuid4().hex, task=tasks[0].task, with_oracle=True)
    episode = server.StartEpisode(start)
    result = episode.result
    while result.status == pb.EPISODE_STATUS_RUNNING:
        print(f"{result.observation}\n> {result.oracle_action}")
        step = pb.StepRequest(episode_id=episode.episode_id, episode_token=episode.episode_token)
        step.turn_index, step.action = result.turn_index, result.oracle_action
        result = server.Step(step).result
    print(f"{result.observation}\n{'won' if result.success else 'lost'} after {result.turn_index} turns")
