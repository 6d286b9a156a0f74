//! The systems to compare: each is a directory to work in, and the processes behind it.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};

use crate::gluster::Gluster;
use crate::options::Options;
use crate::playground::Playground;
use crate::process;

/// Name of the unmirrored playground in tables.
pub const NO_REPLICA: &str = "no replica";
/// Name of the mirrored playground in tables.
pub const MIRRORED: &str = "mirrored";
/// Name of the mirrored playground of another build in tables.
pub const OTHER_BUILD: &str = "other build";
/// Name of the competitor in tables.
pub const GLUSTER: &str = "GlusterFS";

/// One system.
pub struct System {
    /// Name in tables.
    pub name: String,
    /// Directory to work in.
    pub dir: PathBuf,
    /// Core to which clients are pinned, if any.
    pub client_cpu: Option<u32>,
    /// Ends the processes behind `dir` when dropped.
    _behind: Behind,
}

/// The processes that serve the directory. Held only to be dropped.
#[expect(dead_code, reason = "owned for what dropping does")]
enum Behind {
    Nothing,
    Playground(Playground),
    Gluster(Gluster),
}

/// Starts every wanted system.
pub fn start_all(options: &Options, work: &Path) -> Result<Vec<System>> {
    let systems = if options.two_machines {
        pinned_systems(options, work)?
    } else {
        unpinned(options, work)?
    };
    if systems.is_empty() {
        bail!("no system to measure; see --systems");
    }
    Ok(systems)
}

fn unpinned(options: &Options, work: &Path) -> Result<Vec<System>> {
    let mut systems = Vec::new();
    if options.wants_system("plain", true) {
        systems.push(plain(work)?);
    }
    if options.wants_system("no-replica", true) {
        systems.push(playground(NO_REPLICA, work, &["--no-replica"])?);
    }
    if options.wants_system("mirrored", true) {
        systems.push(playground(MIRRORED, work, &[])?);
    }
    if let Some(program) = &options.other {
        systems.push(playground_of(program, OTHER_BUILD, work, &[])?);
    }
    if options.wants_system("gluster", process::installed("glusterd")) {
        systems.push(gluster(work)?);
    }
    Ok(systems)
}

/// Client and node a share core 0 like one machine; node b has core 1.
fn pinned_systems(options: &Options, work: &Path) -> Result<Vec<System>> {
    let alone = ["--no-replica", "--node-cpus", "a=0"];
    let both = ["--node-cpus", "a=0,b=1"];
    let mut systems = vec![
        playground(NO_REPLICA, work, &alone)?,
        playground(MIRRORED, work, &both)?,
    ];
    if let Some(program) = &options.other {
        systems.push(playground_of(program, OTHER_BUILD, work, &both)?);
    }
    for system in &mut systems {
        system.client_cpu = Some(0);
    }
    Ok(systems)
}

fn plain(work: &Path) -> Result<System> {
    let dir = work.join("plain");
    std::fs::create_dir(&dir).with_context(|| format!("make {}", dir.display()))?;
    Ok(System {
        name: file_system_of(&dir)?,
        dir,
        client_cpu: None,
        _behind: Behind::Nothing,
    })
}

fn playground(name: &str, work: &Path, arguments: &[&str]) -> Result<System> {
    let program = Path::new(env!("CARGO_BIN_EXE_lockstep"));
    playground_of(program, name, work, arguments)
}

fn playground_of(program: &Path, name: &str, work: &Path, arguments: &[&str]) -> Result<System> {
    let dir = work.join(name.replace(' ', "-"));
    let playground = Playground::start(program, &dir, arguments)?;
    Ok(System {
        name: name.to_owned(),
        dir: playground.mount().to_owned(),
        client_cpu: None,
        _behind: Behind::Playground(playground),
    })
}

fn gluster(work: &Path) -> Result<System> {
    let gluster = Gluster::start(&work.join("gluster"))?;
    Ok(System {
        name: GLUSTER.to_owned(),
        dir: gluster.mount(),
        client_cpu: None,
        _behind: Behind::Gluster(gluster),
    })
}

/// Type of the file system that holds `dir`, such as `ext4`.
fn file_system_of(dir: &Path) -> Result<String> {
    let found = process::output(
        Command::new("findmnt")
            .args(["--noheadings", "--output", "FSTYPE", "--target"])
            .arg(dir),
    )?;
    Ok(found.trim().to_owned())
}
