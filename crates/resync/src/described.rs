//! Files as a resync describes them to the secondary: size and times, and of a small file a hash or the bytes.
//!
//! A small file is told by its hash while most small files are equal: the hash costs neither network nor disk. Once most of
//! them differ, as on an empty copy, the bytes go with the description, so that many files cost one request. Of a file beyond
//! [`UNCOMPARED_BYTES_MAX`] the blocks are compared in any case.

use lockstep_fs::store::{FileTimes, WholeContent};
use lockstep_repl::message::{WireContent, WireFileTimes};
use lockstep_types::{Hash128, Ino};

use crate::api::ResyncError;
use crate::bits;
use crate::file_times::to_wire;
use crate::limits::HASHED_FILE_BYTES_MAX;
use crate::summed_content::SummedContent;
use crate::suspect::UNCOMPARED_BYTES_MAX;

/// Bytes of content read under the exclusive locks of one batch of files; files beyond this number of bytes are
/// compared range by range.
const BATCH_READ_BYTES_MAX: u64 = 4 << 20;

/// Most bytes that go with the description of one batch: names of clients go over the same way.
const BATCH_SENT_BYTES_MAX: usize = 256 << 10;

/// A file as it is described.
pub(crate) type DescribedFile = (Ino, WireFileTimes, WireContent);

/// A batch of files as it is described to the secondary.
#[derive(Default)]
pub(crate) struct DescribedFiles {
    pub files: Vec<DescribedFile>,
    /// The bytes of the files that are told by them.
    pub payload: Vec<u8>,
    /// Number of bytes read.
    pub read: u64,
    /// The files with reserved space.
    pub reserved: Vec<Ino>,
}

impl DescribedFiles {
    /// Adds a file, which its lock keeps as it is. `by_bytes`: a small file is told by its bytes. Nothing is told of bytes that a sum
    /// of this node calls wrong: the secondary makes its void sums of what is told.
    pub fn add(
        &mut self,
        ours: SummedContent<'_>,
        ino: Ino,
        facts: &FileTimes,
        by_bytes: bool,
    ) -> Result<(), ResyncError> {
        let is_small =
            facts.size <= HASHED_FILE_BYTES_MAX && self.read + facts.size <= BATCH_READ_BYTES_MAX;
        let (content, has_reserved) = if is_small {
            let whole = ours.view.whole_content(ino, facts.size)?;
            self.read += facts.size;
            let content = if ours.accept(ino, 0, &whole.bytes) {
                self.tell(&whole, by_bytes)
            } else {
                WireContent::Untold
            };
            (content, whole.has_reserved)
        } else {
            let reserved = ours.view.reserved(ino, 0, 1)?;
            (WireContent::Untold, !reserved.is_empty())
        };
        if has_reserved {
            self.reserved.push(ino);
        }
        self.files.push((ino, to_wire(facts), content));
        Ok(())
    }

    /// A file with a hole is not told by its bytes: it takes no space there on the secondary either.
    fn tell(&mut self, whole: &WholeContent, by_bytes: bool) -> WireContent {
        let is_short = whole.bytes.len() as u64 <= UNCOMPARED_BYTES_MAX;
        let fits = self.payload.len() + whole.bytes.len() <= BATCH_SENT_BYTES_MAX;
        if by_bytes && is_short && fits && whole.is_dense {
            self.payload.extend_from_slice(&whole.bytes);
            WireContent::Bytes
        } else {
            WireContent::Hash(Hash128::of(&whole.bytes))
        }
    }
}

/// The answer to a description: two bits for each file.
pub(crate) struct FileAnswers(pub Vec<u8>);

impl FileAnswers {
    /// The answer for each file: whether its content differs, or differed from the bytes, and whether it has no data.
    pub fn pack(answers: impl IntoIterator<Item = [bool; 2]>) -> Self {
        Self(bits::pack(answers.into_iter().flatten()))
    }

    /// Whether the content of a file differs, or differed from the bytes.
    pub fn differs(&self, number: usize) -> bool {
        bits::get(&self.0, 2 * number)
    }

    /// Whether a file has no data.
    pub fn is_empty(&self, number: usize) -> bool {
        bits::get(&self.0, 2 * number + 1)
    }
}

/// Whether small files are told by their bytes: most of those of the last answer differed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct TellsBytes(pub bool);

impl TellsBytes {
    /// The secondary has answered a description.
    pub fn learn(&mut self, files: &[DescribedFile], answers: &FileAnswers) {
        let is_told = |content: &WireContent| *content != WireContent::Untold;
        let told = files.iter().enumerate();
        let told: Vec<usize> = told
            .filter(|(_, (_, times, content))| is_told(content) && times.size > 0)
            .map(|(number, _)| number)
            .collect();
        let differing = told.iter().filter(|number| answers.differs(**number));
        if !told.is_empty() {
            self.0 = 2 * differing.count() > told.len();
        }
    }
}

#[cfg(test)]
mod tests {
    use lockstep_types::Timestamp;

    use super::*;

    fn file(size: u64, content: WireContent) -> DescribedFile {
        let times = WireFileTimes {
            size,
            mtime: Timestamp::default(),
            ctime: Timestamp::default(),
            last_write: None,
        };
        (Ino::ROOT, times, content)
    }

    #[test]
    fn bytes_are_told_while_most_small_files_differ() {
        let hash = WireContent::Hash(Hash128::of(&[]));
        let files = [
            file(5, hash),
            file(0, WireContent::Bytes),
            file(1 << 40, WireContent::Untold),
            file(6, WireContent::Bytes),
        ];
        let mut tells = TellsBytes::default();
        let mut after = |differing: [bool; 4]| {
            let answers = FileAnswers::pack(differing.map(|differs| [differs, false]));
            tells.learn(&files, &answers);
            tells.0
        };
        assert!(after([true, false, true, true]));
        // Neither large nor empty files say anything of small ones.
        assert!(!after([false, true, true, true]));
        assert!(!after([false; 4]));
        let answers = FileAnswers::pack([[true, true]; 4]);
        tells.learn(&files[2..3], &answers);
        assert!(!tells.0);
    }

    #[test]
    fn each_file_has_two_bits() {
        let answers = FileAnswers::pack([[true, false], [false, true], [true, true]]);
        let read = |number| (answers.differs(number), answers.is_empty(number));
        let expected = [(true, false), (false, true), (true, true), (false, false)];
        assert_eq!([0, 1, 2, 3].map(read), expected);
    }
}
