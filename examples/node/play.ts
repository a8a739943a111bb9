// Plays one episode by the environment's own expert; first: longturn serve --env echo, then here:
//   npm ci && npm run build && npm run play -- 127.0.0.1:50051 echo
import { randomUUID } from "node:crypto";
import { join } from "node:path";
import * as grpc from "@grpc/grpc-js";
import * as loader from "@grpc/proto-loader";
import type { ProtoGrpcType } from "./generated/environment";
import type { EnvironmentServiceClient } from "./generated/longturn/v1/EnvironmentService";
import type { ListTasksResponse__Output } from "./generated/longturn/v1/ListTasksResponse";
import type { StartEpisodeResponse__Output } from "./generated/longturn/v1/StartEpisodeResponse";
import type { StepResponse__Output } from "./generated/longturn/v1/StepResponse";

// Every call has a deadline. A step that missed it may be repeated under its turn index: it happens once.
function ask<Reply>(
  call: (options: grpc.CallOptions, done: grpc.requestCallback<Reply>) => unknown, seconds = 60,
): Promise<Reply> {
  return new Promise((resolve, reject) =>
    call({ deadline: Date.now() + 1000 * seconds }, (error, reply) => (reply ? resolve(reply) : reject(error))));
}

async function main(address: string, environment: string): Promise<void> {
  const folder = join(__dirname, "..", "..", "..", "proto");
  const definition = loader.loadSync("longturn/v1/environment.proto", {
    includeDirs: [folder], longs: String, enums: String, defaults: true, oneofs: true,
  });
  const { longturn } = grpc.loadPackageDefinition(definition) as unknown as ProtoGrpcType;
  const client: EnvironmentServiceClient =
    new longturn.v1.EnvironmentService(address, grpc.credentials.createInsecure());
  const listing = { environment, split: "train", pageSize: 1 };
  const { tasks } = await ask<ListTasksResponse__Output>((options, done) => client.ListTasks(listing, options, done));
  const start = { requestId: randomUUID(), task: tasks[0].task, withOracle: true };
  const episode = await ask<StartEpisodeResponse__Output>(
    (options, done) => client.StartEpisode(start, options, done), 600);
  let result = episode.result!;
  while (result.status === "EPISODE_STATUS_RUNNING") {
    const action = result.oracleAction ?? "";
    console.log(`${result.observation}\n> ${action}`);
    const { episodeId, episodeToken } = episode;
    const step = { episodeId, episodeToken, turnIndex: result.turnIndex, action };
    const reply = await ask<StepResponse__Output>((options, done) => client.Step(step, options, done));
    result = reply.result!;
  }
  console.log(`${result.observation}\n${result.success ? "won" : "lost"} after ${result.turnIndex} turns`);
  client.close();
}

main(process.argv[2] ?? "127.0.0.1:50051", process.argv[3] ?? "echo").catch((error: grpc.ServiceError) => {
  console.error(`${error.code}: ${error.details ?? error.message}`);
  process.exitCode = 1;
});
