//! Reads the kernel's description of its own types (BTF), as far as prof asks for it.
//!
//! The format is that of the kernel's `Documentation/bpf/btf.rst`: a header, types of different lengths one after the
//! other, numbered from 1 on, and names that end with a zero byte.

use std::fs::File;
use std::io::{self, Read};

/// Where the kernel shows it.
const PATH: &str = "/sys/kernel/btf/vmlinux";
/// Most bytes that are read.
const MOST: u64 = 1 << 28;
const MAGIC: u16 = 0xeb9f;
/// Bytes of a type before what its kind adds.
const TYPE: usize = 12;
/// Most structures that are searched for a member, each with those within it.
const SEARCHED: usize = 1000;

const STRUCT: u32 = 4;
const UNION: u32 = 5;
const FUNCTION: u32 = 12;
const PROTOTYPE: u32 = 13;

/// A type.
#[derive(Clone, Copy, Debug)]
struct Type {
    name: u32,
    kind: u32,
    /// Number of its members or parameters.
    count: usize,
    /// Whether offsets of members hold the width of a bit field, too.
    has_fields: bool,
    /// Bytes of it, or the number of the type that it refers to.
    size_or_type: u32,
    /// Offset of what its kind adds, in bytes.
    more: usize,
}

/// A description.
#[derive(Debug)]
pub(super) struct Btf {
    data: Vec<u8>,
    /// Offset and length of the names.
    names: (usize, usize),
    types: Vec<Type>,
}

impl Btf {
    /// Reads that of this kernel.
    ///
    /// # Errors
    /// If there is none, or it can't be read or understood.
    pub(super) fn read() -> io::Result<Self> {
        let mut data = Vec::new();
        File::open(PATH)?.take(MOST).read_to_end(&mut data)?;
        Self::parse(data)
            .ok_or_else(|| io::Error::new(io::ErrorKind::InvalidData, format!("{PATH} is damaged")))
    }

    /// Parses a description; `None` if it is damaged.
    pub(super) fn parse(data: Vec<u8>) -> Option<Self> {
        let word = |at: usize| u32_at(&data, at);
        if u16::from_ne_bytes([*data.first()?, *data.get(1)?]) != MAGIC {
            return None;
        }
        let header = word(4)? as usize;
        let place = |offset: usize, length: usize| {
            let start = header.checked_add(word(offset)? as usize)?;
            let length = word(length)? as usize;
            data.get(start..start.checked_add(length)?)?;
            Some((start, length))
        };
        let (types, names) = (place(8, 12)?, place(16, 20)?);
        let end = types.0 + types.1;
        let mut at = types.0;
        let mut all = Vec::new();
        while at < end {
            let (name, info, size_or_type) = (word(at)?, word(at + 4)?, word(at + 8)?);
            let (kind, count) = (info >> 24 & 31, (info & 0xffff) as usize);
            let more = at + TYPE;
            at = more.checked_add(added(kind, count)?)?;
            if at > end {
                return None;
            }
            let has_fields = info >> 31 != 0;
            all.push(Type { name, kind, count, has_fields, size_or_type, more });
        }
        Some(Self { data, names, types: all })
    }

    /// Returns a name by its offset.
    fn name(&self, offset: u32) -> &[u8] {
        let all = &self.data[self.names.0..self.names.0 + self.names.1];
        let rest = all.get(offset as usize..).unwrap_or_default();
        &rest[..rest.iter().position(|b| *b == 0).unwrap_or(rest.len())]
    }

    fn get(&self, id: u32) -> Option<&Type> {
        self.types.get((id as usize).checked_sub(1)?)
    }

    fn find(&self, name: &str, is: impl Fn(&Type) -> bool) -> Option<(u32, &Type)> {
        let at = self.types.iter().position(|t| is(t) && self.name(t.name) == name.as_bytes())?;
        Some((at as u32 + 1, &self.types[at]))
    }

    fn composite(&self, name: &str) -> Option<&Type> {
        self.find(name, |t| matches!(t.kind, STRUCT | UNION)).map(|t| t.1)
    }

    /// Returns the bytes of a structure or union.
    pub(super) fn size(&self, name: &str) -> Option<u32> {
        self.composite(name).map(|t| t.size_or_type)
    }

    /// Returns the offset of a structure's member in bytes, also of one that is in a part without a name.
    pub(super) fn member(&self, structure: &str, member: &str) -> Option<u32> {
        self.within(self.composite(structure)?, member.as_bytes(), &mut SEARCHED.clone())
    }

    fn within(&self, t: &Type, wanted: &[u8], left: &mut usize) -> Option<u32> {
        *left = left.checked_sub(1)?;
        (0..t.count).find_map(|i| {
            let at = t.more + i * 12;
            let word = |n: usize| u32_at(&self.data, at + 4 * n);
            let (name, kind, place) = (word(0)?, word(1)?, word(2)?);
            let bits = if t.has_fields { place & 0xff_ffff } else { place };
            let name = self.name(name);
            if name == wanted {
                return (bits % 8 == 0).then_some(bits / 8);
            }
            let inner =
                self.get(kind).filter(|t| name.is_empty() && matches!(t.kind, STRUCT | UNION))?;
            bits.checked_div(8)?.checked_add(self.within(inner, wanted, left)?)
        })
    }

