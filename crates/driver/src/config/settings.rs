//! The settings of a datastore: the one description of each key, its default, its bounds and its unit.
//!
//! The parser of the configuration file, the text of a new file and the defaults of [`DatastoreConfig`] take them from here,
//! and a test compares `docs/reference-config.md` with them.
//!
//! [`DatastoreConfig`]: super::DatastoreConfig

use std::time::Duration;

use lockstep_types::settings::{
    CheckReads, Choice, Durability, Encryption, OnPeerLoss, OnPowerLoss, ScrubEvery, Standby,
    TrashAge,
};

/// One key in the configuration of a datastore.
#[derive(Clone, Copy, Debug)]
pub struct Setting {
    /// The key in its section.
    pub key: &'static str,
    /// The values that the key takes.
    pub values: Values,
    /// Whether a running datastore can follow a change.
    pub change: Change,
    /// The meaning in a sentence or two, for the comment above the key in a new file. Lines end where the comment has to.
    pub about: &'static str,
}

/// Whether a running datastore can follow a change of a setting, and when the new value is in force.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    /// At once.
    AtOnce,
    /// At once, unless the change switches the setting on or off: that is refused.
    UnlessSwitched {
        /// Why it is refused.
        cause: &'static str,
        /// How the operator gets the new value all the same.
        cure: &'static str,
    },
    /// From the next connection with the peer on.
    NextConnection,
    /// At the next start of the datastore: nothing else reads the setting.
    NextStart,
    /// Refused while the datastore runs.
    Refused {
        /// Why it is refused.
        cause: &'static str,
        /// How the operator gets the new value all the same.
        cure: &'static str,
    },
}

/// The usual way to a value that a running datastore cannot take.
const RESTART: &str = "start the node again with the new value";

const fn refused(cause: &'static str) -> Change {
    Change::Refused {
        cause,
        cure: RESTART,
    }
}

/// The values that a key takes.
#[derive(Clone, Copy, Debug)]
pub enum Values {
    /// A text that the file must have.
    Required {
        /// The missing line, as an error message shows it.
        example: &'static str,
    },
    /// A text, or a list, that the file may have.
    Optional,
    /// One word of a list.
    Word {
        /// All words, in the order of error messages.
        words: fn() -> Vec<&'static str>,
        /// The word if the file has none.
        default: fn() -> &'static str,
    },
    /// A whole number.
    Number(NumberSetting),
    /// A section below.
    Section,
}

/// A whole number with its bounds.
#[derive(Clone, Copy, Debug)]
pub struct NumberSetting {
    /// The number if the file has none.
    pub default: u64,
    /// The least number.
    pub least: u64,
    /// The largest number.
    pub most: u64,
    /// Whether zero is allowed below the least number: the limit is off.
    pub has_off: bool,
    /// The unit: `ms`, or nothing for a count.
    pub unit: &'static str,
}

impl NumberSetting {
    /// The default as a time.
    pub const fn default_time(&self) -> Duration {
        Duration::from_millis(self.default)
    }

    /// The default as a count.
    #[allow(clippy::cast_possible_truncation)] // a count is small
    pub const fn default_count(&self) -> usize {
        self.default as usize
    }

    /// The nearest time within the bounds.
    pub fn clamp(&self, time: Duration) -> Duration {
        let [least, most] = [self.least, self.most].map(Duration::from_millis);
        time.clamp(least, most)
    }

    const fn setting(self, key: &'static str, change: Change, about: &'static str) -> Setting {
        Setting {
            key,
            values: Values::Number(self),
            change,
            about,
        }
    }
}

const fn millis(default: u64, least: u64, most: u64) -> NumberSetting {
    NumberSetting {
        default,
        least,
        most,
        has_off: false,
        unit: "ms",
    }
}

const fn millis_or_off(default: u64, least: u64, most: u64) -> NumberSetting {
    NumberSetting {
        has_off: true,
        ..millis(default, least, most)
    }
}

const fn count_or_off(least: u64, most: u64) -> NumberSetting {
    NumberSetting {
        default: 0,
        least,
        most,
        has_off: true,
        unit: "",
    }
}

const fn required(
    key: &'static str,
    example: &'static str,
    change: Change,
    about: &'static str,
) -> Setting {
    Setting {
        key,
        values: Values::Required { example },
        change,
        about,
    }
}

const fn word<T: Choice + Default>(
    key: &'static str,
    change: Change,
    about: &'static str,
) -> Setting {
    Setting {
        key,
        values: Values::Word {
            words: words::<T>,
            default: || T::default().word(),
        },
        change,
        about,
    }
}

