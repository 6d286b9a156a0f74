//! The pair while every call of a disk and every frame is counted, and one of them met by a fault.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use parking_lot::Mutex;

use super::{Pair, STEPS_MAX, Users};
use crate::disk::{Call, Disk, Verdict};
use crate::history::Stop;
use crate::random::Random;
use crate::scenario::IN_SYNC_WITHIN;
use crate::scenario::exact::{Exact, Ground, Harm, Place, Seen, Stage, Who};
use crate::scenario::witness::Witness;
use crate::world::{self, Network, OnFrame, Process, Shared, Side, Wait};

/// How often it is looked whether something waited for is there.
const LOOK_EVERY: Duration = Duration::from_millis(20);
/// From sync until clients come: what was on the way has arrived.
const SETTLE: Duration = Duration::from_millis(300);

/// Counts places, and lets a fault happen at one of them.
pub struct Watch {
    exact: Option<Exact>,
    /// Has come.
    come: AtomicBool,
    /// Calls and frames of each side so far.
    counts: Mutex<Counts>,
    /// What was met, if no fault is to come.
    seen: Mutex<Vec<Seen>>,
    processes: [Option<Arc<Process>>; 2],
    disks: [Disk; 2],
    network: Arc<Network>,
    witness: Arc<Mutex<Witness>>,
    /// Nothing counts before so many answers.
    answers: u64,
    shared: Arc<Shared>,
    /// No frame counts from then on.
    frames_until: Duration,
}

#[derive(Default)]
struct Counts {
    calls: [u64; 2],
    frames: [u64; 2],
}

impl Watch {
    /// Whether the fault has come.
    pub fn has_come(&self) -> bool {
        self.come.load(Ordering::Relaxed)
    }

    /// All places that were met, in their order.
    pub fn places(&self) -> Vec<Seen> {
        std::mem::take(&mut self.seen.lock())
    }

    fn counts(&self) -> bool {
        !self.has_come() && self.witness.lock().answered() >= self.answers
    }

    fn count(of: &mut u64) -> u64 {
        let number = *of;
        *of += 1;
        number
    }

    fn note(&self, place: Place, call: Option<&Call<'_>>) {
        let seen = Seen {
            place,
            call: call.map(|call| (call.kind, call.offset, call.length)),
            unsynced: self.disks.each_ref().map(|disk| disk.unsynced() as u64),
            on_the_way: Side::BOTH.map(|side| self.network.on_the_way(side)),
            frames: self.counts.lock().frames,
            events: self.witness.lock().now(),
        };
        self.seen.lock().push(seen);
    }

    /// What goes wrong at a place.
    fn harm_at(&self, place: Place) -> Option<Harm> {
        let exact = self.exact.filter(|exact| exact.place == place)?;
        self.come.store(true, Ordering::Relaxed);
        Some(exact.harm)
    }

    fn meet_call(&self, side: Side, call: &Call<'_>) -> Verdict {
        if !self.counts() {
            return Verdict::Go;
        }
        let number = Self::count(side.of_mut(&mut self.counts.lock().calls));
        let place = Place::Call(side, number);
        if self.exact.is_none() {
            self.note(place, Some(call));
        }
        match self.harm_at(place) {
            Some(Harm::Stop {
                who, verdict, kept, ..
            }) => {
                // Not before: after an earlier fault connections are lost without this one.
                self.network.keep(Some(kept));
                self.stop(who, side, verdict)
            }
            _ => Verdict::Go,
        }
    }

    /// Ends processes, at a call of one side.
    fn stop(&self, who: Who, caller: Side, verdict: Verdict) -> Verdict {
        for side in Side::BOTH.into_iter().filter(|side| who.includes(*side)) {
            if let Some(process) = side.of(&self.processes) {
                process.die();
            }
        }
        if !who.includes(caller) {
            return Verdict::Go;
        }
        if verdict == Verdict::CrashBefore && world::is_inside() {
            // Nothing after this place is ever done.
            world::wait(Wait::Dead);
        }
        verdict
    }

    fn meet_frame(&self, from: Side) -> OnFrame {
        if !self.counts() || self.shared.now() > self.frames_until {
            return OnFrame::Pass;
        }
        let number = Self::count(from.of_mut(&mut self.counts.lock().frames));
        let place = Place::Frame(from, number);
        if self.exact.is_none() {
            self.note(place, None);
        }
        match self.harm_at(place) {
            Some(Harm::Lose { kept }) => OnFrame::Lose { kept },
            _ => OnFrame::Pass,
        }
    }
}

impl Pair {
    /// Both nodes as they stand on a ground, before they start.
    pub fn on(ground: &Ground, stage: &Stage, users: Users) -> Self {
        let chance = Random::new(stage.luck);
        let pair = Self::new(&stage.settings, users, stage.step_percent, chance);
        pair.standing_on(ground)
    }

    /// Two nodes that have never run, with what a ground gives them.
    #[must_use]
    pub fn standing_on(mut self, ground: &Ground) -> Self {
        for side in Side::BOTH {
            self.half(side).disk = side.of(&ground.disks).fork();
        }
        self.witness.lock().go_on_after(ground.history.clone());
        self
    }

    /// What both nodes, which have stopped, leave to others.
    pub fn ground(&self) -> Ground {
        Ground {
            disks: self.halves.each_ref().map(|half| half.disk.fork()),
            history: self.witness.lock().history().clone(),
        }
    }

