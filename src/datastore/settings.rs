//! What the configuration calls a setting, as the crates below call it.
//!
//! They cannot know the configuration, and it has words and defaults that are no business of theirs.

use lockstep_link as link;
use lockstep_repl::core as protocol;

use crate::config;

impl From<config::Encryption> for link::Encryption {
    fn from(setting: config::Encryption) -> Self {
        match setting {
            config::Encryption::On => Self::On,
            config::Encryption::Off => Self::Off,
        }
    }
}

impl From<config::OnPeerLoss> for protocol::OnPeerLoss {
    fn from(setting: config::OnPeerLoss) -> Self {
        match setting {
            config::OnPeerLoss::Continue => Self::Continue,
            config::OnPeerLoss::Freeze => Self::Freeze,
        }
    }
}
