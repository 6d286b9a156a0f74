//! Mistakes in a configuration, as an operator reads them.

use std::fmt;
use std::io;
use std::path::PathBuf;

/// Why a configuration cannot be used. Nothing has been started or changed.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// The file could not be read.
    #[error("cannot read the configuration {}: {source}\n  cure: {}", path.display(), read_cure(source))]
    Read {
        /// The file.
        path: PathBuf,
        /// The error of the system.
        source: io::Error,
    },
    /// The file holds mistakes.
    #[error("{}", InvalidText(path, problems, *more))]
    Invalid {
        /// The file.
        path: PathBuf,
        /// The first [`LISTED_MAX`] mistakes in the order of their lines; never empty.
        problems: Vec<Problem>,
        /// Number of further mistakes.
        more: usize,
    },
    /// A configuration file cannot hold this path.
    #[error(
        "the path {path:?} is not UTF-8 text, but a configuration file must be\n  \
         cure: choose another path"
    )]
    NotText {
        /// The path.
        path: PathBuf,
    },
}

fn read_cure(source: &io::Error) -> &'static str {
    match source.kind() {
        io::ErrorKind::NotFound => {
            "name an existing file with --config, or make one with `lockstep init`"
        }
        io::ErrorKind::PermissionDenied => "run as root, or make the file readable",
        io::ErrorKind::InvalidData => "save the file as UTF-8 text",
        io::ErrorKind::IsADirectory => "name the file itself, such as /etc/lockstep/node.toml",
        io::ErrorKind::FileTooLarge => "name the configuration of a node or witness with --config",
        _ => "check the file and the disk it lies on",
    }
}

/// One mistake in a configuration file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    /// Line in the file, counted from one.
    pub line: usize,
    /// The key, or `syntax`.
    pub key: String,
    /// The section of the key, such as `[node]`; empty for the top of the file.
    pub section: String,
    /// The cause.
    pub cause: String,
    /// The cure.
    pub cure: String,
}

/// Most mistakes that are listed at once: in a file that is not TOML, each character may be a mistake.
pub const LISTED_MAX: usize = 50;

struct InvalidText<'a>(&'a PathBuf, &'a [Problem], usize);

impl fmt::Display for InvalidText<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self(path, problems, more) = self;
        let count = match problems.len() + more {
            1 => "a mistake".to_owned(),
            count => format!("{count} mistakes"),
        };
        write!(f, "the configuration {} has {count}", path.display())?;
        for problem in *problems {
            write!(f, "\n\n{}:{}: {problem}", path.display(), problem.line)?;
        }
        match more {
            0 => Ok(()),
            more => write!(
                f,
                "\n\nand {more} more, which are listed when these are corrected"
            ),
        }
    }
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            key,
            section,
            cause,
            cure,
            ..
        } = self;
        let (key, section) = (Plain(key), Plain(section));
        if section.0.is_empty() {
            write!(f, "{key}")?;
        } else {
            write!(f, "{key} in {section}")?;
        }
        write!(f, "\n  cause: {}\n  cure:  {}", Plain(cause), Plain(cure))
    }
}

/// One line of text that is safe for a terminal. The text may quote the file, so control characters and invisible
/// characters are escaped.
struct Plain<'a>(&'a str);

impl fmt::Display for Plain<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for c in self.0.chars() {
            match c {
                '"' | '\'' | '\\' => write!(f, "{c}")?,
                _ => write!(f, "{}", c.escape_debug())?,
            }
        }
        Ok(())
    }
}

/// Why a value is refused.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Rejection {
    pub(super) cause: String,
    pub(super) cure: String,
}

impl Rejection {
    pub(super) fn new(cause: impl Into<String>, cure: impl Into<String>) -> Self {
        Self {
            cause: cause.into(),
            cure: cure.into(),
        }
    }
}

/// The first [`LISTED_MAX`] mistakes, and the number of further ones.
pub(super) type Listed = (Vec<Problem>, usize);

/// The mistakes found so far in one text.
pub(super) struct Problems<'t> {
    text: &'t str,
    found: Vec<Problem>,
    /// Number of mistakes that are counted only.
    unlisted: usize,
}

impl<'t> Problems<'t> {
    pub(super) const fn new(text: &'t str) -> Self {
        Self {
            text,
            found: Vec::new(),
            unlisted: 0,
        }
    }

    /// Returns the line of the byte at `offset`, counted from one.
    pub(super) fn line_at(&self, offset: usize) -> usize {
        let before = self.text.get(..offset).unwrap_or(self.text);
        1 + before.matches('\n').count()
    }

    pub(super) fn report(&mut self, line: usize, section: &str, key: &str, rejection: Rejection) {
        self.found.push(Problem {
            line,
            key: key.to_owned(),
            section: section.to_owned(),
            cause: rejection.cause,
            cure: rejection.cure,
        });
    }

    /// Counts mistakes beyond the listed ones.
    pub(super) const fn add_unlisted(&mut self, count: usize) {
        self.unlisted += count;
    }

    pub(super) const fn is_empty(&self) -> bool {
        self.found.is_empty()
    }

    /// Returns the first mistakes in the order of their lines, and the number of further ones.
    pub(super) fn into_listed(mut self) -> Listed {
        self.found.sort_by_key(|problem| problem.line);
        let more = self.unlisted + self.found.len().saturating_sub(LISTED_MAX);
        self.found.truncate(LISTED_MAX);
        (self.found, more)
    }
}
