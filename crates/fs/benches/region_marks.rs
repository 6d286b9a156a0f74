//! The cost of a region mark for each write of 8 KiB: of a node that is alone, and of a primary that mirrors.
//! `cargo bench -p lockstep-fs --bench region_marks [DIRECTORY]`: in the given directory, or that of temporary files.
//!
//! Rounds of each kind take turns in one run: without a delta; alone, in parts that are marked; alone, in parts without a mark,
//! each written once; and the same two in sync, after a barrier. Then come the mark of a mirrored write alone, and
//! the question whether its region is announced. The last lines have a node that is alone, over 1 GiB at random: without a trace (P28),
//! the first write in each region with one, and later writes.

// A benchmark measures real time.
#![allow(clippy::disallowed_methods)]

mod measured;

use std::error::Error;
use std::time::Instant;

use lockstep_delta::announced::ENTRIES_MAX;
use lockstep_delta::{AnnouncedRegions, BarrierEffect, BarrierEvent, BarrierMessage, FileRegions};
use lockstep_fs::Store;
use lockstep_fs::store::TraceAccess;
use lockstep_types::{FileName, Generation, Ino, MetaOp, MetaRequest, NodeKind};
use parking_lot::Mutex;

use self::measured::{median, new_store, stamp, temporary_directory};

const WRITE_BYTES: u64 = 8 << 10;
/// One write in each part.
const PART_BYTES: u64 = 64 << 10;
const WRITES: u64 = 4096;
const ROUNDS: usize = 21;
/// Regions of 1 MiB of the file that a node writes alone.
const REGIONS: u64 = 1024;
const REGION_BYTES: u64 = 1 << 20;

fn main() -> Result<(), Box<dyn Error>> {
    let dir = temporary_directory()?;
    let store = new_store(dir.path())?;
    let ino = store.next_ino()?;
    let (osn, time) = stamp(1);
    let name = FileName::new(b"file").map_err(|errno| format!("{errno:?}"))?;
    let request = MetaRequest::creation(Ino::ROOT, name, ino, NodeKind::File).request();
    store.commit(&MetaOp { osn, time, request })?;
    let mut writer = Writer {
        store: &store,
        ino,
        count: 1,
    };
    writer.round_us()?;
    let (mut without, mut marked, mut first) = (Vec::new(), Vec::new(), Vec::new());
    let (mut mirrored, mut mirrored_first) = (Vec::new(), Vec::new());
    let (mut mark, mut ask) = (Vec::new(), Vec::new());
    for _ in 0..ROUNDS {
        store.delta().end();
        without.push(writer.round_us()?);
        store.delta().begin_alone(Generation::FIRST);
        first.push(writer.round_us()?);
        marked.push(writer.round_us()?);
        store.delta().end();
        let from = store.barriers().open();
        let begin = BarrierEvent::MirroringBegun { from };
        store.barriers().handle(begin);
        mirrored_first.push(writer.round_us()?);
        mirrored.push(writer.round_us()?);
        mark.push(writer.mark_us()?);
        ask.push(writer.ask_us()?);
        store.barriers().handle(BarrierEvent::MirroringEnded);
    }
    println!("µs for one write of 8 KiB, median of {ROUNDS} rounds of {WRITES}");
    println!("without a delta    {:6.2}", median(without));
    println!("alone, marked      {:6.2}", median(marked));
    println!("alone, first mark  {:6.2}", median(first));
    println!("in sync, marked    {:6.2}", median(mirrored));
    println!("in sync, first     {:6.2}", median(mirrored_first));
    println!("a mark by itself   {:6.3}", median(mark));
    println!("announced or not   {:6.3}", median(ask));
    begin_alone(&store)?;
    println!("µs for one write of 8 KiB alone, at random over {REGIONS} MiB");
    writer.regions_us(0)?;
    println!("without a trace    {:6.2}", writer.regions_us(1)?);
    let begun = Instant::now();
    assert!(TraceAccess::of(&store).begin()?, "a trace begins");
    let begin_ms = begun.elapsed().as_secs_f64() * 1e3;
    println!("first in a region  {:6.2}", writer.regions_us(2)?);
    println!("later              {:6.2}", writer.regions_us(3)?);
    println!("a trace begins in {begin_ms:.1} ms");
    Ok(())
}

