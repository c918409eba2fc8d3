"""Carries out what the core decided. `execute` is called by the thread that owns the core."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path

import structlog

from gangline_schemas.events.workers import NodeInfo
from gangline_schemas.rank_protocol import CopyDamaged
from gangline_schemas.secrets import redact
from gangline_storage.errors import StoreError

from .checkpoints.integrity import CheckpointDamaged, WrongPath
from .checkpoints.repair import Repairs
from .checkpoints.transfer import Checkpoints
from .decide import effects, inputs
from .decide.gang import Gang
from .decide.keys import GangKey, Moment, RankKey
from .health.gpu_memory import taken_by_others
from .images.problems import ImageProblem, ImageRefused
from .inbox import Inbox
from .isolation.cold_start import Launch
from .isolation.isolator import Isolator
from .rendezvous.store_host import StoreHost
from .runtime.containers import Containers, PythonMissing
from .runtime.launcher import KeptRank, Launcher
from .runtime.log_lines import LogBatcher, without_secrets
from .runtime.log_share import LogShare
from .runtime.pod_hosts import PodHosts
from .runtime.rank_socket import KeptListener, RankServer
from .runtime.spares import Spares
from .runtime.stacks import take_stacks
from .spool.outgoing import Outgoing
from .usage.processes import GangPlace
from .warm.process import WarmStart
from .workspace.environment import rank_command, rank_environment
from .workspace.limits import assigned_gpus, gang_limits, rank_bytes, sandbox_plan, visible_gpus
from .workspace.prepare import GangWorkspace, KeptWorkspace, Preparer

log = structlog.get_logger(__name__)

_DRAIN_S = 60.0  # for an agent that cannot take what its ranks said


@dataclass(frozen=True, slots=True)
class Parts:
    """Everything that acts. `image_standbys`: the folder of sockets, None: there are none."""

    inbox: Inbox
    outgoing: Outgoing
    preparer: Preparer
    checkpoints: Checkpoints
    stores: StoreHost
    warm: WarmStart | None
    image_standbys: Path | None
    check_node: Callable[[], None]
    isolator: Isolator
    node: NodeInfo
    rank_env: Mapping[str, str]
    pods: PodHosts | None = None
    containers: Containers | None = None


@dataclass(frozen=True, slots=True)
class KeptEffects:
    """The workspaces of gangs, their ranks that run, and the sockets of these."""

    workspaces: tuple[KeptWorkspace, ...]
    ranks: tuple[KeptRank, ...]
    listeners: tuple[KeptListener, ...]


class Executor:
    """Carries out effects: starts ranks, prepares workspaces, publishes, uploads."""

    def __init__(self, parts: Parts) -> None:
        self._parts = parts
        self._inbox = parts.inbox
        containers = parts.containers
        self._pods = containers.hosts if containers is not None else parts.pods
        self.launcher = Launcher(self._rank_exited, parts.warm, self._pods)
        self._ranks = RankServer(self.launcher.owns, self._said, self._note)
        self._workspaces: dict[GangKey, GangWorkspace] = {}
        self._logs: dict[RankKey, LogBatcher] = {}
        self._log_shares: dict[GangKey, LogShare] = {}
        self._spares = Spares(
            self.launcher,
            parts.isolator,
            parts.image_standbys,
            lambda gang, key: parts.preparer.keep_image(self._workspaces[gang].image, key),
            parts.preparer.release_image,
        )
        self._repairs = Repairs(parts.checkpoints, self._note, self._inbox.put)
        self._pool = ThreadPoolExecutor(8, thread_name_prefix="prepare")
        self._checks = ThreadPoolExecutor(2, thread_name_prefix="check")  # for which no store waits
        self._uploads = ThreadPoolExecutor(4, thread_name_prefix="upload")
        self._dumps = ThreadPoolExecutor(4, thread_name_prefix="stacks")
        # The loop renews the lease: it does not wait until large copies are deleted.
        self._deletes = ThreadPoolExecutor(1, thread_name_prefix="delete")
        self._works: set[Future[None]] = set()

    @property
    def idle(self) -> bool:
        """Whether nothing is being prepared, stored, fetched or looked into."""
        return not self._works

    def places(self) -> list[GangPlace]:
        """The gangs on this node, for what they use. Any thread may ask."""
        pids = self.launcher.pids()
        return [
            GangPlace(
                key,
                workspace.allocation.team,
                gpus=assigned_gpus(self._parts.node, workspace),
                nodes=len(workspace.allocation.nodes),
                ranks=tuple(pid for rank, pid in pids.items() if rank.gang == key),
                group=self._parts.isolator.group(key),
            )
            for key, workspace in list(self._workspaces.items())
        ]

    def extend(self, lease_ends_s: float) -> None:
        """Ranks in pods and containers may run until then (monotonic seconds)."""
        if self._pods is not None:
            self._pods.extend(lease_ends_s)

    def tick(self) -> None:
        """Prepare for next attempts."""
        self._spares.tick(list(self._workspaces))

    def pause(self) -> None:
        """Stop reading from ranks for good: what was read is in the inbox. The ranks continue."""
        self._spares.stop()
        self._inbox.make_room()
        self.launcher.pause()
        self._ranks.pause()

    def kept(self, gangs: Sequence[Gang]) -> KeptEffects:
        """After `pause`: what these gangs have, to be adopted. Half prepared work is undone."""
        for gang in gangs:
            if not gang.prepared:
                self._close(effects.CloseGang(gang.key, final=False))
        self._deletes.shutdown()
        workspaces = tuple(workspace.kept(gang) for gang, workspace in self._workspaces.items())
        return KeptEffects(workspaces, self.launcher.kept(), self._ranks.kept())

    def adopt(self, kept: KeptEffects, gangs: Sequence[Gang]) -> None:
        """Continue with what gangs had before the agent reloaded in this process."""
        known = {gang.key: gang for gang in gangs}
        for item in kept.workspaces:
            gang = known[item.gang]
            self._workspaces[item.gang] = self._parts.preparer.adopt(
                item, gang.allocation, gang.assignment
            )
            if self._parts.containers is not None and item.image is not None:
                self._parts.containers.hosts.expect(item.gang, item.owner)
        for rank in kept.ranks:
            workspace = self._workspaces[rank.rank.gang]
            token = workspace.tokens[rank.rank.rank]
            self.launcher.adopt(rank, token, self._begin_logs(rank.rank, workspace))
        for listener in kept.listeners:
            self._ranks.adopt(listener)

    def execute(  # noqa: C901, PLR0912 -- one case for each effect
        self, effect: effects.Effect, at: Moment
    ) -> list[inputs.Input]:
        """Do it, or start to; what is known at once comes back, the rest by the inbox."""
        match effect:
            case effects.Publish(spooled=False):
                self._parts.outgoing.send_once(effect, at.utc)
            case effects.Publish():
                self._parts.outgoing.publish(effect, at.utc)
            case effects.SendHeartbeat():
                self._parts.outgoing.heartbeat(effect.heartbeat, at.mono_s, self._inbox.put)
            case effects.Prepare():
                self._submit(self._pool, lambda: self._prepare(effect))
            case effects.OpenStore():
                self._open_store(effect)
            case effects.Spawn():
                return [self._spawn(effect)]
            case effects.TerminateRank():
                self.launcher.terminate(effect.rank, effect.pid)
            case effects.KillRank():
                self.launcher.kill(effect.rank)
            case effects.TakeStacks():
                workspace = self._workspaces[effect.gang]
                self._submit(self._dumps, lambda: self._take_stacks(effect, workspace))
            case effects.SendControl():
                self._ranks.send(effect.rank, effect.control)
            case effects.CheckShard():
                workspace = self._workspaces[effect.rank.gang]
                self._submit(self._checks, lambda: self._check(effect, workspace))
            case effects.Upload():
                workspace = self._workspaces[effect.rank.gang]
                self._submit(self._uploads, lambda: self._upload(effect, workspace))
            case effects.StoreOutputs():
                workspace = self._workspaces[effect.rank.gang]
                self._submit(self._uploads, lambda: self._store_outputs(effect.rank, workspace))
            case effects.CloseGang():
                self._close(effect)
            case effects.CheckNode():
                self._parts.check_node()
            case effects.Note():
                job = effect.gang.job_id if effect.gang else None
                attempt = effect.gang.attempt if effect.gang else None
                log.warning(effect.event, job=job, attempt=attempt, detail=effect.detail)
        return []

    def stop(self) -> None:
        """Take on nothing more."""
        self._parts.preparer.stop()
        self._spares.stop()
        self._pool.shutdown(wait=False, cancel_futures=True)
        self._checks.shutdown(wait=False, cancel_futures=True)
        self._uploads.shutdown(wait=False, cancel_futures=True)
        self._dumps.shutdown(wait=False, cancel_futures=True)
        if self._pods is not None:
            self._pods.stop()
        for key in list(self._workspaces):
            self._close(effects.CloseGang(key, final=False))
        self._deletes.shutdown()

    def _submit(self, pool: ThreadPoolExecutor, work: Callable[[], None]) -> None:
        def ended(future: Future[None]) -> None:
            self._works.discard(future)
            if not future.cancelled() and (error := future.exception()) is not None:
                self._inbox.put(error)

        begun = pool.submit(work)
        self._works.add(begun)
        begun.add_done_callback(ended)

    def _prepare(self, effect: effects.Prepare) -> None:
        workspace, outcome = self._parts.preparer.prepare(
            effect.gang, effect.allocation, effect.assignment
        )
        if workspace is not None:
            try:
                self._ranks.open(
                    effect.gang, workspace.paths.socket, workspace.tokens, workspace.owner
                )
                self._enter(effect.gang, workspace)
            except ImageProblem as error:
                fault = error.user_fault
                outcome = inputs.PrepareFailed(effect.gang, user_fault=fault, message=str(error))
            except OSError as error:
                message = f"there is no place for its ranks here: {error}"
                outcome = inputs.PrepareFailed(effect.gang, user_fault=False, message=message)
            else:
                self._workspaces[effect.gang] = workspace
        self._inbox.put(outcome)
        self._parts.preparer.make_room({gang.job_id for gang in list(self._workspaces)})
        if self._pods is not None:
            self._pods.clean()

    @property
    def _own_network(self) -> bool:
        """Whether ranks are in pods with another network than this node."""
        return self._parts.pods is not None and self._parts.pods.own_network

    def _open_store(self, effect: effects.OpenStore) -> None:
        if self._own_network:  # rank 0 opens it, where the others are
            self._inbox.put(inputs.StoreOpened(effect.gang))
            return
        workspace = self._workspaces[effect.gang]
        peers = [node.address for node in workspace.allocation.nodes]
        uid = workspace.owner.uid if workspace.owner is not None else None
        self._parts.stores.open(effect, uid, peers, workspace.allocation.world_size)

    def _enter(self, gang: GangKey, workspace: GangWorkspace) -> None:
        """Make the gang's sandbox or container, or wait for its pod, if there are any.

        Raises OSError and ImageProblem.
        """
        paths = workspace.paths
        if self._parts.pods is not None:
            self._parts.pods.wait(gang, workspace.shared_with_pod)
            return
        own = (paths.code.parent, paths.temporary, paths.checkpoints, paths.socket)
        show = [*own, *filter(None, [paths.data_cache])]
        node, image = self._parts.node, None
        if (plan := sandbox_plan(node, self._parts.preparer.layers, workspace)) is not None:
            image = plan.image
        if plan is not None and workspace.image is not None and self._parts.containers is not None:
            launcher, image_name = self.launcher, workspace.image.name
            given = workspace.image.environment
            try:
                self._parts.containers.open(gang, given, plan, show, launcher.keep, launcher.disown)
            except PythonMissing as error:
                raise ImageRefused(image_name, str(error)) from None
            return
        if plan is not None and self._spares.take(gang, plan, show):
            return
        limits, inbox, launcher = gang_limits(node, workspace), self._inbox, self.launcher
        self._parts.isolator.enter(
            gang, show, limits, lambda begin: inbox.call(lambda: launcher.keep(begin)), image
        )

    def _spawn(self, effect: effects.Spawn) -> inputs.Input:
        rank = effect.rank
        workspace = self._workspaces[rank.gang]
        allocation = workspace.allocation
        in_pod, workdir = self._parts.pods is not None, workspace.workdir
        if in_pod and allocation.spec.code_bundle is None:
            workdir = ""  # the pod is where its image says
        environment = rank_environment(
            allocation,
            workspace.assignment,
            effect.local_rank,
            workspace.paths,
            gpus=visible_gpus(self._parts.node, workspace, in_pod=in_pod),
            token=workspace.tokens[rank.rank],
            secrets=workspace.secrets,
            operators=self._parts.rank_env,
            mlflow=workspace.mlflow,
            image=workspace.image,
            devices=workspace.devices,
            in_pod=in_pod,
            own_network=self._own_network,
        )
        if workspace.owner is not None:  # programs need a name; the system has none
            for name in ("USER", "LOGNAME"):
                environment.setdefault(name, allocation.team)
        logs = self._begin_logs(rank, workspace)
        confinement = self._parts.isolator.confinement(
            rank.gang, workspace.owner, rank_bytes(self._parts.node, workspace)
        )
        launch = Launch(
            rank,
            rank_command(allocation.spec, workspace.image),
            environment,
            workspace.paths.code,
            confinement,
            workdir,
            in_image=workspace.image is not None,
            in_pod=in_pod or (self._parts.containers is not None and workspace.image is not None),
        )
        try:
            pid = self.launcher.spawn(launch, logs, self._spares.rank(launch))
        except OSError as error:
            return inputs.SpawnFailed(rank, f"the system refused to start it: {error.strerror}")
        plan = sandbox_plan(self._parts.node, self._parts.preparer.layers, workspace)
        if plan is not None:
            self._spares.begin(launch, plan)
        return inputs.RankSpawned(rank, pid)

    def _begin_logs(self, rank: RankKey, workspace: GangWorkspace) -> LogBatcher:
        self._logs[rank] = LogBatcher(
            workspace.redacted,
            lambda first, lines: self._parts.outgoing.publish_log(
                rank, workspace.allocation.team, first, lines
            ),
            lambda: time.time_ns() // 1_000_000,
            self._log_shares.setdefault(rank.gang, LogShare()),
        )
        return self._logs[rank]

    def _said(self, item: inputs.RankMessage) -> None:
        workspace = self._workspaces.get(item.rank.gang)
        if isinstance(item.message, CopyDamaged):
            self._repair(item.rank, workspace, item.message)
            return
        if workspace is not None:
            item = replace(item, message=without_secrets(item.message, workspace.redacted))
        self._inbox.put_when_room(item)

    def _repair(self, rank: RankKey, workspace: GangWorkspace | None, asked: CopyDamaged) -> None:
        if workspace is not None and self._repairs.admit(rank, workspace.allocation):
            self._submit(
                self._pool,
                lambda: self._ranks.send(
                    rank,
                    self._repairs.answer(
                        rank, workspace.allocation, asked, workspace.owner, workspace.peers
                    ),
                ),
            )

    def _note(self, rank: RankKey, text: str) -> None:
        if (logs := self._logs.get(rank)) is not None:
            logs.note(text)

    def _rank_exited(self, exited: inputs.RankExited) -> None:
        self._ranks.drain(exited.rank, _DRAIN_S)
        if exited.code is not None and exited.out_of_memory and self._gpu_memory_taken(exited):
            exited = replace(exited, gpu_memory_taken=True)
        self._inbox.put(exited)

    def _gpu_memory_taken(self, exited: inputs.RankExited) -> bool:
        """False in pods of Kubernetes, whose GPUs and processes are not known by their numbers."""
        gang = exited.rank.gang
        workspace = self._workspaces.get(gang)
        if workspace is None or self._parts.pods is not None:
            return False
        return taken_by_others(
            exited.last_words,
            assigned_gpus(self._parts.node, workspace),
            lambda pid: self.launcher.gang_owns(pid, gang),
            self.launcher.begun_s(exited.rank),
        )

    def _check(self, effect: effects.CheckShard, workspace: GangWorkspace) -> None:
        rank, ready = effect.rank, effect.ready
        try:
            self._parts.checkpoints.check(rank, workspace.allocation, ready, workspace.owner)
        except (CheckpointDamaged, WrongPath, OSError) as error:
            self._not_stored(rank, workspace, ready.step, error)
        else:
            self._inbox.put(inputs.ShardChecked(rank, ready))

    def _upload(self, effect: effects.Upload, workspace: GangWorkspace) -> None:
        rank, ready, checkpoints = effect.rank, effect.ready, self._parts.checkpoints
        try:
            written = checkpoints.upload(rank, workspace.allocation, ready, workspace.owner)
        except (WrongPath, OSError, StoreError) as error:
            self._not_stored(rank, workspace, ready.step, error)
        else:
            self._inbox.put(inputs.Uploaded(rank, written))
            checkpoints.prune(workspace.allocation.job_id, owner=workspace.owner)

    def _store_outputs(self, rank: RankKey, workspace: GangWorkspace) -> None:
        self._inbox.put(self._parts.preparer.store_outputs(rank, workspace))

    def _not_stored(
        self, rank: RankKey, workspace: GangWorkspace, step: int, error: Exception
    ) -> None:
        message = redact(f"{type(error).__name__}: {error}", workspace.redacted)
        self._note(rank, f"the checkpoint of step {step} could not be stored: {message}")
        self._inbox.put(inputs.UploadFailed(rank, step, message))
        self._parts.checkpoints.prune(workspace.allocation.job_id, owner=workspace.owner)

    def _take_stacks(self, effect: effects.TakeStacks, workspace: GangWorkspace) -> None:
        """Into the ranks' logs, too, before anything may end them."""
        found = take_stacks(self.launcher.beside, effect.pids, workspace.redacted)
        for item in found:
            self._note(item.rank, f"no rank gets on; this one is {item.state}, its stacks:")
            for line in [*item.text.splitlines(), *filter(None, [item.missing])]:
                self._note(item.rank, line)
        self._inbox.put(inputs.StacksTaken(effect.gang, found))

    def _close(self, effect: effects.CloseGang) -> None:
        self._parts.stores.close(effect.gang)
        self._ranks.close(effect.gang)
        self._repairs.forget(effect.gang)
        self._spares.leave(effect.gang)
        if effect.final:
            self._spares.forget(effect.gang.job_id)
        if (first := self._parts.isolator.leave(effect.gang)) is not None:
            self.launcher.disown(first)
        if self._parts.pods is not None:
            self._parts.pods.leave(effect.gang, final=effect.final)
        if self._parts.containers is not None:
            self._parts.containers.close(effect.gang)
        workspace = self._workspaces.pop(effect.gang, None)
        for rank in [rank for rank in self._logs if rank.gang == effect.gang]:
            del self._logs[rank]
        self._log_shares.pop(effect.gang, None)
        forgets = effect.final and workspace is not None
        self._submit(self._deletes, lambda: self._delete(effect.gang, copies=forgets))

    def _delete(self, gang: GangKey, *, copies: bool) -> None:
        self._parts.preparer.clear(gang)
        if copies:
            self._parts.checkpoints.forget(gang.job_id)