const fn optional(key: &'static str, change: Change, about: &'static str) -> Setting {
    Setting {
        key,
        values: Values::Optional,
        change,
        about,
    }
}

const fn section(key: &'static str, change: Change, about: &'static str) -> Setting {
    Setting {
        key,
        values: Values::Section,
        change,
        about,
    }
}

fn words<T: Choice>() -> Vec<&'static str> {
    T::ALL.iter().map(|(_, word)| *word).collect()
}

/// `pause_limit_ms`.
pub const PAUSE_LIMIT: NumberSetting = millis(10_000, 0, 600_000);
/// `flap_wait_max_ms`.
pub const FLAP_WAIT_MAX: NumberSetting = millis_or_off(60_000, 1000, 600_000);
/// `peer_timeout_ms`. With a witness the default is twice `failover_after_ms`, within these bounds.
pub const PEER_TIMEOUT: NumberSetting = millis(3000, 200, 60_000);
/// `failover_after_ms`, with a witness.
pub const FAILOVER_AFTER: NumberSetting = millis(1500, 300, 60_000);
/// `answer_limit_ms`. The default is longer than a flush of a slow but healthy disk.
pub const ANSWER_LIMIT: NumberSetting = millis(60_000, 1000, 600_000);
/// `disk_stall_limit_ms`. The default is longer than a small flush of a slow, busy disk.
pub const DISK_STALL_LIMIT: NumberSetting = millis_or_off(30_000, 1000, 600_000);
/// `resync_bytes_per_second`. The least limit lets a piece of a file through in some seconds.
pub const RESYNC_BYTES_PER_SECOND: NumberSetting = count_or_off(128 << 10, 1 << 40);
/// `resync_pause_above_ms`.
pub const RESYNC_PAUSE_ABOVE: NumberSetting = millis_or_off(0, 1, 60_000);
/// `trash_bytes`. The least limit has room for a file of some size.
pub const TRASH_BYTES: NumberSetting = count_or_off(1 << 20, 1 << 50);
/// Each count of `snapshots`.
pub const SCHEDULED_COUNT: NumberSetting = count_or_off(1, 1024);
/// `limit_ms` of `snapshot_hooks`. The default leaves the stop of a node half of the time that its unit gives it.
pub const HOOK_LIMIT: NumberSetting = millis(30_000, 100, 600_000);
/// `fuse_threads`. The default is the fastest number for eight jobs on two cores.
pub const FUSE_THREADS: NumberSetting = NumberSetting {
    default: 8,
    least: 1,
    most: 64,
    has_off: false,
    unit: "",
};

/// Another witness.
const WITNESS_CHANGE: Change = Change::Refused {
    cause: "both nodes must ask one witness, and know its answers since their start",
    cure: "change both files and start one node after the other, as \"Change or remove the witness\" in \
           docs/operations/witness.md says",
};