/// Both nodes know a barrier, and this one serves alone.
fn begin_alone(store: &Store) -> Result<(), Box<dyn Error>> {
    let barriers = store.barriers();
    store.delta().end();
    store.delta().settle();
    let from = barriers.open();
    barriers.handle(BarrierEvent::MirroringBegun { from });
    for effect in barriers.handle(BarrierEvent::Due { nonce: [1; 16] }) {
        let BarrierEffect::Sync(names) = effect else {
            continue;
        };
        barriers.make_stable()?;
        assert!(barriers.note_names(names)?, "a name is noted");
        barriers.handle(BarrierEvent::Synced);
        let reached = names.reached.map(BarrierMessage::Reached);
        reached.map(|reached| barriers.handle(BarrierEvent::Received(reached)));
    }
    barriers.drop_columns()?;
    barriers.handle(BarrierEvent::MirroringEnded);
    barriers.hide_names()?;
    store.delta().begin_alone(Generation::FIRST);
    Ok(())
}

struct Writer<'a> {
    store: &'a Store,
    ino: Ino,
    count: u64,
}

impl Writer<'_> {
    fn round_us(&mut self) -> Result<f64, Box<dyn Error>> {
        let data = vec![7; usize::try_from(WRITE_BYTES)?];
        let start = Instant::now();
        for part in 0..WRITES {
            self.count += 1;
            let (osn, time) = stamp(self.count);
            let offset = part * PART_BYTES;
            let barriers = self.store.barriers();
            barriers.mark_write(self.ino, offset, WRITE_BYTES);
            self.store.write(self.ino, offset, &data, osn, time)?;
        }
        Ok(start.elapsed().as_secs_f64() * 1e6 / f64::from(u32::try_from(WRITES)?))
    }

    /// One write in each region, in an order without streams.
    fn regions_us(&mut self, round: u64) -> Result<f64, Box<dyn Error>> {
        let data = vec![7; usize::try_from(WRITE_BYTES)?];
        let start = Instant::now();
        for number in 0..REGIONS {
            self.count += 1;
            let (osn, time) = stamp(self.count);
            let offset = number * 389 % REGIONS * REGION_BYTES + round * WRITE_BYTES;
            self.store.write(self.ino, offset, &data, osn, time)?;
        }
        Ok(start.elapsed().as_secs_f64() * 1e6 / f64::from(u32::try_from(REGIONS)?))
    }

    /// Marks without their writes.
    fn mark_us(&self) -> Result<f64, Box<dyn Error>> {
        let start = Instant::now();
        for part in 0..WRITES {
            let barriers = self.store.barriers();
            barriers.mark_write(self.ino, part * PART_BYTES, WRITE_BYTES);
        }
        Ok(start.elapsed().as_secs_f64() * 1e6 / f64::from(u32::try_from(WRITES)?))
    }

    /// Asks whether the regions of writes are announced, under a lock, as a primary does for each write (P26). All are.
    fn ask_us(&self) -> Result<f64, Box<dyn Error>> {
        let barriers = self.store.barriers();
        let mut known = AnnouncedRegions::new(ENTRIES_MAX);
        let all = FileRegions::of_bytes(0, WRITES * PART_BYTES);
        known.add(barriers.open(), self.ino, &all);
        let known = Mutex::new(known);
        let start = Instant::now();
        for part in 0..WRITES {
            let regions = FileRegions::of_bytes(part * PART_BYTES, WRITE_BYTES);
            let open = self.store.barriers().open();
            let is_known = known.lock().holds(open, self.ino, &regions);
            assert!(is_known, "all regions are announced");
        }
        Ok(start.elapsed().as_secs_f64() * 1e6 / f64::from(u32::try_from(WRITES)?))
    }
}
