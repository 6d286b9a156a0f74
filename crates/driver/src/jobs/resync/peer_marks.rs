//! The marks of the secondary, as the source of a resync asks for them (rule P29).

use lockstep_repl::message::{BarrierName, MarkPage, Request, Response};
use lockstep_resync::{Peer, PeerError, ResyncError};

use super::ResyncJobs;
use crate::replication::remote::RemotePeer;

impl ResyncJobs {
    /// Takes the youngest barrier that both nodes know for the base: all marks since then are in the rest of this node when this
    /// returns. `None` if no barrier is a base.
    pub(super) fn adopt_base(&self, peer: &RemotePeer) -> Result<Option<BarrierName>, ResyncError> {
        let (delta, account) = (self.engine.store.delta(), &peer.connection.copy.marks);
        let Some(base) = delta.base_with(account) else {
            return Ok(None);
        };
        let told = if base.needs_marks {
            match ask(peer, base.name)? {
                Some(told) => told,
                None => return Ok(None),
            }
        } else {
            Vec::new()
        };
        let led = self.replication.generation();
        let is_adopted = delta.adopt_base(base.name, led, account, &told);
        Ok(is_adopted.then_some(base.name))
    }
}

/// The marks of the secondary in each interval after a barrier, and its rest. `None` if there are too many: then everything is compared.
fn ask(peer: &dyn Peer, since: BarrierName) -> Result<Option<Vec<MarkPage>>, PeerError> {
    let mut pages = Vec::new();
    let mut told = 0;
    while pages.len() < MarkPage::PAGES_MAX {
        let answer = peer.ask(Request::Marks { since, told }, &[])?;
        let Response::Marks(page) = answer else {
            return Err(PeerError::Unexpected {
                what: "tell its marks",
            });
        };
        let next = page.next;
        pages.push(page);
        match next {
            Some(next) => told = next,
            None => return Ok(Some(pages)),
        }
    }
    Ok(None)
}
