//! The commands of the operator before and after a snapshot, which freeze a program and thaw it.
//!
//! The command before a snapshot may write to the mount, and wait for that. So it runs before the operation begins, and no lock of the driver
//! is held. Both commands and the snapshot are one job of the host's pool: a stop of the datastore waits for the job, and so the second command
//! runs in any case. One snapshot with commands is made at a time, and the others wait on threads of their own: the pool is for the mount, too.

use std::fmt;
use std::path::Path;
use std::sync::Arc;

use lockstep_repl::state::State;
use lockstep_types::{Errno, SnapshotKind, SnapshotName};

use super::snapshots::{SnapshotService, creation, may_begin};
use crate::config::{DatastoreConfig, SnapshotHooks};
use crate::engine::Engine;
use crate::host::exclusive::Exclusive;
use crate::host::oneshot::promise;
use crate::host::{HookCommand, HookFailure, Host};
use crate::ops::meta_pipeline::MetaPipeline;
use crate::ops::own_operation::carry_out;
use crate::report::{CommandFailure, SnapshotCommand};

/// Admits one snapshot with commands at a time.
#[derive(Default)]
pub(crate) struct HookedSnapshots {
    turn: Exclusive,
}

/// The cause for which there is no snapshot.
#[derive(Debug)]
pub(crate) enum NotMade {
    /// The operation was refused, or its outcome is not known.
    Refused(Errno),
    /// The command before the snapshot has failed.
    Before(HookFailure),
}

impl fmt::Display for NotMade {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Refused(errno) => errno.fmt(out),
            // The log has the output of the command already.
            Self::Before(HookFailure { program, cause, .. }) => write!(out, "{program} {cause}"),
        }
    }
}

/// The end of a snapshot with commands.
#[derive(Debug)]
pub(crate) struct HookedOutcome {
    /// The snapshot.
    pub made: Result<(), NotMade>,
    /// The failure of the command after it.
    pub after: Option<HookFailure>,
}

impl HookedSnapshots {
    /// Carries a command about snapshots out on the primary. A new snapshot is made between the commands of the configuration, if it wants them.
    ///
    /// # Errors
    /// The command is refused, or its outcome is not known; or one of the commands of the configuration has failed.
    pub fn command(
        &self,
        engine: &Arc<Engine>,
        pipeline: &Arc<MetaPipeline>,
        command: &SnapshotCommand,
        state: &dyn Fn() -> State,
    ) -> Result<(), CommandFailure> {
        let service = SnapshotService::of(engine);
        let SnapshotCommand::Create { name, hooks: true } = command else {
            return service.command(command, pipeline, state);
        };
        if engine.config.current().policies.snapshot_hooks.is_off() {
            return service.command(command, pipeline, state);
        }
        let refused = |errno| Err(service.refused(command, errno, state()));
        let name = service.new_name(name)?;
        let _turn = self.turn.acquire(&*engine.host);
        if engine.is_stopping() {
            return refused(Errno::Again);
        }
        if !may_begin(state()) {
            return refused(Errno::Busy);
        }
        let (done, wait) = promise::<HookedOutcome>(&*engine.host);
        let (of_job, pipeline) = (Arc::clone(engine), Arc::clone(pipeline));
        let job_name = name.clone();
        engine.host.spawn(Box::new(move || {
            done.keep(make(&of_job, &pipeline, job_name, SnapshotKind::User));
        }));
        let Some(HookedOutcome { made, after }) = wait.get() else {
            return refused(Errno::Again);
        };
        match (made, after) {
            (Ok(()), None) => Ok(()),
            (Ok(()), Some(after)) => Err(stays_frozen(&name, &after)),
            (Err(NotMade::Refused(errno)), None) => refused(errno),
            (Err(NotMade::Refused(errno)), Some(after)) => {
                let CommandFailure { cause, .. } = service.refused(command, errno, state());
                Err(CommandFailure::new(
                    format!("{cause}; and the command after the snapshot: {after}"),
                    THAW_BY_HAND,
                ))
            }
            (Err(NotMade::Before(before)), after) => Err(not_frozen(&before, after.as_ref())),
        }
    }

