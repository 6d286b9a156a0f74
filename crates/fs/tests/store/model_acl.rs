//! Access control lists as the model of a file system sees them: lines of (tag, permissions, id).

/// Lines of a list.
pub type Lines = Vec<(u16, u16, u32)>;

const NONE: u32 = u32::MAX;

/// A list as the kernel writes it into an attribute.
pub fn to_bytes(lines: &Lines) -> Vec<u8> {
    let mut bytes = vec![2, 0, 0, 0];
    for (tag, perm, id) in lines {
        bytes.extend(tag.to_le_bytes());
        bytes.extend(perm.to_le_bytes());
        bytes.extend(id.to_le_bytes());
    }
    bytes
}

/// Reads what [`to_bytes`] wrote.
pub fn of_bytes(bytes: &[u8]) -> Lines {
    let word = |b: &[u8]| u16::from_le_bytes([b[0], b[1]]);
    let id = |b: &[u8]| u32::from_le_bytes([b[4], b[5], b[6], b[7]]);
    let lines = bytes[4..].chunks_exact(8);
    lines.map(|b| (word(b), word(&b[2..]), id(b))).collect()
}

/// The list that says what `mode` says.
pub fn minimal(user: u16, group: u16, other: u16) -> Lines {
    vec![(1, user, NONE), (4, group, NONE), (32, other, NONE)]
}

/// A list that names a user and a group.
pub fn named(user: u16, named: u16, mask: u16, other: u16) -> Lines {
    vec![
        (1, user, NONE),
        (2, named, 1000),
        (4, 5, NONE),
        (8, 7, 50),
        (16, mask, NONE),
        (32, other, NONE),
    ]
}

/// The tag whose permissions the three groups of mode bits show.
fn class(lines: &Lines, shift: u32) -> u16 {
    let has_mask = lines.iter().any(|line| line.0 == 16);
    match shift {
        6 => 1,
        3 if has_mask => 16,
        3 => 4,
        _ => 32,
    }
}

/// The permission bits that a list shows.
pub fn mode(lines: &Lines) -> u32 {
    [6, 3, 0].into_iter().fold(0, |mode, shift| {
        let line = lines.iter().find(|line| line.0 == class(lines, shift));
        mode | u32::from(line.unwrap().1) << shift
    })
}

/// The list after `chmod`.
pub fn chmod(mut lines: Lines, mode: u32) -> Lines {
    for shift in [6, 3, 0] {
        let tag = class(&lines, shift);
        let line = lines.iter_mut().find(|line| line.0 == tag).unwrap();
        line.1 = u16::try_from(mode >> shift & 7).unwrap();
    }
    lines
}
