"""Settings of everything that holds a connection. Tables: `env_server` and the rest inside `[act]` and `[eval]`."""

from __future__ import annotations

from pathlib import Path
from typing import Literal, Self

from pydantic import ConfigDict, Field, SecretStr, model_validator

from longturn.addresses import is_loopback
from longturn.config import Config

_LEAST_SUMMARY_TOKENS = 16


class ClientTlsConfig(Config):
    """Encryption towards an env server. Files are PEM."""

    enabled: bool = False
    """Encrypt the connection; each of the settings below implies it."""
    ca: Path | None = None
    """Authority that must have signed the server's certificate; left out: those gRPC knows."""
    certificate: Path | None = None
    """This client's certificate, for servers that demand one."""
    key: Path | None = None
    """The certificate's private key."""
    server_name: str = ""
    """Name that the server's certificate must have; empty: the host of the address."""

    @property
    def is_used(self) -> bool:
        """Whether the connection is encrypted."""
        return self.enabled or self.ca is not None or self.certificate is not None or bool(self.server_name)

    @model_validator(mode="after")
    def _check(self) -> Self:
        if (self.certificate is None) != (self.key is None):
            raise ValueError("tls.certificate and tls.key belong together; set both or neither")
        return self


class EnvClientConfig(Config):
    """How to reach an env server, and how patient to be."""

    model_config = ConfigDict(hide_input_in_errors=True)  # a token may be among it

    address: str = "127.0.0.1:50051"
    """host:port of the env server (`longturn serve`). Several, separated by commas: starts are spread over them.
    `dns:NAME:PORT` stands for all addresses that the name has at the start."""
    token: SecretStr = SecretStr("")
    """Bearer token; empty: none is sent."""
    token_file: Path | None = None
    """File that holds the bearer token, alone or behind a name; read for every connection, and preferred to `token`."""
    tls: ClientTlsConfig = ClientTlsConfig()
    """Encryption."""
    insecure: bool = False
    """Send the token unencrypted to another machine."""
    client_id: str = Field(default="", max_length=128)
    """Name in the server's limits and logs; empty: made from host and process id."""
    connect_budget_s: float = Field(default=60.0, gt=0)
    """How long an absent server is waited for at the start."""
    outage_budget_s: float = Field(default=300.0, gt=0)
    """How long a server that has answered before is waited for when it stalls or goes away."""
    attempt_timeout_s: float = Field(default=2.5, gt=0)
    """How long one attempt to reach the server may take."""
    start_timeout_s: float = Field(default=900.0, gt=0)
    """How long the first observation may take; games may have to be generated."""
    step_timeout_s: float = Field(default=300.0, gt=0)
    """How long a step, or an end that waits for one, may take; longer than the server's own step_timeout_s, which ends
    the episode properly."""
    call_timeout_s: float = Field(default=30.0, gt=0)
    """How long any other call may take."""
    refused_budget_s: float = Field(default=300.0, ge=0)
    """How long a call is repeated that the server refuses for now (no free episode, too many requests)."""
    max_message_bytes: int = Field(default=64 * 2**20, ge=4096)
    """Largest message either way; the server has its own limit."""
    ping_interval_s: float = Field(default=0.0, ge=0)
    """Seconds between HTTP/2 pings; 0: none. Leave it off behind proxies that swallow pings."""
    data_hashes: dict[str, str] = Field(default_factory=dict)
    """Data hash that each named environment must have; others are pinned when they are first met."""

    @model_validator(mode="after")
    def _check(self) -> Self:
        has_token = bool(self.token.get_secret_value()) or self.token_file is not None
        if not self.addresses:
            raise ValueError("env_server.address is empty; set it to host:port")
        if has_token and not (self.tls.is_used or self.insecure or all(map(_is_here, self.addresses))):
            raise ValueError(
                f"the token would travel unencrypted to {self.address}; set env_server.tls.ca (or .tls.enabled),"
                " or env_server.insecure = true to send it all the same"
            )
        return self

    @property
    def addresses(self) -> tuple[str, ...]:
        """Each address of `address`."""
        return tuple(part.strip() for part in self.address.split(",") if part.strip())


