//! Settings of a datastore with a fixed list of values, each written as one word.
//!
//! The configuration, the protocol core, the link and the control socket all use these types.
//!
//! Invariant: the words of a setting differ from each other, and [`Choice::find`] is the inverse of
//! [`Choice::word`].

use std::fmt;

use serde::{Deserialize, Serialize};

/// A setting whose value is one word of a fixed list.
pub trait Choice: Copy + PartialEq + 'static {
    /// Every value with its word, in the order of the list in error messages.
    const ALL: &'static [(Self, &'static str)];

    /// The word of this value.
    fn word(self) -> &'static str {
        Self::ALL
            .iter()
            .find(|(value, _)| *value == self)
            .map_or("", |(_, word)| word)
    }

    /// The value of `word`; `None` for an unknown word.
    fn find(word: &str) -> Option<Self> {
        Self::ALL
            .iter()
            .find(|(_, known)| *known == word)
            .map(|(value, _)| *value)
    }
}

/// A node's role in a datastore.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Role {
    /// Serves the datastore and sends every operation to the secondary.
    Primary,
    /// Receives every operation and applies it.
    Secondary,
}

impl Choice for Role {
    const ALL: &'static [(Self, &'static str)] =
        &[(Self::Primary, "primary"), (Self::Secondary, "secondary")];
}

/// When an acknowledged write must be on stable storage.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Durability {
    /// When the client asks for it: `fsync`, `O_SYNC`, `O_DSYNC`.
    #[default]
    Posix,
    /// Every operation, before it is acknowledged.
    Always,
}

impl Choice for Durability {
    const ALL: &'static [(Self, &'static str)] =
        &[(Self::Posix, "posix"), (Self::Always, "always")];
}

/// The policy when the peer is lost for longer than the pause limit, or does not answer in time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum OnPeerLoss {
    /// Continue with one copy, out of sync, and report it.
    #[default]
    Continue,
    /// Acknowledge nothing until the peer is back.
    Freeze,
}

impl Choice for OnPeerLoss {
    const ALL: &'static [(Self, &'static str)] =
        &[(Self::Continue, "continue"), (Self::Freeze, "freeze")];
}

/// The behaviour of a primary that starts and cannot reach its peer, while the peer may hold newer operations or may have
/// been promoted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum OnPowerLoss {
    /// Serves nothing until it has met its peer, or an operator promotes it.
    #[default]
    Wait,
    /// Serves from its own disk. After a power loss, operations that were acknowledged and never synced may be lost.
    Serve,
}

impl Choice for OnPowerLoss {
    const ALL: &'static [(Self, &'static str)] = &[(Self::Wait, "wait"), (Self::Serve, "serve")];
}

/// The answer to requests of programs on a node that does not serve the datastore. A change never waits for the end of the
/// other node's service (rule R13).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Standby {
    /// A request that changes nothing waits until this node serves. A change fails with `EROFS`.
    Wait,
    /// A request fails with `EROFS`.
    #[default]
    Erofs,
    /// A request fails with `EAGAIN`, also one whose outcome a change of the role leaves unknown. An NFS server has its
    /// client ask again then, and no request runs late, after the client has asked the other node.
    Eagain,
}

impl Choice for Standby {
    const ALL: &'static [(Self, &'static str)] = &[
        (Self::Wait, "wait"),
        (Self::Erofs, "erofs"),
        (Self::Eagain, "eagain"),
    ];
}

/// Whether the bytes between the nodes are encrypted. Authentication is never off.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Encryption {
    /// TLS 1.3 throughout.
    #[default]
    On,
    /// The nodes authenticate each other by TLS 1.3, then leave TLS and send clear bytes: only for a dedicated
    /// link.
    Off,
}

impl Choice for Encryption {
    const ALL: &'static [(Self, &'static str)] = &[(Self::On, "on"), (Self::Off, "off")];
}

