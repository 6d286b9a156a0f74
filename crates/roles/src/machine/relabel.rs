//! A machine with other labels.

use super::RoleMachine;
use crate::event::RoleSettings;
use crate::relabel::Labels;

impl RoleMachine {
    /// The machine with other labels. It decides as before.
    #[must_use]
    pub fn relabel(self, labels: &impl Labels) -> Self {
        Self {
            settings: RoleSettings {
                me: labels.member(self.settings.me),
                ..self.settings
            },
            record: labels.record(self.record),
            recording: self
                .recording
                .map(|(record, phase)| (labels.record(record), phase)),
            peer: self.peer.map(|record| labels.record(record)),
            claimed: self
                .claimed
                .filter(|claimed| labels.keeps(claimed))
                .map(|claimed| labels.known(claimed)),
            ..self
        }
    }
}