def _is_here(address: str) -> bool:
    """Whether an address is on this machine."""
    if address.startswith("unix:"):
        return True
    return is_loopback(address.rpartition(":")[0])


class SglangConfig(Config):
    """How to ask engines for completions."""

    request_timeout_s: float = Field(default=120.0, gt=0)
    """How long one request may take; a weight update may freeze it meanwhile."""
    turn_budget_s: float = Field(default=600.0, gt=0)
    """How long a turn is tried on one engine or another before its episode is given up."""
    confirm_wait_s: float = Field(default=30.0, ge=0)
    """How long a turn waits for the announcement of the version that sampled it before it is discarded."""
    max_connections: int = Field(default=1024, ge=1)
    """Most requests in flight."""
    regex: str = ""
    """Regular expression that every completion must match; only in evaluation, and only where the engine has grammars.
    Logprobs are then those of the constrained distribution, which the learner does not compute."""
    json_schema: str = ""
    """JSON schema that every completion must match, like `regex`; at most one of the two."""

    @model_validator(mode="after")
    def _one_grammar(self) -> Self:
        if self.regex and self.json_schema:
            raise ValueError("engine.regex and engine.json_schema are both set; set at most one")
        return self


class RendererConfig(Config):
    """How observations become tokens."""

    tokenizer: Path = Path("tokenizer.json")
    """tokenizer.json of the policy, or the folder that holds it."""
    format: Literal["plain", "qwen2.5", "qwen3", "llama3", "smollm2"] = "plain"
    """How a turn looks: `plain` tags for policies of `longturn warmstart`, else the chat template of the family."""
    history: Literal["append", "strip", "window"] = "append"
    """What a prompt keeps of earlier turns: all of it (`append`), all but reasoning (`strip`), or the first observation
    and the last `window_turns` turns (`window`). The last two start a row for the learner whenever a prompt does not
    extend the one before."""
    reasoning: Literal["forced", "free", "none"] = "forced"
    """Whether prompts end with `<think>`, the policy may write it itself, or it is asked for the action alone; chat
    formats only."""
    instructions: str = ""
    """First message of a chat format; empty: a text that explains the tags."""
    stop_at_action: bool = True
    """Whether a completion ends with `</action>`; else with the family's end of a message. Chat formats only."""
    show_admissible: bool = False
    """Whether observations are followed by the admissible actions, where the environment lists them."""
    window_turns: int = Field(default=2, ge=0)
    """Observations with their actions that a window shows before the newest observation."""
    max_observation_tokens: int = Field(default=512, ge=16)
    """Longer observations lose their middle, visibly: `[...]` stands for it."""
    max_admissible_tokens: int = Field(default=256, ge=48)
    """Budget of the listed actions; how many more there are is said."""
    max_earlier_tokens: int = Field(default=128, ge=16)
    """Budget of each earlier observation and action in a window."""
    max_summary_tokens: int = Field(default=128, ge=0)
    """Budget of the list of actions before a window; the oldest are left out, visibly. 0: no list."""

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.format == "plain" and (self.reasoning != "forced" or self.instructions or not self.stop_at_action):
            raise ValueError(
                "renderer.reasoning, .instructions and .stop_at_action belong to chat formats; set renderer.format"
            )
        if 0 < self.max_summary_tokens < _LEAST_SUMMARY_TOKENS:
            raise ValueError(f"renderer.max_summary_tokens must be 0 or at least {_LEAST_SUMMARY_TOKENS}")
        return self


class DispatchConfig(Config):
    """How to reach the learner."""

    address: str = "ipc://runs/dispatch.sock"
    """The learner's dispatch address: ipc://PATH or tcp://127.0.0.1:PORT."""
    budget_s: float = Field(default=600.0, gt=0)
    """How long a silent learner is waited for, at the start and later."""
    max_unacked: int = Field(default=256, ge=1)
    """Finished trajectories that may wait for the learner; beyond that episodes wait too."""
    resend_s: float = Field(default=10.0, gt=0)
    """A trajectory without an ack for this long is sent again."""
    queue_messages: int = Field(default=1024, ge=1)
    """Most messages waiting per direction."""


