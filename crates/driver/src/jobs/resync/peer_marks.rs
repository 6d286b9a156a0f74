//! The marks of the secondary, as the source of a resync asks for them (rule P29).

use lockstep_repl::message::{BarrierName, MarkPage, Request, Response};
use lockstep_resync::{Peer, PeerError};

/// The marks of the secondary in each interval after a barrier, and its rest. `None` if there are too many: then everything is compared.
pub(super) fn ask(peer: &dyn Peer, since: BarrierName) -> Result<Option<Vec<MarkPage>>, PeerError> {
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
