//! The witness that the nodes ask (docs/protocol/roles.md): one record, and calls that take time, that are lost, or that are
//! late on their way.
//!
//! Invariant: the record changes as `Claim::apply` says, also by a claim whose caller has given up.

use std::sync::Arc;
use std::time::Duration;

use lockstep_roles::{Claim, Member, Witness, WitnessError, WitnessRecord};
use lockstep_types::Generation;
use parking_lot::Mutex;

use super::fibers::{self, Wait};
use super::process::{Process, Shared};
use super::side::Side;

/// The longest way of a message, in microseconds.
const WAY_MAX_US: u64 = 3_000;
/// The longest time for which a claim can be late, in microseconds.
const LATE_MAX_US: u64 = 4_000_000;
/// Share of calls whose request is lost, whose answer is lost, or whose request is late, in percent each.
const LOST_PERCENT: u64 = 4;

/// See the head of this file.
#[derive(Default)]
pub struct SimWitness(Mutex<SimWitnessState>);

#[derive(Default)]
struct SimWitnessState {
    record: Option<WitnessRecord>,
    /// Claims that are on their way, with the times of their arrival.
    late: Vec<(Duration, Claim)>,
    /// The machines that cannot reach the witness.
    cut_off: [bool; 2],
    /// The machines that no answer of the witness reaches.
    answers_lost: [bool; 2],
    /// The time that each call of a machine takes longer.
    slowness: [Duration; 2],
    /// Number of calls of each machine that wait for an answer.
    calls: [u64; 2],
}

impl SimWitnessState {
    /// Handles the claims that have arrived until `now`, in the order of their arrival.
    fn settle(&mut self, now: Duration) {
        self.late.sort_by_key(|(at, _)| *at);
        let due = self.late.partition_point(|(at, _)| *at <= now);
        for (_, claim) in self.late.drain(..due) {
            self.record = claim.apply(self.record);
        }
    }
}

impl SimWitness {
    /// Cuts a machine off from the witness, or connects it again.
    pub fn cut_off(&self, side: Side, is_cut: bool) {
        *side.of_mut(&mut self.0.lock().cut_off) = is_cut;
    }

    /// Loses each answer of the witness to a machine, or lets the answers arrive again.
    pub fn lose_answers(&self, side: Side, are_lost: bool) {
        *side.of_mut(&mut self.0.lock().answers_lost) = are_lost;
    }

    /// Lets each later call of a machine take this time longer.
    pub fn slow_down(&self, side: Side, time: Duration) {
        *side.of_mut(&mut self.0.lock().slowness) = time;
    }

    /// Returns whether a machine waits for an answer.
    pub fn is_asked(&self, side: Side) -> bool {
        *side.of(&self.0.lock().calls) > 0
    }

    /// Records that a machine begins to wait for an answer. Returns the time that the call takes longer.
    fn begin_call(&self, side: Side) -> Duration {
        let mut state = self.0.lock();
        *side.of_mut(&mut state.calls) += 1;
        *side.of(&state.slowness)
    }

    fn end_call(&self, side: Side) {
        *side.of_mut(&mut self.0.lock().calls) -= 1;
    }

    /// Replaces the witness by one without a record. A claim to the earlier one never arrives.
    pub fn replace(&self) {
        let mut state = self.0.lock();
        state.record = None;
        state.late.clear();
    }

    /// Returns the generation of the record, and the machine that is its primary.
    pub fn primary(&self, now: Duration) -> Option<(Generation, Side)> {
        let mut state = self.0.lock();
        state.settle(now);
        let record = state.record?;
        let side = match record.primary {
            Member::First => Side::A,
            Member::Second => Side::B,
        };
        Some((record.generation, side))
    }

    fn is_cut_off(&self, side: Side) -> bool {
        *side.of(&self.0.lock().cut_off)
    }

