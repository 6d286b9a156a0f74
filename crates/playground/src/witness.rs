//! The witness of a playground.

use std::ffi::OsString;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use lockstep_link::{Fingerprint, Identity};

use crate::background::BackgroundProcess;
use crate::program::Program;

/// The files and the address of a witness.
#[derive(Clone, Debug)]
pub(crate) struct PlaygroundWitness {
    pub(crate) listen: SocketAddr,
    dir: PathBuf,
    log: PathBuf,
}

impl PlaygroundWitness {
    pub(crate) fn new(dir: &Path, listen: SocketAddr) -> Self {
        Self {
            listen,
            dir: dir.join("w"),
            log: dir.join("w.log"),
        }
    }

    /// Makes the identity, the configuration and the empty store by `lockstep init --witness`, and returns the
    /// fingerprint. The named nodes may use the witness.
    pub(crate) fn make<'a>(
        &self,
        program: &Program,
        nodes: impl Iterator<Item = (&'a str, &'a Fingerprint)>,
    ) -> Result<Fingerprint> {
        let mut arguments: Vec<OsString> = ["init", "--witness", "--name", "w"]
            .map(OsString::from)
            .into();
        arguments.extend(["--listen".into(), self.listen.to_string().into()]);
        for (name, fingerprint) in nodes {
            arguments.extend(["--allow".into(), format!("{name}={fingerprint}").into()]);
        }
        arguments.extend([
            "--store".into(),
            self.dir.join("store").into(),
            "--dir".into(),
        ]);
        program.init(&arguments, &self.dir)?;
        Ok(Identity::load(&self.dir)?.fingerprint())
    }

    /// Starts the witness.
    pub(crate) fn start(&self, program: &Program) -> Result<BackgroundProcess> {
        let config = self.dir.join("witness.toml");
        let parts = [
            program.path(),
            "witness".as_ref(),
            "--config".as_ref(),
            &config,
        ];
        let texts = parts
            .into_iter()
            .map(|part| part.to_str().map(ToOwned::to_owned));
        let command = texts.collect::<Option<_>>();
        let command = command.with_context(|| format!("{} is not UTF-8 text", config.display()))?;
        BackgroundProcess::start(command, &self.log).context("cannot start the witness")
    }
}
