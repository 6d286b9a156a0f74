//! The secret of the sums of content (P32): the first primary draws it, and each secondary takes that of its primary.
//!
//! A disk without room for the secret is no reason not to serve: the node then keeps no sums.

use std::sync::Arc;

use lockstep_repl::message::Hello;
use lockstep_sums::{SumKey, SumSecret};

use crate::engine::Engine;

/// This node leads: draws a secret if the store has none.
pub(super) fn draw(engine: &Engine) {
    let sums = engine.store.sums();
    if sums.secret().is_some() || engine.store.is_poisoned() {
        return;
    }
    let drawn = [engine.host.random_id(), engine.host.random_id()];
    let Some(secret) = drawn.as_flattened().first_chunk() else {
        unreachable!("two identities have 32 bytes")
    };
    store(engine, &SumSecret::new(*secret));
}

/// This node follows: takes the secret of its primary. If it had another one, all its sums are void.
pub(super) fn take(engine: &Engine, secret: Option<&SumSecret>) {
    if let Some(secret) = secret {
        store(engine, secret);
    }
}

/// From the greeting on, the frames of the primary are hashed with its secret: so the sums of the blocks of a write are those that
/// both stores keep, and each node hashes a block once. `use_key` gets the key, on both nodes by the same greeting.
pub(super) fn use_for_frames(hello: &Hello, use_key: impl FnOnce(&Arc<SumKey>)) {
    if let Some(secret) = &hello.sum_secret {
        use_key(&Arc::new(SumKey::new(secret)));
    }
}

fn store(engine: &Engine, secret: &SumSecret) {
    if let Err(error) = engine.store.sums().take_secret(secret) {
        tracing::warn!(datastore = engine.name(), %error, "no sums of content are kept");
    }
}