    /// Returns the names of a function's parameters.
    pub(super) fn parameters(&self, function: &str) -> Option<Vec<String>> {
        let (_, function) = self.find(function, |t| t.kind == FUNCTION)?;
        let prototype = self.get(function.size_or_type).filter(|t| t.kind == PROTOTYPE)?;
        let name = |i: usize| {
            let offset = u32_at(&self.data, prototype.more + i * 8)?;
            Some(String::from_utf8_lossy(self.name(offset)).into_owned())
        };
        (0..prototype.count).map(name).collect()
    }
}

/// Returns how many bytes a kind adds to a type; `None` for an unknown kind, behind which nothing can be read.
fn added(kind: u32, count: usize) -> Option<usize> {
    Some(match kind {
        1 | 14 | 17 => 4,                       // integers, variables, tags of declarations
        3 => 12,                                // arrays
        STRUCT | UNION | 15 | 19 => 12 * count, // with members; sections; enums of 64 bits
        6 | PROTOTYPE => 8 * count,             // enums, prototypes
        2 | 7..=12 | 16 | 18 => 0,
        _ => return None,
    })
}

fn u32_at(data: &[u8], at: usize) -> Option<u32> {
    data.get(at..)?.first_chunk::<4>().map(|b| u32::from_ne_bytes(*b))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Makes a description of types, each of which is a list of words.
    fn made(names: &[u8], types: &[&[u32]]) -> Vec<u8> {
        let words: Vec<u32> = types.iter().flat_map(|t| t.iter().copied()).collect();
        let length = words.len() as u32 * 4;
        let mut data = Vec::new();
        data.extend_from_slice(&MAGIC.to_ne_bytes());
        data.extend_from_slice(&[1, 0]);
        for w in [24, 0, length, length, names.len() as u32].iter().chain(&words) {
            data.extend_from_slice(&u32::to_ne_bytes(*w));
        }
        data.extend_from_slice(names);
        data
    }

    const NAMES: &[u8] = b"\0cache\0size\0inner\0func\0ptr\0count\0";

    fn sample() -> Vec<u8> {
        made(
            NAMES,
            &[
                &[0, 1 << 24, 4, 32],
                // A structure with a part without a name, in which the size is, and a bit field.
                &[1, STRUCT << 24 | 1 << 31 | 2, 24, 0, 3, 64, 12, 1, 96 | 3 << 24],
                &[0, UNION << 24 | 1, 8, 7, 1, 32],
                &[0, PROTOTYPE << 24 | 2, 1, 0, 1, 23, 1],
                &[18, FUNCTION << 24, 4],
                &[27, 14 << 24, 1, 0],
            ],
        )
    }

    #[test]
    fn members_and_parameters_are_found() {
        let b = Btf::parse(sample()).expect("a description");
        assert_eq!((b.size("cache"), b.size("func")), (Some(24), None));
        assert_eq!(b.member("cache", "size"), Some(12));
        assert_eq!(b.member("cache", "inner"), Some(12));
        assert_eq!(b.member("cache", "none"), None);
        assert_eq!(b.parameters("func"), Some(vec![String::new(), "ptr".into()]));
        assert_eq!(b.parameters("count"), None, "a variable");
    }

    #[test]
    fn damaged_descriptions_do_no_harm() {
        let whole = sample();
        let ask = |data: Vec<u8>| {
            if let Some(b) = Btf::parse(data) {
                let _ = (b.size("cache"), b.member("cache", "size"), b.member("cache", "none"));
                let _ = (b.parameters("func"), b.parameters("count"));
            }
        };
        for n in 0..whole.len() {
            assert!(Btf::parse(whole[..n].to_vec()).is_none(), "cut at {n}");
            for value in [0, 1, 0x7f, 0xff] {
                let mut data = whole.clone();
                data[n] = value;
                ask(data);
            }
        }
        // A structure that is a part of itself, and one with more members than there are bytes.
        ask(made(NAMES, &[&[1, STRUCT << 24 | 1, 8, 0, 1, 0]]));
        let two: &[u32] = &[1, STRUCT << 24 | 2, 8, 0, 1, 0, 0, 1, 0];
        ask(made(NAMES, &[two]));
        assert!(Btf::parse(made(NAMES, &[&[1, STRUCT << 24 | 0xffff, 8]])).is_none());
        assert!(Btf::parse(made(NAMES, &[&[1, 31 << 24, 8]])).is_none(), "an unknown kind");
    }

    #[test]
    fn this_kernels_description_is_understood() {
        let Ok(b) = Btf::read() else { return eprintln!("skipped: no {PATH}") };
        assert!(b.size("task_struct").is_some_and(|n| n > 1000));
        assert!(b.member("task_struct", "pid").is_some());
        assert!(b.member("page", "_refcount").is_some(), "in parts without a name");
    }
}
