//! A link that comes and goes (rule P23).

use super::*;

/// The longest wait.
const WAIT_MAX_MS: u64 = 5000;
/// The end of a series: so long in sync.
const CALM_MS: u64 = 5 * WAIT_MAX_MS;

/// A core in sync whose pause limit is 1 s, and the time.
struct Flapping {
    core: Core,
    now_ms: u64,
}

impl Flapping {
    fn are_pauses_used_up(&self) -> bool {
        let used_up_ms = self.core.pause_ends().ask_ms;
        used_up_ms.is_some_and(|at_ms| self.now_ms >= at_ms)
    }

    fn new() -> Self {
        let config = CoreConfig {
            flap_wait_max_ms: WAIT_MAX_MS,
            ..core(State::Synced).config
        };
        let start = CoreStart {
            state: State::Synced,
            first_osn: osn(1),
            in_doubt: Vec::new(),
            interrupted_writes: Vec::new(),
        };
        Self {
            core: Core::new(config, start, 0),
            now_ms: 0,
        }
    }

    fn after(&mut self, ms: u64, event: Event) -> Vec<Effect> {
        self.now_ms += ms;
        self.core.at(self.now_ms, event)
    }

    fn trigger(&mut self, trigger: Trigger) -> Vec<Effect> {
        self.after(0, Event::Trigger(trigger))
    }

    fn connect(&mut self) -> Vec<Effect> {
        let up = Event::LinkUp {
            connection: LINK,
            in_sync: false,
            peer_applied: Osn::ZERO,
        };
        self.after(0, up)
    }

    /// Loses the connection. Returns how long changes wait, in ticks of 100 ms, before this node serves alone.
    fn lose(&mut self) -> u64 {
        self.trigger(Trigger::LinkLost);
        let begin = self.now_ms;
        while self.core.state() == State::Paused {
            self.after(100, Event::Tick);
        }
        self.trigger(Trigger::MarkedOutOfSync);
        assert_eq!(self.core.state(), State::OutOfSync);
        (self.now_ms - begin) / 100
    }

    /// Connects, and lets the connection stand. Returns the time until the resync begins.
    fn stand(&mut self) -> u64 {
        let begin = self.now_ms;
        let effects = self.connect();
        while self.core.state() == State::OutOfSync {
            self.after(500, Event::Beat);
        }
        let waited = self.now_ms - begin;
        let announced = effects.iter().find_map(|effect| match effect {
            Effect::AwaitSteadyLink { wait_ms, .. } => Some(*wait_ms),
            _ => None,
        });
        assert_eq!(announced.unwrap_or(0), waited, "{effects:?}");
        waited
    }

    fn resync(&mut self) {
        for trigger in [
            Trigger::ImageSent,
            Trigger::ImageDone,
            Trigger::ContentDone,
            Trigger::MarkedInSync,
        ] {
            self.trigger(trigger);
        }
        assert_eq!(self.core.state(), State::Synced);
    }
}

#[test]
fn a_link_that_comes_and_goes_is_to_stand_ever_longer() {
    let mut flapping = Flapping::new();
    let mut waits = Vec::new();
    let mut pauses = Vec::new();
    for _ in 0..6 {
        pauses.push(flapping.lose());
        waits.push(flapping.stand());
        flapping.resync();
    }
    assert_eq!(waits, [0, 1000, 2000, 4000, WAIT_MAX_MS, WAIT_MAX_MS]);
    // The first pause lasts to the limit of all.
    assert_eq!(pauses, [10, 1, 1, 1, 1, 1]);
}

#[test]
fn a_connection_that_is_lost_in_the_wait_counts_for_nothing() {
    let mut flapping = Flapping::new();
    for _ in 0..3 {
        flapping.lose();
        flapping.stand();
        flapping.resync();
    }
    flapping.lose();
    for _ in 0..10 {
        flapping.connect();
        for _ in 0..7 {
            flapping.after(500, Event::Beat);
        }
        assert_eq!(flapping.core.state(), State::OutOfSync);
        let served = flapping.core.submit_write(flapping.now_ms, 5);
        assert_eq!(served.len(), 1, "this node serves alone: {served:?}");
        let (id, now) = (OpId(flapping.now_ms), flapping.now_ms);
        flapping.core.at(now, Event::LocalDone(id, Ok(())));
        flapping.trigger(Trigger::LinkLost);
        flapping.after(0, Event::Beat);
    }
    assert_eq!(
        flapping.stand(),
        4000,
        "no changes waited, so nothing has grown"
    );
}

#[test]
fn a_series_ends_after_a_long_time_in_sync() {
    for (in_sync_ms, wait) in [(CALM_MS - 1, 2000), (CALM_MS, 0)] {
        let mut flapping = Flapping::new();
        for _ in 0..2 {
            flapping.lose();
            flapping.stand();
            flapping.resync();
        }
        flapping.now_ms += in_sync_ms;
        let paused = flapping.lose();
        assert_eq!(paused, if wait == 0 { 10 } else { 1 });
        assert_eq!(flapping.stand() / 1000 * 1000, wait);
    }
}

/// No change is answered in a pause, so short pauses do not matter one by one.
#[test]
fn short_pauses_count_together() {
    let mut flapping = Flapping::new();
    let mut pauses = 0;
    while flapping.core.state() == State::Synced {
        flapping.trigger(Trigger::LinkLost);
        for _ in 0..3 {
            flapping.after(100, Event::Tick);
        }
        if flapping.core.state() == State::Paused {
            pauses += 1;
            assert!(!flapping.are_pauses_used_up());
            flapping.after(0, reconnect());
            flapping.after(0, Event::RangesRecovered);
        }
    }
    assert_eq!(pauses, 3, "the fourth pause exceeds the limit of 1 s");
    assert_eq!(flapping.core.state(), State::LeavingSync);
}

#[test]
fn with_a_witness_used_up_pauses_ask_it_at_once_and_change_nothing_here() {
    let mut flapping = Flapping::new();
    flapping.core.config.pause_limit_ms = None;
    for _ in 0..4 {
        flapping.trigger(Trigger::LinkLost);
        flapping.after(300, Event::Tick);
        assert_eq!(flapping.core.state(), State::Paused);
        let is_over = flapping.now_ms > 1000;
        assert_eq!(flapping.are_pauses_used_up(), is_over);
        flapping.after(0, reconnect());
        flapping.after(0, Event::RangesRecovered);
        assert_eq!(flapping.core.state(), State::Synced);
    }
}

#[test]
fn a_primary_that_does_not_back_off_takes_the_secondary_back_at_once() {
    let mut flapping = Flapping::new();
    flapping.core = core(State::Synced);
    for _ in 0..4 {
        assert_eq!(flapping.lose(), 10);
        assert_eq!(flapping.stand(), 0);
        flapping.resync();
    }
}

/// A secondary that could not do an operation says nothing of the link.
#[test]
fn a_failure_of_the_secondary_is_no_loss() {
    let mut flapping = Flapping::new();
    for _ in 0..4 {
        flapping.trigger(Trigger::PeerFailed);
        flapping.trigger(Trigger::LinkLost);
        flapping.trigger(Trigger::MarkedOutOfSync);
        assert_eq!(flapping.stand(), 0);
        flapping.resync();
    }
}

/// A secondary that is stopped says nothing of the link, either.
#[test]
fn a_loss_after_the_peer_has_said_that_it_stops_does_not_count() {
    let mut flapping = Flapping::new();
    for _ in 0..4 {
        flapping.after(0, Event::PeerStops);
        assert_eq!(flapping.lose(), 10);
        assert_eq!(flapping.stand(), 0);
        flapping.resync();
    }
}