/// The keys of `[[datastore]]`, in the order of a new file and of `docs/reference-config.md`.
pub const DATASTORE: &[Setting] = &[
    required(
        "name",
        "name = \"alpha\"",
        refused("the datastore is known by its name to the mount, to its threads and in the log"),
        "Name of the datastore in commands and logs.",
    ),
    required(
        "uuid",
        "uuid = \"…\", as printed by `lockstep init`, the same on both nodes",
        Change::Refused {
            cause: "another uuid is another datastore",
            cure: "give a new datastore a section of its own, with its own name, store and mount",
        },
        "Identity of the datastore: the same on both nodes, never changed.",
    ),
    required(
        "store",
        "store = \"/var/lib/lockstep/alpha\", where this node keeps the data",
        Change::Refused {
            cause: "the datastore works in this directory",
            cure: "stop the node, move the directory, and start the node with the new value",
        },
        "Directory where this node keeps the data. Programs must not touch it.",
    ),
    required(
        "mount",
        "mount = \"/srv/alpha\", where programs find the directory",
        refused("programs use the mount"),
        "Directory where programs find the data. Both nodes mount it; the primary serves it.",
    ),
    required(
        "role",
        "role = \"primary\" on one node and role = \"secondary\" on the other",
        Change::NextStart,
        "How a new store begins: \"primary\" on one node, \"secondary\" on the other. Later the store knows its role:\n\
         `lockstep failover`, `promote` and `demote` change it, and `lockstep status` shows it.",
    ),
    word::<Durability>(
        "durability",
        refused("the marks on the disk of a session follow from the value at its beginning"),
        "\"posix\": on stable storage on both nodes when a program asks (fsync, O_SYNC). \"always\": every operation.",
    ),
    word::<OnPeerLoss>(
        "on_peer_loss",
        Change::AtOnce,
        "When the peer stays away: \"continue\" with one copy (status shows that), or \"freeze\" until the peer is back.",
    ),
    word::<OnPowerLoss>(
        "on_power_loss",
        Change::NextStart,
        "When this node starts as the primary of a complete secondary: \"wait\" serves nothing until it has met that node, or\n\
         until `lockstep promote`. \"serve\" serves at once: a power loss may lose changes that were never synced, and if the\n\
         other node was promoted meanwhile, both serve until they meet.",
    ),
    word::<Standby>(
        "standby",
        refused("the mount answers programs by the value of its start"),
        "What programs get here while the other node serves: the error \"erofs\". With \"wait\" only changes get the error, and all else\n\
         waits until this node serves. For an NFS server set \"eagain\".",
    ),
    PAUSE_LIMIT.setting(
        "pause_limit_ms",
        Change::AtOnce,
        "Without a witness: how long writes wait for a lost peer before on_peer_loss decides.",
    ),
    FLAP_WAIT_MAX.setting(
        "flap_wait_max_ms",
        Change::AtOnce,
        "How long a link that comes and goes must stand, at most, before the other node is taken back. 0: not at all.",
    ),
    PEER_TIMEOUT.setting(
        "peer_timeout_ms",
        Change::AtOnce,
        "How long the peer may be silent before the connection counts as lost.",
    ),
    FAILOVER_AFTER.setting(
        "failover_after_ms",
        Change::Refused {
            cause: "the lease of the primary follows from the value, and both nodes need the same one",
            cure: "stop both nodes, the secondary first, change both files, and start both",
        },
        "The secondary takes over this long after it has lost the primary. The same on both nodes.",
    ),
    ANSWER_LIMIT.setting(
        "answer_limit_ms",
        Change::AtOnce,
        "How long an operation waits for a peer that is connected but does not answer.",
    ),
    DISK_STALL_LIMIT.setting(
        "disk_stall_limit_ms",
        Change::UnlessSwitched {
            cause: "the thread that watches the disk begins with the datastore",
            cure: RESTART,
        },
        "How long this node's own disk may give no answer. 0: no one watches the disk.",
    ),
    RESYNC_BYTES_PER_SECOND.setting(
        "resync_bytes_per_second",
        Change::AtOnce,
        "Most bytes of files that a resync or a `lockstep verify` reads in a second. 0: no limit. The primary's value counts.",
    ),
    RESYNC_PAUSE_ABOVE.setting(
        "resync_pause_above_ms",
        Change::AtOnce,
        "A resync or a `lockstep verify` pauses while more than a twentieth of the programs' operations take longer than this.\n\
         0: it never pauses. The primary's value counts.",
    ),
    word::<CheckReads>(
        "check_reads",
        refused("each read asks for the setting without a lock"),
        "Whether each block that a program reads is compared with its sum, and healed from the other node if it does not fit.",
    ),
    word::<ScrubEvery>(
        "scrub_every",
        Change::AtOnce,
        "How often both disks are read in the background, and healed where a block does not fit its sum. The primary's value counts.",
    ),
    word::<TrashAge>(
        "trash",
        Change::AtOnce,
        "How long files and directories are kept that programs delete or replace by a rename: `lockstep trash` lists them and gives\n\
         them back. The same on both nodes, as the value of the node that serves counts.",
    ),
    TRASH_BYTES.setting(
        "trash_bytes",
        Change::AtOnce,
        "Most bytes in the trash: beyond them, the oldest ones go. 0: an eighth of the disk. The primary's value counts.",
    ),
    section(
        "snapshots",
        Change::AtOnce,
        "How many snapshots the primary makes and keeps by itself: the first ones of so many hours, days, weeks and months.\n\
         The same on both nodes, as the value of the node that serves counts.",
    ),
    section(
        "snapshot_hooks",
        Change::AtOnce,
        "Commands that the primary runs before and after each snapshot, to freeze a program and to thaw it. The same on both nodes.",
    ),
    FUSE_THREADS.setting(
        "fuse_threads",
        refused("the threads of the mount begin with it"),
        "Threads that serve the mount.",
    ),
    section(
        "peer",
        refused("the marks of a mirrored datastore differ from those of one with a single copy"),
        "The other node.",
    ),
    section(
        "witness",
        WITNESS_CHANGE,
        "The third party, which decides when the nodes lose each other. The same on both nodes.",
    ),
];

