//! Operations that the previous process left unfinished.

use super::*;

#[test]
fn in_doubt_operations_are_committed_or_sent_again_after_a_restart() {
    let config = CoreConfig {
        pause_limit_ms: Some(1000),
        pauses_max_ms: 1000,
        flap_wait_max_ms: 0,
        answer_limit: LIMIT,
        on_peer_loss: OnPeerLoss::Freeze,
        gate_limit_ms: 1000,
        writes_max: 4,
        bytes_max: 100,
    };
    let start = CoreStart {
        state: State::Paused,
        first_osn: osn(100),
        in_doubt: vec![osn(3), osn(4)],
        interrupted_writes: Vec::new(),
    };
    let mut core = Core::new(config, start, 0);
    let up = Event::LinkUp {
        connection: LINK,
        in_sync: true,
        peer_applied: osn(3),
    };
    assert_eq!(
        core.on(up),
        [
            Effect::Entered(State::CatchingUp),
            Effect::ResendMeta { osn: osn(4) },
            Effect::Commit {
                osn: osn(3),
                op: None
            }
        ]
    );
    core.on(Event::Applied(osn(3)));
    core.on(Event::MetaAcked(osn(4), Ok(())));
    assert_eq!(
        core.on(Event::Applied(osn(4))),
        [transfer(Transfer::RecoverRanges)]
    );
}

/// A write of the previous process may be on this node only: no client reads its bytes before both nodes have them.
#[test]
fn an_interrupted_write_is_not_read_before_both_nodes_have_it() {
    for settled in [true, false] {
        let mut core = interrupted();
        assert_eq!(core.submit_read(1, 5), [], "the same file");
        assert_eq!(core.submit_read(2, 6).len(), 1, "another one");
        let effects = if settled {
            core.on(Event::LinkUp {
                connection: LINK,
                in_sync: true,
                peer_applied: Osn::ZERO,
            });
            core.on(Event::RangesRecovered)
        } else {
            core.on(Event::Trigger(Trigger::PauseOverContinue));
            core.on(Event::Trigger(Trigger::MarkedOutOfSync))
        };
        let read = |effect: &Effect| matches!(effect, Effect::Execute { op: OpId(1), .. });
        assert!(effects.iter().any(read), "{effects:?}");
    }
}

/// A node that starts out of sync has to decide its operations in doubt first: the end of the image waits for them.
#[test]
fn the_end_of_an_image_is_sent_only_when_nothing_is_in_doubt() {
    for (in_doubt, sent) in [(vec![osn(3)], false), (Vec::new(), true)] {
        let config = core(State::OutOfSync).config;
        let start = CoreStart {
            state: State::OutOfSync,
            first_osn: osn(100),
            in_doubt,
            interrupted_writes: Vec::new(),
        };
        let mut core = Core::new(config, start, 0);
        let up = Event::LinkUp {
            connection: LINK,
            in_sync: false,
            peer_applied: osn(3),
        };
        assert!(core.on(up).contains(&transfer(Transfer::SendImage)));
        let effects = core.on(Event::Trigger(Trigger::ImageSent));
        assert_eq!(effects.contains(&transfer(Transfer::SendTail)), sent);
    }
}