    /// Makes a snapshot of the schedule, on a thread that may wait. [`HookedOutcome::after`] is in the log already.
    ///
    /// # Errors
    /// No snapshot was made, or that is not known.
    pub fn scheduled(
        &self,
        engine: &Engine,
        pipeline: &MetaPipeline,
        name: SnapshotName,
    ) -> Result<(), NotMade> {
        let hooks = &engine.config.current().policies.snapshot_hooks;
        let _turn = (!hooks.is_off()).then(|| self.turn.acquire(&*engine.host));
        make(engine, pipeline, name, SnapshotKind::Scheduled).made
    }
}

const THAW_BY_HAND: &str =
    "see whether the programs go on; otherwise run the command `after` of `snapshot_hooks` by hand";

fn stays_frozen(name: &SnapshotName, after: &HookFailure) -> CommandFailure {
    CommandFailure::new(
        format!(
            "the snapshot {:?} is made and stays, but the command after it: {after}",
            name.as_str()
        ),
        THAW_BY_HAND,
    )
}

fn not_frozen(before: &HookFailure, after: Option<&HookFailure>) -> CommandFailure {
    let no_snapshot = format!("no snapshot was made; the command before it: {before}");
    match after {
        None => CommandFailure::new(
            no_snapshot,
            "repair that, or make the snapshot without the commands: `--no-hooks`",
        ),
        Some(after) => CommandFailure::new(
            format!("{no_snapshot}\n  and the command after it: {after}"),
            THAW_BY_HAND,
        ),
    }
}

/// Makes a snapshot between the commands of the configuration.
fn make(
    engine: &Engine,
    pipeline: &MetaPipeline,
    name: SnapshotName,
    kind: SnapshotKind,
) -> HookedOutcome {
    let config = engine.config.current();
    let around = HooksAround {
        host: &*engine.host,
        config: &config,
        snapshot: name.as_str().to_owned(),
        gives_up: &|| engine.is_stopping(),
    };
    around.run(|| carry_out(creation(name, kind), engine, pipeline))
}

/// The commands around one snapshot.
struct HooksAround<'a> {
    host: &'a dyn Host,
    config: &'a DatastoreConfig,
    snapshot: String,
    /// Whether the datastore stops: then a command before the snapshot is killed, and one after it still has its time.
    gives_up: &'a dyn Fn() -> bool,
}