/// The time between two beginnings of a comparison of both disks with the sums of their nodes, in the background.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum ScrubEvery {
    /// There is none.
    #[default]
    #[serde(rename = "off")]
    Off,
    /// A day.
    #[serde(rename = "1d")]
    Day,
    /// A week.
    #[serde(rename = "7d")]
    Week,
    /// Thirty days.
    #[serde(rename = "30d")]
    Month,
}

impl ScrubEvery {
    /// The time in seconds; `None` if there is no such comparison.
    pub const fn seconds(self) -> Option<i64> {
        const DAY: i64 = 24 * 60 * 60;
        match self {
            Self::Off => None,
            Self::Day => Some(DAY),
            Self::Week => Some(7 * DAY),
            Self::Month => Some(30 * DAY),
        }
    }
}

impl Choice for ScrubEvery {
    const ALL: &'static [(Self, &'static str)] = &[
        (Self::Off, "off"),
        (Self::Day, "1d"),
        (Self::Week, "7d"),
        (Self::Month, "30d"),
    ];
}

/// How long what programs delete is kept in the trash of a datastore.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum TrashAge {
    /// Nothing is put into the trash.
    #[default]
    #[serde(rename = "off")]
    Off,
    /// An hour.
    #[serde(rename = "1h")]
    Hour,
    /// A day.
    #[serde(rename = "1d")]
    Day,
    /// Three days.
    #[serde(rename = "3d")]
    ThreeDays,
    /// A week.
    #[serde(rename = "7d")]
    Week,
    /// Two weeks.
    #[serde(rename = "14d")]
    TwoWeeks,
    /// Thirty days.
    #[serde(rename = "30d")]
    Month,
    /// Ninety days.
    #[serde(rename = "90d")]
    Quarter,
}

impl TrashAge {
    /// Whether nothing is put into the trash.
    pub const fn is_off(self) -> bool {
        matches!(self, Self::Off)
    }

    /// The time in seconds. A trash that is off keeps what it has for a week.
    pub const fn seconds(self) -> i64 {
        const HOUR: i64 = 60 * 60;
        const DAY: i64 = 24 * HOUR;
        match self {
            Self::Hour => HOUR,
            Self::Day => DAY,
            Self::ThreeDays => 3 * DAY,
            Self::Off | Self::Week => 7 * DAY,
            Self::TwoWeeks => 14 * DAY,
            Self::Month => 30 * DAY,
            Self::Quarter => 90 * DAY,
        }
    }
}

impl Choice for TrashAge {
    const ALL: &'static [(Self, &'static str)] = &[
        (Self::Off, "off"),
        (Self::Hour, "1h"),
        (Self::Day, "1d"),
        (Self::ThreeDays, "3d"),
        (Self::Week, "7d"),
        (Self::TwoWeeks, "14d"),
        (Self::Month, "30d"),
        (Self::Quarter, "90d"),
    ];
}

/// Whether each read of a program is compared with the sums of the blocks that it reads.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum CheckReads {
    /// It is not.
    #[default]
    Off,
    /// It is. A block that does not fit is healed from the other node before the program gets it.
    On,
}

impl Choice for CheckReads {
    const ALL: &'static [(Self, &'static str)] = &[(Self::Off, "off"), (Self::On, "on")];
}

impl fmt::Display for Encryption {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.word())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words_round_trip<T: Choice + std::fmt::Debug>() {
        for (value, word) in T::ALL {
            assert_eq!(value.word(), *word);
            assert_eq!(T::find(word), Some(*value));
        }
        assert_eq!(T::find("nonsense"), None);
    }

    #[test]
    fn each_value_has_its_word() {
        words_round_trip::<Role>();
        words_round_trip::<Durability>();
        words_round_trip::<OnPeerLoss>();
        words_round_trip::<OnPowerLoss>();
        words_round_trip::<Standby>();
        words_round_trip::<Encryption>();
        words_round_trip::<TrashAge>();
    }
}