/// The keys of `[datastore.snapshots]`, which may also be written as `snapshots = { … }`.
pub const SNAPSHOTS: &[Setting] = &[
    SCHEDULED_COUNT.setting(
        "hourly",
        Change::AtOnce,
        "Of how many hours the first snapshot is kept.",
    ),
    SCHEDULED_COUNT.setting(
        "daily",
        Change::AtOnce,
        "Of how many days the first snapshot is kept.",
    ),
    SCHEDULED_COUNT.setting(
        "weekly",
        Change::AtOnce,
        "Of how many weeks the first snapshot is kept.",
    ),
    SCHEDULED_COUNT.setting(
        "monthly",
        Change::AtOnce,
        "Of how many months the first snapshot is kept.",
    ),
];

/// The keys of `[datastore.snapshot_hooks]`.
pub const SNAPSHOT_HOOKS: &[Setting] = &[
    optional(
        "before",
        Change::AtOnce,
        "The program before each snapshot, as an absolute path, and its arguments.",
    ),
    optional(
        "after",
        Change::AtOnce,
        "The program after each snapshot, and its arguments.",
    ),
    HOOK_LIMIT.setting(
        "limit_ms",
        Change::AtOnce,
        "How long each of the two may take before it is killed.",
    ),
];

/// The keys of `[datastore.peer]`.
pub const PEER: &[Setting] = &[
    required(
        "address",
        "address = \"10.0.0.2:7400\", the `listen` of the other node",
        Change::NextConnection,
        "The `listen` of the other node, as seen from here.",
    ),
    required(
        "fingerprint",
        "fingerprint = \"SHA256:…\", as `lockstep init` printed on the other node",
        refused("another fingerprint is another node, with which this one has not met yet"),
        "Printed by `lockstep init` on the other node.",
    ),
    word::<Encryption>(
        "encryption",
        Change::Refused {
            cause: "the listener of the node has one setting for all connections",
            cure: "start both nodes again with the new value",
        },
        "\"off\" sends the data in the clear, for a dedicated link. Authentication is never off.",
    ),
];

/// The keys of `[datastore.witness]`: either `etcd`, or both others.
pub const WITNESS: &[Setting] = &[
    required(
        "address",
        "address = \"10.0.0.3:7400\", the `listen` of the witness",
        WITNESS_CHANGE,
        "The `listen` of the witness, as seen from here.",
    ),
    required(
        "fingerprint",
        "fingerprint = \"SHA256:…\", as `lockstep init --witness` printed on the witness",
        WITNESS_CHANGE,
        "Printed by `lockstep init --witness` on the witness.",
    ),
    Setting {
        key: "etcd",
        values: Values::Optional,
        change: WITNESS_CHANGE,
        about: "Instead of the other two: the endpoints of one etcd cluster.",
    },
];

/// The setting of that key in a section; `None` for an unknown key.
pub fn find<'s>(section: &'s [Setting], key: &str) -> Option<&'s Setting> {
    section.iter().find(|setting| setting.key == key)
}

/// The line that an error message shows for a required key of a section.
pub fn example(section: &[Setting], key: &str) -> &'static str {
    match find(section, key).map(|setting| setting.values) {
        Some(Values::Required { example }) => example,
        _ => "",
    }
}

/// All keys of a section.
pub fn keys(section: &[Setting]) -> Vec<&'static str> {
    section.iter().map(|setting| setting.key).collect()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn each_key_is_there_once_and_says_what_it_is() {
        for section in [DATASTORE, SNAPSHOTS, SNAPSHOT_HOOKS, PEER, WITNESS] {
            let distinct: BTreeSet<_> = keys(section).into_iter().collect();
            assert_eq!(distinct.len(), section.len());
            for setting in section {
                assert!(setting.about.ends_with('.'), "{}", setting.key);
            }
        }
        assert!(find(DATASTORE, "fuse_threads").is_some());
        assert!(find(DATASTORE, "fuse_thread").is_none());
    }

    #[test]
    fn each_default_lies_within_its_bounds() {
        for setting in [DATASTORE, SNAPSHOTS, SNAPSHOT_HOOKS, PEER, WITNESS].concat() {
            match setting.values {
                Values::Number(number) => {
                    let is_off = number.has_off && number.default == 0;
                    assert!(is_off || (number.least..=number.most).contains(&number.default));
                }
                Values::Word { words, default } => assert!(words().contains(&default())),
                Values::Required { example } => assert!(example.starts_with(setting.key)),
                Values::Optional | Values::Section => {}
            }
        }
    }
}
