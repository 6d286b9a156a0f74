//! Further load by programs that check their own data: fio and fsx.
//!
//! Invariant: the programs run until they are asked to end. A program that has ended earlier has found a fault or
//! lost its mount, and its output tells which. No program is left when [`Programs`] is dropped.

#![allow(dead_code)] // not every test uses all of it

use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};

use lockstep_testbed::await_that;
use lockstep_testbed::chance::Chance;
use rustix::process::{Pid, Signal, kill_process};

/// The files that show that a program has begun.
const FILES: [&str; 3] = ["load.0.0", "load.1.0", "fsx"];

/// The exit code of fio after a signal without a finding.
const FIO_ENDED_ON_REQUEST: Option<i32> = Some(128);

/// Output of a program that has read other bytes than it wrote. The first three texts are fio's; the third is the
/// error that fio makes of the finding. The others are those of fsx.
const FINDINGS: [&str; 5] = [
    "verify failed at",
    "verify: bad",
    "Invalid or incomplete multibyte",
    "miscompare:",
    "Size error:",
];
/// Output of a program that has lost its mount or was refused: `EIO`, `ENOTCONN`, `ECONNABORTED` and `ESTALE` in the
/// words of the C library and of Rust, and a short call, because the error came in the middle.
const LOSSES: [&str; 10] = [
    "Input/output error",
    "Transport endpoint is not connected",
    "Software caused connection abort",
    "Stale file handle",
    "EIO",
    "ENOTCONN",
    "ECONNABORTED",
    "ESTALE",
    "short read:",
    "short write:",
];

/// The running programs.
pub struct Programs {
    running: Vec<Program>,
}

struct Program {
    name: &'static str,
    log_path: PathBuf,
    process: Child,
}

impl Programs {
    /// Starts both below `mount`; they keep their notes in `outside`.
    pub fn start(mount: &Path, outside: &Path, chance: &mut Chance) -> Self {
        let files = mount.join("programs");
        if files.exists() {
            fs::remove_dir_all(&files).unwrap();
        }
        fs::create_dir(&files).unwrap();
        fs::create_dir_all(outside).unwrap();
        let seed = chance.within(0..1 << 31).to_string();
        let commands = [
            ("fio", fio(&files, &seed)),
            ("fsx", fsx(&files, outside, &seed)),
        ];
        let started = commands.map(|(name, command)| Program::start(name, command, outside));
        let programs = Self {
            running: started.into(),
        };
        let written = |name| fs::metadata(files.join(name)).is_ok_and(|file| file.len() > 0);
        await_that("the programs to write", || FILES.iter().all(written));
        programs
    }

    /// Checks that no program has found a fault so far, or has ended for another reason.
    pub fn look(&mut self) {
        for program in &mut self.running {
            program.look();
        }
    }

    /// Ends the programs; none may have found a fault.
    pub fn finish(&mut self) {
        for program in &mut self.running {
            program.finish();
        }
    }

    /// Ends the programs after their mount was removed or has refused them. Errors are no faults then, but no program
    /// may have read other bytes than it wrote.
    pub fn finish_without_mount(&mut self) -> Result<(), String> {
        let ended = self.running.iter_mut().map(Program::finish_without_mount);
        let found: Vec<String> = ended.filter_map(Result::err).collect();
        if found.is_empty() {
            return Ok(());
        }
        Err(found.join("\n"))
    }

    /// Damages the files of the programs until each program has ended.
    pub fn damage_files(&mut self, mount: &Path) {
        let names = [&FILES[..2], &FILES[2..]];
        for (program, names) in self.running.iter_mut().zip(names) {
            await_that(program.name, || {
                for name in names {
                    let file = mount.join("programs").join(name);
                    let opened = fs::OpenOptions::new().write(true).open(file).unwrap();
                    opened.write_all_at(&[0xee; 64], 0).unwrap();
                }
                program.process.try_wait().unwrap().is_some()
            });
        }
    }
}

impl Drop for Programs {
    fn drop(&mut self) {
        for program in &mut self.running {
            let _ = program.process.kill();
            let _ = program.process.wait();
        }
    }
}

impl Program {
    fn start(name: &'static str, mut command: Command, outside: &Path) -> Self {
        let log_path = outside.join(format!("{name}.log"));
        let log = File::create(&log_path).unwrap();
        let process = command
            .current_dir(outside)
            .stdin(Stdio::null())
            .stdout(log.try_clone().unwrap())
            .stderr(log)
            .spawn()
            .unwrap_or_else(|error| panic!("cannot run {name}: {error}; see scripts/setup"));
        Self {
            name,
            log_path,
            process,
        }
    }

    fn look(&mut self) {
        if let Some(status) = self.process.try_wait().unwrap() {
            panic!(
                "{} ended by itself ({status}): {}",
                self.name,
                self.output()
            );
        }
    }

    fn finish(&mut self) {
        self.look();
        let status = self.end();
        assert!(
            ended_on_request(status),
            "{} found a fault ({status}): {}",
            self.name,
            self.output()
        );
    }

    fn finish_without_mount(&mut self) -> Result<(), String> {
        let status = self.end();
        let output = self.output();
        let any_of = |words: &[&str]| words.iter().any(|word| output.contains(word));
        // A page of a mapping cannot be read.
        let is_bus_error = status.signal() == Some(Signal::BUS.as_raw());
        let has_lost = any_of(&LOSSES) || is_bus_error || ended_on_request(status);
        if any_of(&FINDINGS) || !has_lost {
            return Err(format!("{} found a fault ({status}): {output}", self.name));
        }
        Ok(())
    }

    /// Asks the program to end, if it still runs, and waits for its end.
    fn end(&mut self) -> ExitStatus {
        if self.process.try_wait().unwrap().is_none() {
            kill_process(Pid::from_child(&self.process), Signal::TERM).unwrap();
            await_that(self.name, || self.process.try_wait().unwrap().is_some());
        }
        self.process.wait().unwrap()
    }

    fn output(&self) -> String {
        String::from_utf8_lossy(&fs::read(&self.log_path).unwrap_or_default()).into_owned()
    }
}

/// Whether a program has ended on request without a finding.
fn ended_on_request(status: ExitStatus) -> bool {
    status.signal() == Some(Signal::TERM.as_raw()) || status.code() == FIO_ENDED_ON_REQUEST
}

/// Blocks with their own checksums, read back while others are written. All have one size: fio expects wrong content
/// of overlapping ranges when it writes a file for the second time.
fn fio(files: &Path, seed: &str) -> Command {
    let mut command = Command::new("setpriv");
    command
        .args([
            "--pdeathsig",
            "KILL",
            "--",
            "fio",
            "--name=load",
            "--thread",
        ])
        .args(["--ioengine=psync", "--rw=randwrite", "--bs=8k"])
        .args(["--size=2m", "--numjobs=2", "--thinktime=2ms"])
        .args(["--time_based", "--runtime=36000", "--fallocate=none"])
        .args(["--verify=crc32c", "--verify_backlog=32", "--verify_fatal=1"])
        .arg(format!("--randseed={seed}"))
        .arg(format!("--directory={}", files.display()));
    command
}

/// Reads, writes, maps, holes and truncates of one file.
fn fsx(files: &Path, outside: &Path, seed: &str) -> Command {
    let program = Path::new(env!("CARGO_MANIFEST_DIR")).join("target/tools/bin/fsx");
    let mut command = Command::new("setpriv");
    command
        .args(["--pdeathsig", "KILL", "--"])
        .arg(program)
        .args(["-q", "-S", seed, "-P"])
        .arg(outside)
        .arg(files.join("fsx"));
    command
}