    /// Returns whether an answer reaches a machine now.
    fn answers_reach(&self, side: Side) -> bool {
        let state = self.0.lock();
        !side.of(&state.cut_off) && !side.of(&state.answers_lost)
    }

    /// Returns the record after a call that arrives now.
    fn call(&self, claim: Option<&Claim>, now: Duration) -> Option<WitnessRecord> {
        let mut state = self.0.lock();
        state.settle(now);
        if let Some(claim) = claim {
            state.record = claim.apply(state.record);
        }
        state.record
    }

    fn delay(&self, claim: Claim, arrival: Duration) {
        self.0.lock().late.push((arrival, claim));
    }
}

/// The fate of a call on its way.
enum Passage {
    Arrives,
    RequestLost,
    AnswerLost,
    Late,
}

/// The witness, as the process of one machine asks it.
pub struct SimWitnessClient {
    side: Side,
    process: Arc<Process>,
    witness: Arc<SimWitness>,
}

impl SimWitnessClient {
    /// Returns the line of a process.
    pub const fn new(side: Side, process: Arc<Process>, witness: Arc<SimWitness>) -> Self {
        Self {
            side,
            process,
            witness,
        }
    }

    /// Returns the name of the machine in the records.
    pub const fn me(&self) -> Member {
        match self.side {
            Side::A => Member::First,
            Side::B => Member::Second,
        }
    }

    fn shared(&self) -> &Shared {
        self.process.shared()
    }

    fn pause(&self, time: Duration) {
        fibers::wait(Wait::Until(self.shared().now() + time));
    }

    fn below(&self, limit_us: u64) -> Duration {
        let drawn = self.shared().with_random(|random| random.below(limit_us));
        Duration::from_micros(drawn)
    }

    fn passage(&self) -> Passage {
        let drawn = self.shared().with_random(|random| random.below(100));
        match drawn / LOST_PERCENT {
            0 => Passage::RequestLost,
            1 => Passage::AnswerLost,
            2 => Passage::Late,
            _ => Passage::Arrives,
        }
    }

    fn ask(
        &self,
        claim: Option<&Claim>,
        limit: Duration,
    ) -> Result<Option<WitnessRecord>, WitnessError> {
        let slowness = self.witness.begin_call(self.side);
        let answer = self.ask_slowly(claim, limit, slowness);
        self.witness.end_call(self.side);
        answer
    }

    fn ask_slowly(
        &self,
        claim: Option<&Claim>,
        limit: Duration,
        slowness: Duration,
    ) -> Result<Option<WitnessRecord>, WitnessError> {
        let begin = self.shared().now();
        self.pause(slowness + self.below(WAY_MAX_US));
        let passage = self.passage();
        let is_cut_off = self.witness.is_cut_off(self.side);
        if !is_cut_off {
            let now = self.shared().now();
            match passage {
                Passage::Arrives => {
                    let record = self.witness.call(claim, now);
                    self.pause(self.below(WAY_MAX_US));
                    if self.witness.answers_reach(self.side) {
                        return Ok(record);
                    }
                }
                Passage::AnswerLost => drop(self.witness.call(claim, now)),
                Passage::Late => {
                    if let Some(claim) = claim {
                        self.witness.delay(*claim, now + self.below(LATE_MAX_US));
                    }
                }
                Passage::RequestLost => {}
            }
        }
        fibers::wait(Wait::Until(begin + limit));
        Err(WitnessError::Unreachable {
            witness: "the simulated witness".to_owned(),
            cause: "no answer".to_owned(),
            cure: "wait".to_owned(),
        })
    }
}

impl Witness for SimWitnessClient {
    fn read(&self, limit: Duration) -> Result<Option<WitnessRecord>, WitnessError> {
        self.ask(None, limit)
    }

    fn claim(&self, claim: &Claim, limit: Duration) -> Result<Option<WitnessRecord>, WitnessError> {
        assert!(claim.check().is_ok(), "a node makes the claim {claim:?}");
        self.ask(Some(claim), limit)
    }
}
