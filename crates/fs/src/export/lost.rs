//! Report of a loss: a part of an inode that the destination of an export could not take.

use rustix::io::Errno;
use serde::{Deserialize, Serialize};

use super::place::Loss;
use crate::text::escaped;

/// A part of an inode that the destination could not take.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Lost {
    /// Path of the inode in the datastore, escaped.
    pub name: String,
    /// The lost part, for people.
    pub what: String,
    /// The error of the operating system, for people.
    pub cause: String,
}

impl Lost {
    pub(super) fn new(name: String, loss: &Loss, errno: Errno) -> Self {
        let what = match loss {
            Loss::Node | Loss::Name | Loss::Content | Loss::Below => "the file itself".to_owned(),
            Loss::Directory => "the directory itself, and all that is in it".to_owned(),
            Loss::Links => "its other names, which lead to copies".to_owned(),
            Loss::Owner => "owner and set-id bits".to_owned(),
            Loss::Xattr(name) => format!("extended attribute {}", escaped(name)),
            Loss::Mode => "permission bits".to_owned(),
            Loss::Times => "times".to_owned(),
        };
        let cause = cause(loss, errno);
        Self { name, what, cause }
    }
}

/// The cause of a loss, for people.
fn cause(loss: &Loss, errno: Errno) -> String {
    let error = std::io::Error::from(errno);
    match (loss, errno) {
        (Loss::Below, _) => "the directory that it is in could not be made".to_owned(),
        (Loss::Content, _) => format!("the destination takes no file of its size: {error}"),
        (Loss::Name | Loss::Directory, Errno::EXIST) => {
            format!("the destination takes its name for that of another: {error}")
        }
        (Loss::Name | Loss::Directory, _) => format!("the destination does not take it: {error}"),
        _ => error.to_string(),
    }
}
