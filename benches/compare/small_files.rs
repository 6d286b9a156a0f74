//! Workloads on names rather than bytes: one client, one operation at a time.

use std::fs::{self, File};
use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};

use crate::process;
use crate::report::{Figure, Unit};

/// Name of the unpacking workload.
pub const UNTAR: &str = "untar (files)";

const FILE_BYTES: usize = 4096;
const PER_DIRECTORY: usize = 100;

/// The number of files, and the longest time for each phase: a slow system does fewer.
pub struct SmallFiles {
    count: usize,
    limit: Duration,
}

impl SmallFiles {
    /// The amounts of a quick or a full measurement.
    pub fn new(quick: bool) -> Self {
        let (count, secs) = if quick { (1000, 3) } else { (5000, 10) };
        Self {
            count,
            limit: Duration::from_secs(secs),
        }
    }

    /// Runs all phases on the files of the first one.
    pub fn run(&self, dir: &Path) -> Result<Vec<Figure>> {
        let paths: Vec<PathBuf> = (0..self.count).map(|i| file_path(dir, i)).collect();
        for parent in paths
            .iter()
            .step_by(PER_DIRECTORY)
            .filter_map(|path| path.parent())
        {
            fs::create_dir(parent).context("mkdir")?;
        }
        let mut figures = Vec::new();
        let made = self.phase("create+write 4 KiB", &paths, &mut figures, create)?;
        let paths = paths.get(..made).unwrap_or(&paths);
        forget_names();
        self.phase("stat, not cached", paths, &mut figures, stat)?;
        self.phase("stat again", paths, &mut figures, stat)?;
        self.phase("open+read 4 KiB", paths, &mut figures, read)?;
        let renamed = self.phase("rename", paths, &mut figures, rename)?;
        // A slow system may not have renamed all files in its time.
        let (moved, unmoved) = paths.split_at(renamed.min(paths.len()));
        let names: Vec<PathBuf> = moved.iter().map(|path| new_name(path)).collect();
        let names = [names, unmoved.to_vec()].concat();
        self.phase("unlink", &names, &mut figures, unlink)?;
        Ok(figures)
    }

    /// Applies `each` to the files in turn until the time is over; returns the number of files done.
    fn phase(
        &self,
        name: &str,
        paths: &[PathBuf],
        figures: &mut Vec<Figure>,
        each: fn(&Path) -> std::io::Result<()>,
    ) -> Result<usize> {
        let start = Instant::now();
        let mut done = 0;
        for path in paths {
            each(path).with_context(|| format!("{name} of {}", path.display()))?;
            done += 1;
            if start.elapsed() >= self.limit {
                break;
            }
        }
        figures.push(rate(name, done, start.elapsed()));
        Ok(done)
    }
}

fn rate(workload: &str, count: usize, took: Duration) -> Figure {
    let count = u32::try_from(count).unwrap_or(u32::MAX);
    Figure {
        workload: workload.to_owned(),
        unit: Unit::PerSecond,
        value: f64::from(count) / took.as_secs_f64().max(1e-9),
    }
}

fn file_path(dir: &Path, number: usize) -> PathBuf {
    dir.join(format!("d{}/f{number}", number / PER_DIRECTORY))
}

fn new_name(path: &Path) -> PathBuf {
    path.with_extension("renamed")
}

fn create(path: &Path) -> std::io::Result<()> {
    File::create_new(path)?.write_all(&[b'x'; FILE_BYTES])
}

fn stat(path: &Path) -> std::io::Result<()> {
    fs::symlink_metadata(path).map(drop)
}

fn read(path: &Path) -> std::io::Result<()> {
    File::open(path)?.read_exact(&mut [0; FILE_BYTES])
}

fn rename(path: &Path) -> std::io::Result<()> {
    fs::rename(path, new_name(path))
}

fn unlink(path: &Path) -> std::io::Result<()> {
    fs::remove_file(path)
}

/// Empties the kernel's caches of names and attributes, for all systems. Without the permission the caches stay
/// filled, for all systems alike.
fn forget_names() {
    rustix::fs::sync();
    if let Err(error) = fs::write("/proc/sys/vm/drop_caches", "2") {
        eprintln!("names stay cached: {error}");
    }
}

/// Makes a source tree in `work` and packs it; each call makes the same bytes.
pub fn make_archive(work: &Path, quick: bool) -> Result<PathBuf> {
    let tree = work.join("source-tree");
    let mut noise = Noise(1);
    for number in 0..if quick { 300 } else { 2000 } {
        let dir = tree.join(format!("module-{}/part-{}", number % 23, number % 7));
        fs::create_dir_all(&dir).context("make the source tree")?;
        // Most source files are small, and some are large.
        let length = 300 + noise.next() % if number % 20 == 0 { 100_000 } else { 9_000 };
        let content: Vec<u8> = (0..length).map(|_| b' ' + noise.next_byte() % 90).collect();
        fs::write(dir.join(format!("file-{number}.rs")), content).context("make a source file")?;
    }
    let archive = work.join("source-tree.tar");
    process::output(
        Command::new("tar")
            .args(["--create", "--sort=name", "--file"])
            .arg(&archive)
            .arg("--directory")
            .args([work, Path::new("source-tree")]),
    )?;
    fs::remove_dir_all(&tree).context("remove the source tree")?;
    Ok(archive)
}

/// Files unpacked per second.
pub fn untar(archive: &Path, dir: &Path) -> Result<Figure> {
    let listed = process::output(Command::new("tar").arg("--list").arg("--file").arg(archive))?;
    let files = listed.lines().filter(|name| !name.ends_with('/')).count();
    let start = Instant::now();
    process::output(
        Command::new("tar")
            .arg("--extract")
            .arg("--file")
            .arg(archive)
            .arg("--directory")
            .arg(dir),
    )?;
    Ok(rate(UNTAR, files, start.elapsed()))
}

/// A linear congruential generator: the same numbers everywhere.
struct Noise(u64);

impl Noise {
    fn next(&mut self) -> u64 {
        self.0 = self
            .0
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        self.0 >> 33
    }

    fn next_byte(&mut self) -> u8 {
        self.next().to_le_bytes()[0]
    }
}
