//! The probe of a running cluster: it counts disk calls and frames, and injects a fault at one of
//! these points.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use parking_lot::Mutex;

use super::fault::{FaultKind, InjectedFault, Point, PointInfo, StoppedNodes};
use crate::disk::{Call, Disk, Verdict};
use crate::scenario::cluster::Cluster;
use crate::scenario::recording::history_recorder::HistoryRecorder;
use crate::world::{self, FrameVerdict, Network, Process, Shared, Side, Wait};

/// The limits of the points that count.
#[derive(Clone, Copy, Debug)]
pub struct Counted {
    /// Number of answers before any point counts.
    pub answers_before: u64,
    /// The time from which on no frame counts.
    pub frames_until: Duration,
}

/// Counts points, and injects a fault at one of them.
pub struct Probe {
    fault: Option<InjectedFault>,
    is_injected: AtomicBool,
    /// Number of calls and frames of each side so far.
    counts: Mutex<Counts>,
    /// The points, recorded in a run without a fault to inject.
    points: Mutex<Vec<PointInfo>>,
    counted: Counted,
    processes: [Option<Arc<Process>>; 2],
    disks: [Disk; 2],
    network: Arc<Network>,
    recorder: Arc<Mutex<HistoryRecorder>>,
    shared: Arc<Shared>,
}

#[derive(Default)]
struct Counts {
    calls: [u64; 2],
    frames: [u64; 2],
}

impl Probe {
    /// Attaches a probe to a cluster. The probe injects `fault`, or records all points if there is
    /// no fault.
    pub fn attach(cluster: &Cluster, fault: Option<InjectedFault>, counted: Counted) -> Arc<Self> {
        let probe = Arc::new(Self {
            fault,
            is_injected: AtomicBool::new(false),
            counts: Mutex::default(),
            points: Mutex::default(),
            counted,
            processes: Side::BOTH.map(|side| cluster.nodes.of(side).process()),
            disks: Side::BOTH.map(|side| cluster.disk(side).clone()),
            network: Arc::clone(&cluster.world.network),
            recorder: Arc::clone(&cluster.recorder),
            shared: Arc::clone(&cluster.world.shared),
        });
        for side in Side::BOTH {
            let of_side = Arc::clone(&probe);
            let observer = move |call: &Call<'_>| of_side.on_call(side, call);
            cluster.disk(side).observe(Some(Arc::new(observer)));
        }
        let of_frames = Arc::clone(&probe);
        let observer = move |from| of_frames.on_frame(from);
        cluster.world.network.observe(Some(Arc::new(observer)));
        probe
    }

    /// Detaches the probe of a cluster.
    pub fn detach(cluster: &Cluster) {
        cluster.world.network.observe(None);
        cluster.world.network.set_frames_kept(None);
        for side in Side::BOTH {
            cluster.disk(side).observe(None);
        }
    }

    /// Returns whether the fault has happened.
    pub fn is_injected(&self) -> bool {
        self.is_injected.load(Ordering::Relaxed)
    }

    /// Takes the recorded points, in their order.
    pub fn take_points(&self) -> Vec<PointInfo> {
        std::mem::take(&mut self.points.lock())
    }

    /// Returns the number of frames that each side has sent.
    pub fn frames_sent(&self) -> [u64; 2] {
        self.counts.lock().frames
    }

    fn is_counting(&self) -> bool {
        !self.is_injected() && self.recorder.lock().answered() >= self.counted.answers_before
    }

    fn next_number(count: &mut u64) -> u64 {
        let number = *count;
        *count += 1;
        number
    }

    fn record(&self, point: Point, call: Option<&Call<'_>>) {
        if self.fault.is_some() {
            return;
        }
        let info = PointInfo {
            point,
            call: call.map(|call| (call.kind, call.offset, call.length)),
            unsynced: self.disks.each_ref().map(|disk| disk.unsynced() as u64),
            frames_in_flight: Side::BOTH.map(|side| self.network.frames_in_flight(side)),
            frames_sent: self.frames_sent(),
            events: self.recorder.lock().now(),
        };
        self.points.lock().push(info);
    }

    /// Returns the fault to inject at a point, if any.
    fn fault_at(&self, point: Point) -> Option<FaultKind> {
        let fault = self.fault.filter(|fault| fault.point == point)?;
        self.is_injected.store(true, Ordering::Relaxed);
        Some(fault.kind)
    }

    fn on_call(&self, side: Side, call: &Call<'_>) -> Verdict {
        if !self.is_counting() {
            return Verdict::Go;
        }
        let number = Self::next_number(side.of_mut(&mut self.counts.lock().calls));
        let point = Point::Call(side, number);
        self.record(point, Some(call));
        match self.fault_at(point) {
            Some(FaultKind::Stop {
                nodes,
                verdict,
                frames_kept,
                ..
            }) => {
                // Not earlier: after an earlier fault, connections end without this fault.
                self.network.set_frames_kept(Some(frames_kept));
                self.stop(nodes, side, verdict)
            }
            _ => Verdict::Go,
        }
    }

    /// Ends the processes of `nodes`, at a call of `caller`'s disk.
    fn stop(&self, nodes: StoppedNodes, caller: Side, verdict: Verdict) -> Verdict {
        for side in Side::BOTH.into_iter().filter(|side| nodes.includes(*side)) {
            if let Some(process) = side.of(&self.processes) {
                process.die();
            }
        }
        if !nodes.includes(caller) {
            return Verdict::Go;
        }
        if verdict == Verdict::CrashBefore && world::is_in_fiber() {
            // The fiber must do nothing after this point.
            world::wait(Wait::Dead);
        }
        verdict
    }

    fn on_frame(&self, from: Side) -> FrameVerdict {
        if !self.is_counting() || self.shared.now() > self.counted.frames_until {
            return FrameVerdict::Pass;
        }
        let number = Self::next_number(from.of_mut(&mut self.counts.lock().frames));
        let point = Point::Frame(from, number);
        self.record(point, None);
        match self.fault_at(point) {
            Some(FaultKind::Disconnect { frames_kept }) => {
                FrameVerdict::Disconnect { kept: frames_kept }
            }
            _ => FrameVerdict::Pass,
        }
    }
}