    /// Lets the only client do so many operations, and stops both nodes when all is durable.
    pub fn make_ground(&mut self, operations: u64) -> Result<Ground, String> {
        self.start_both();
        let until = self.now() + IN_SYNC_WITHIN;
        while self.answered() < operations {
            if self.now() > until {
                return Err("the ground is not made in time".to_owned());
            }
            self.run_for(LOOK_EVERY)?;
        }
        self.until_in_sync(IN_SYNC_WITHIN)?;
        self.rest()?;
        self.judge()?;
        for side in Side::BOTH {
            self.stop(side, Stop::Process);
        }
        self.write_back()?;
        self.verdict()?;
        Ok(self.ground())
    }

    /// The systems write back what they have not yet, as they do in time.
    fn write_back(&self) -> Result<(), String> {
        for half in &self.halves {
            let synced = half.disk.mount().sync_all();
            synced.map_err(|error| format!("a disk cannot be synced: {error}"))?;
        }
        Ok(())
    }

    /// Starts both nodes, until they are in sync and at rest; then the clients of the stage may come.
    pub fn set_stage(&mut self, stage: &Stage) -> Result<(), String> {
        self.start_both();
        let until = self.now() + IN_SYNC_WITHIN;
        while !self.is_in_sync() {
            if self.now() > until {
                return Err("the stage is not set in time".to_owned());
            }
            self.run_for(LOOK_EVERY)?;
        }
        self.run_for(SETTLE)?;
        self.write_back()?;
        // They are brought to a mount that has none of them yet.
        self.clients = stage.clients;
        self.served_by = None;
        Ok(())
    }

    /// From now on, but not before so many answers, every place counts; for so long every frame.
    pub fn watch(
        &mut self,
        exact: Option<Exact>,
        answers: u64,
        frames_watched: Duration,
    ) -> Arc<Watch> {
        let watch = Arc::new(Watch {
            exact,
            come: AtomicBool::new(false),
            counts: Mutex::default(),
            seen: Mutex::default(),
            processes: Side::BOTH.map(|side| side.of(&self.halves).process()),
            disks: Side::BOTH.map(|side| side.of(&self.halves).disk.clone()),
            network: Arc::clone(&self.world.network),
            witness: Arc::clone(&self.witness),
            answers,
            shared: Arc::clone(&self.world.shared),
            frames_until: self.now() + frames_watched,
        });
        for side in Side::BOTH {
            let of_side = Arc::clone(&watch);
            let observer = move |call: &Call<'_>| of_side.meet_call(side, call);
            self.half(side).disk.observe(Some(Arc::new(observer)));
        }
        let of_frames = Arc::clone(&watch);
        let observer = move |from| of_frames.meet_frame(from);
        self.world.network.observe(Some(Arc::new(observer)));
        self.prepare_for(exact.map(|exact| exact.harm));
        watch
    }

    /// What is to be known when nodes stop.
    fn prepare_for(&mut self, harm: Option<Harm>) {
        let Some(Harm::Stop {
            who, stop, left, ..
        }) = harm
        else {
            return;
        };
        for side in Side::BOTH.into_iter().filter(|side| who.includes(*side)) {
            let half = self.half(side);
            half.stop_at_call = Some(stop);
            half.loss = Some(*side.of(&left));
        }
    }

    /// Places do not count any more.
    pub fn unwatch(&self) {
        self.world.network.observe(None);
        self.world.network.keep(None);
        for half in &self.halves {
            half.disk.observe(None);
        }
    }

    /// Lets everything run for some time, or until the fault has come and who stopped is started.
    pub fn run_watched(&mut self, watch: &Watch, time: Duration) -> Result<(), String> {
        let until = self.now() + time;
        self.look_after()?;
        while self.world.step(until) {
            self.steps += 1;
            if self.steps > STEPS_MAX {
                return Err("too much happens: somebody tries something again and again".to_owned());
            }
            self.look_after()?;
            if watch.has_come() {
                return Ok(());
            }
        }
        Ok(())
    }

    /// The same after a fault, until both nodes are in sync and at rest again.
    pub fn run_watched_until_in_sync(&mut self, watch: &Watch) -> Result<(), String> {
        let until = self.now() + IN_SYNC_WITHIN;
        loop {
            self.run_watched(watch, LOOK_EVERY)?;
            if watch.has_come() {
                return Ok(());
            }
            if self.is_in_sync() || self.now() > until {
                return self.run_watched(watch, SETTLE);
            }
        }
    }

    /// The first thing that was wrong so far.
    pub fn verdict(&self) -> Result<(), String> {
        self.witness.lock().verdict()
    }

    /// Of all that decides what follows a fault: both disks, what was asked and answered, who stopped
    /// and how, and unless both did the frames so far and the states of the nodes.
    pub fn digest_of_what_is_left(&self, watch: &Watch, exact: &Exact) -> u64 {
        let mut digest = DefaultHasher::new();
        for half in &self.halves {
            half.disk.digest().hash(&mut digest);
        }
        let witness = self.witness.lock();
        for (_, call) in witness.history().calls() {
            call.to_string().hash(&mut digest);
        }
        let (who, stop) = match exact.harm {
            Harm::Stop { who, stop, .. } => (Some(who), Some(stop)),
            Harm::Lose { .. } => (None, None),
        };
        format!("{who:?} {stop:?}").hash(&mut digest);
        if who != Some(Who::Both) {
            watch.counts.lock().frames.hash(&mut digest);
            let on_the_way = Side::BOTH.map(|side| self.world.network.on_the_way(side));
            on_the_way.hash(&mut digest);
            format!("{:?}", self.states()).hash(&mut digest);
        }
        digest.finish()
    }
}