class ActConfig(Config):
    """The actor pool (`longturn act`)."""

    pool_id: str = Field(default="", max_length=100)
    """Name of this pool in its run, the same over restarts; empty: the host's name."""
    num_actors: int = Field(default=64, ge=1)
    """Episodes played at once."""
    run_dir: Path = Path("runs/act")
    """Where unacknowledged trajectories (spool/) and metrics (metrics/) are kept."""
    env_server: EnvClientConfig = EnvClientConfig(connect_budget_s=600.0, outage_budget_s=600.0)
    """The env server to play on."""
    engine: SglangConfig = SglangConfig()
    """How engines are asked; which ones, the learner says."""
    renderer: RendererConfig = RendererConfig()
    """How prompts are built."""
    dispatch: DispatchConfig = DispatchConfig()
    """The learner to play for."""
    status_port: int = Field(default=0, ge=0, le=65535)
    """Port of the status service on loopback; 0 takes a free one."""
    metrics_port: int | None = Field(default=None, ge=0, le=65535)
    """Port of /metrics on loopback; absent: none."""
    metrics_interval_s: float = Field(default=10.0, gt=0)
    """Seconds between rows in metrics/."""

    @model_validator(mode="after")
    def _samples_freely(self) -> Self:
        if self.engine.regex or self.engine.json_schema:
            raise ValueError(
                "act.engine.regex and act.engine.json_schema must be empty: logprobs of a constrained completion are"
                " not those that the learner computes; set eval.engine instead"
            )
        return self


class ChatRendererConfig(RendererConfig):
    """How the messages of outside agents become tokens."""

    # Narrower than what it overrides, and never assigned.
    format: Literal["qwen2.5", "qwen3", "llama3", "smollm2"] = "qwen2.5"  # pyright: ignore[reportIncompatibleVariableOverride]
    """Chat template of the policy's family."""
    reasoning: Literal["forced", "free", "none"] = "free"
    """Whether prompts end with `<think>`; free: agents and policy decide."""


class ProxyConfig(ActConfig):
    """Outside agents that speak chat completions (`longturn proxy`): a pool whose episodes they play."""

    num_actors: int = Field(default=64, ge=1)
    """Episodes that outside agents play at once."""
    run_dir: Path = Path("runs/proxy")
    """Where unacknowledged trajectories (spool/) and metrics (metrics/) are kept."""
    renderer: ChatRendererConfig = ChatRendererConfig()  # pyright: ignore[reportIncompatibleVariableOverride]
    """The chat format of the policy; what prompts hold is up to the agents."""
    port: int = Field(default=0, ge=0, le=65535)
    """Port of the proxy on loopback; 0 takes a free one, which the ready file and the log name."""
    idle_s: float = Field(default=600.0, gt=0)
    """An agent that says nothing for so long has left; its episode is given to the next one."""

    @model_validator(mode="after")
    def _chats(self) -> Self:
        renderer = self.renderer
        if renderer.history != "append" or renderer.instructions:
            raise ValueError(
                "proxy.renderer.history must be 'append' and .instructions empty: agents say what their prompts hold"
            )
        return self


class EvalConfig(Config):
    """Evaluation (`longturn eval`) and everything else that plays a list of tasks."""

    knobs: dict[str, bool | int | float | str] = Field(default_factory=dict)
    """Knobs of every episode of `longturn eval`, and of the tasks that `longturn envs tasks` lists; `--knob` and these
    come before a task's own."""
    env_server: EnvClientConfig = EnvClientConfig()
    """The env server to play on."""
    engine: SglangConfig = SglangConfig()
    """How engines are asked."""
    renderer: RendererConfig = RendererConfig()
    """How prompts are built."""