impl HooksAround<'_> {
    fn run(&self, create: impl FnOnce() -> Result<(), Errno>) -> HookedOutcome {
        let hooks = &self.config.policies.snapshot_hooks;
        let (datastore, snapshot) = (&*self.config.name, &*self.snapshot);
        if let Err(failure) = self.hook("before", &hooks.before, self.gives_up) {
            let HookFailure { program, cause, .. } = &failure;
            tracing::warn!(datastore, snapshot, program, %cause, "no snapshot: the command before it has failed");
            // The command may have frozen a program before it failed.
            let after = self.after(hooks);
            return HookedOutcome {
                made: Err(NotMade::Before(failure)),
                after,
            };
        }
        let made = create().map_err(NotMade::Refused);
        let after = self.after(hooks);
        HookedOutcome { made, after }
    }

    fn after(&self, hooks: &SnapshotHooks) -> Option<HookFailure> {
        let failure = self.hook("after", &hooks.after, &|| false).err()?;
        let (datastore, snapshot) = (&*self.config.name, &*self.snapshot);
        let HookFailure { program, cause, .. } = &failure;
        tracing::error!(datastore, snapshot, program, %cause, "the command after a snapshot has failed: a program may stay frozen");
        Some(failure)
    }

    fn hook(
        &self,
        hook: &str,
        words: &[String],
        gives_up: &dyn Fn() -> bool,
    ) -> Result<(), HookFailure> {
        if words.is_empty() {
            return Ok(());
        }
        let (datastore, snapshot) = (&*self.config.name, &*self.snapshot);
        let mount: &Path = &self.config.mount;
        let command = HookCommand {
            words: words.to_vec(),
            environment: vec![
                ("LOCKSTEP_DATASTORE", datastore.into()),
                ("LOCKSTEP_SNAPSHOT", snapshot.into()),
                ("LOCKSTEP_MOUNT", mount.into()),
            ],
            limit: self.config.policies.snapshot_hooks.limit,
        };
        tracing::debug!(
            datastore,
            snapshot,
            hook,
            "a command around a snapshot begins"
        );
        let mut log = |line: &str| tracing::info!(datastore, snapshot, hook, "{line}");
        self.host.run_hook(&command, gives_up, &mut log)
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::path::PathBuf;

    use lockstep_types::DatastoreUuid;
    use lockstep_types::settings::Role;

    use super::*;
    use crate::host::OsHost;

    /// Commands that note themselves in a file, and end with an exit code.
    struct Noted {
        directory: tempfile::TempDir,
        config: DatastoreConfig,
    }

    impl Noted {
        fn new([before, after]: [&str; 2]) -> Self {
            let directory = tempfile::tempdir().unwrap();
            let notes = directory.path().join("notes");
            let words = |script: &str| {
                let all = format!(
                    "echo $0 $LOCKSTEP_SNAPSHOT >> {}; {script}",
                    notes.display()
                );
                let hook = if script == before { "before" } else { "after" };
                ["/bin/sh", "-c", &all, hook].map(str::to_owned).to_vec()
            };
            let places = ["/store", "/mount"].map(PathBuf::from);
            let uuid = DatastoreUuid::from_bytes([7; 16]);
            let mut config = DatastoreConfig::new("alpha", uuid, places, Role::Primary);
            config.policies.snapshot_hooks = SnapshotHooks {
                before: words(before),
                after: words(after),
                ..SnapshotHooks::default()
            };
            Self { directory, config }
        }

        fn notes(&self) -> String {
            std::fs::read_to_string(self.directory.path().join("notes")).unwrap()
        }

        fn run(&self, stops: bool, made: Result<(), Errno>) -> (HookedOutcome, Option<String>) {
            let host = OsHost::start("test").unwrap();
            let around = HooksAround {
                host: &host,
                config: &self.config,
                snapshot: "monday".to_owned(),
                gives_up: &|| stops,
            };
            let before_made = Cell::new(None);
            let outcome = around.run(|| {
                before_made.set(Some(self.notes()));
                made
            });
            host.stop();
            (outcome, before_made.take())
        }
    }

    const BOTH: &str = "before monday\nafter monday\n";

    #[test]
    fn one_command_runs_before_the_snapshot_and_one_after_it() {
        for made in [Ok(()), Err(Errno::Busy)] {
            let noted = Noted::new(["exit 0", "true"]);
            let (outcome, before) = noted.run(false, made);
            assert_eq!(outcome.made.is_ok(), made.is_ok());
            assert!(outcome.after.is_none());
            assert_eq!(before.unwrap(), "before monday\n");
            assert_eq!(noted.notes(), BOTH);
        }
    }

    #[test]
    fn without_the_first_command_there_is_no_snapshot_but_the_second_one_runs() {
        let noted = Noted::new(["echo locked; exit 4", "exit 5"]);
        let (outcome, before) = noted.run(false, Ok(()));
        assert_eq!(before, None, "no snapshot");
        let Err(NotMade::Before(failure)) = outcome.made else {
            panic!("{outcome:?}");
        };
        let told = not_frozen(&failure, outcome.after.as_ref()).to_string();
        for part in ["exit code 4", "    locked", "exit code 5", "by hand"] {
            assert!(told.contains(part), "{told}");
        }
        assert_eq!(noted.notes(), BOTH);
    }

    #[test]
    fn the_failure_of_the_second_command_leaves_the_snapshot() {
        let noted = Noted::new(["true", "echo stuck; exit 5"]);
        let (outcome, _) = noted.run(false, Ok(()));
        outcome.made.unwrap();
        let told = outcome.after.unwrap().to_string();
        assert!(told.contains("exit code 5") && told.contains("stuck"));
    }

    #[test]
    fn a_stop_of_the_node_kills_the_first_command_and_runs_the_second_one() {
        let noted = Noted::new(["sleep 600", "true"]);
        let (outcome, before) = noted.run(true, Ok(()));
        assert_eq!(before, None, "no snapshot");
        assert!(matches!(outcome.made, Err(NotMade::Before(_))));
        assert!(outcome.after.is_none());
        assert!(noted.notes().ends_with("after monday\n"));
    }
}
