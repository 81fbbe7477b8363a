//! Heap dumps in Java's format HPROF ("JAVA PROFILE 1.0.2"): its records, whatever the objects in them stand for.
//!
//! A dump is a list of records, each with a length of 32 bits. Classes, roots and objects are sub-records of segments, and each
//! is whole in one segment. Identifiers have 8 bytes; all numbers are big-endian.
//!
//! Readers compute the size of an object from its fields or elements. A pointer counts as 4 bytes there and the head of an
//! object as 12, as in a Java VM with compressed pointers ([`Dump::compress`]): with the 8 and 16 of another VM, most small
//! blocks would be too large.

use std::collections::HashMap;
use std::io::{self, Read, Write};

/// Takes the bytes of a dump.
pub trait Sink: Write {
    /// Writes `n` zeros. In a file they may be a hole.
    ///
    /// # Errors
    /// If they can't be written.
    fn zeros(&mut self, n: u64) -> io::Result<()> {
        io::copy(&mut io::repeat(0).take(n), self).map(drop)
    }
}

impl Sink for Vec<u8> {}

/// Bytes of an object in front of its fields, of an array in front of its elements, and of a pointer.
const HEAD: u64 = 12;
const ARRAY_HEAD: u64 = 16;
const POINTER: u64 = 4;
/// Multiples of this are sizes of objects.
const GRAIN: u64 = 8;
/// Bytes of a segment, but for those with one large array.
const SEGMENT: usize = 1 << 20;
/// Elements of an array. What has more is several arrays: readers keep all elements of one in memory.
const PART: u64 = 1 << 20;
/// The first identifier of what has no address: no address is as large.
const FIRST: u64 = 1 << 48;
/// Number of the stack without frames.
pub(crate) const NO_STACK: u32 = 1;

/// Kinds of records.
mod record {
    pub(super) const TEXT: u8 = 0x01;
    pub(super) const LOAD_CLASS: u8 = 0x02;
    pub(super) const FRAME: u8 = 0x04;
    pub(super) const STACK: u8 = 0x05;
    pub(super) const SEGMENT: u8 = 0x1c;
    pub(super) const END: u8 = 0x2c;
}

/// Kinds of sub-records.
mod sub {
    pub(super) const JNI_GLOBAL: u8 = 0x01;
    pub(super) const NATIVE_STACK: u8 = 0x04;
    pub(super) const STICKY_CLASS: u8 = 0x05;
    pub(super) const UNKNOWN: u8 = 0xff;
    pub(super) const CLASS: u8 = 0x20;
    pub(super) const INSTANCE: u8 = 0x21;
    pub(super) const OBJECT_ARRAY: u8 = 0x22;
}

/// Types of fields.
mod field {
    pub(super) const OBJECT: u8 = 2;
    pub(super) const INT: u8 = 10;
    pub(super) const LONG: u8 = 11;
}

/// Identifier of an object, a class, a text or a frame.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct Id(pub u64);

/// An object, as far as its record begins alike for all kinds.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Object {
    pub id: Id,
    pub class: Id,
    /// Number of the stack that allocated it.
    pub stack: u32,
}

/// Why an object is a root.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Reason {
    /// Native code refers to it.
    Native,
    /// It is on the stack of the thread with this number.
    Stack(u32),
    /// It is a class of the system.
    Class,
    Unknown,
}

/// The fields of a class: pointers, and numbers that fill up its size.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Layout {
    pub pointers: u16,
    /// Bytes of the numbers, a multiple of 4.
    filling: u32,
}

impl Layout {
    /// Returns the fields of an object with so many pointers; `size`: the bytes that it is to have.
    pub(crate) fn new(pointers: u16, size: u32) -> Self {
        let own = HEAD as u32 + u32::from(pointers) * POINTER as u32;
        let filling = size.next_multiple_of(GRAIN as u32).saturating_sub(own) & !3;
        Self { pointers, filling }
    }

    /// Returns the size of an object as readers compute it.
    pub(crate) fn size(self) -> u32 {
        let own = HEAD as u32 + u32::from(self.pointers) * POINTER as u32 + self.filling;
        own.next_multiple_of(GRAIN as u32)
    }

    /// Returns the types of the numbers.
    fn numbers(self) -> impl ExactSizeIterator<Item = u8> + Clone {
        let odd = self.filling % 8 / 4;
        (0..self.filling / 8 + odd).map(move |k| if k < odd { field::INT } else { field::LONG })
    }
}

/// Returns a name that readers show as it is: they take slashes for dots, and what begins with a bracket for an array.
pub(crate) fn class_name(text: &str) -> String {
    let name = text.replace('/', "\u{2215}");
    if name.starts_with('[') || name.is_empty() { format!("({name})") } else { name }
}

/// Writes a dump. Texts, classes' names and stacks have to come before all else.
pub(crate) struct Dump<'a> {
    out: &'a mut dyn Sink,
    /// The sub-records of the segment that is not written yet.
    segment: Vec<u8>,
    texts: HashMap<String, Id>,
    frames: HashMap<(Id, Id, i32), Id>,
    last: u64,
    classes: u32,
    stacks: u32,
}

impl<'a> Dump<'a> {
    /// Begins a dump of a moment, in milliseconds since 1970.
    pub(crate) fn begin(out: &'a mut dyn Sink, unix_ms: u64) -> io::Result<Self> {
        out.write_all(b"JAVA PROFILE 1.0.2\0")?;
        out.write_all(&8u32.to_be_bytes())?;
        out.write_all(&unix_ms.to_be_bytes())?;
        let mut dump = Self {
            out,
            segment: Vec::with_capacity(SEGMENT),
            texts: HashMap::new(),
            frames: HashMap::new(),
            last: FIRST,
            classes: 0,
            stacks: 0,
        };
        dump.stack(&[])?;
        Ok(dump)
    }

    /// Returns an identifier for what has no address.
    pub(crate) fn id(&mut self) -> Id {
        self.last += GRAIN;
        Id(self.last)
    }

    fn record(&mut self, kind: u8, bytes: &[u8]) -> io::Result<()> {
        self.record_head(kind, bytes.len() as u32)?;
        self.out.write_all(bytes)
    }

    fn record_head(&mut self, kind: u8, len: u32) -> io::Result<()> {
        // The second to fifth byte is the time since the beginning, in microseconds.
        let mut head = [kind, 0, 0, 0, 0, 0, 0, 0, 0];
        head[5..].copy_from_slice(&len.to_be_bytes());
        self.out.write_all(&head)
    }

    /// Writes a text, if it was not written before.
    pub(crate) fn text(&mut self, text: &str) -> io::Result<Id> {
        if let Some(id) = self.texts.get(text) {
            return Ok(*id);
        }
        let id = self.id();
        self.texts.insert(text.to_owned(), id);
        self.record(record::TEXT, &[&id.0.to_be_bytes(), text.as_bytes()].concat())?;
        Ok(id)
    }

    /// Writes the name of a class, with dots between packages: some readers don't know `java/lang/Object`. That of an array is
    /// its element's.
    pub(crate) fn name_class(&mut self, class: Id, name: &str, array: bool) -> io::Result<()> {
        let name = match array {
            true => self.text(&format!("[L{name};"))?,
            false => self.text(name)?,
        };
        self.classes += 1;
        let mut bytes = self.classes.to_be_bytes().to_vec();
        bytes.extend(class.0.to_be_bytes());
        bytes.extend(NO_STACK.to_be_bytes());
        bytes.extend(name.0.to_be_bytes());
        self.record(record::LOAD_CLASS, &bytes)
    }

    /// Writes a frame, if it was not written before; `line`: 0 if it is not known. It is of the first class.
    pub(crate) fn frame(&mut self, function: &str, file: &str, line: u32) -> io::Result<Id> {
        let line = i32::try_from(line).ok().filter(|l| *l > 0).unwrap_or(-1);
        let [function, file, signature] = [self.text(function)?, self.text(file)?, self.text("")?];
        if let Some(id) = self.frames.get(&(function, file, line)) {
            return Ok(*id);
        }
        let id = self.id();
        self.frames.insert((function, file, line), id);
        let ids = [id, function, signature, file].map(|id| id.0.to_be_bytes());
        let numbers = [1u32.to_be_bytes(), line.to_be_bytes()];
        self.record(record::FRAME, &[ids.as_flattened(), numbers.as_flattened()].concat())?;
        Ok(id)
    }

    /// Writes a stack, innermost frame first, and returns its number.
    pub(crate) fn stack(&mut self, frames: &[Id]) -> io::Result<u32> {
        self.stacks += 1;
        let numbers = [self.stacks, 0, frames.len() as u32].map(u32::to_be_bytes);
        let mut bytes = numbers.as_flattened().to_vec();
        frames.iter().for_each(|f| bytes.extend(f.0.to_be_bytes()));
        self.record(record::STACK, &bytes)?;
        Ok(self.stacks)
    }

    /// Writes the segment if it has no room for so many bytes.
    fn room(&mut self, bytes: usize) -> io::Result<()> {
        if self.segment.len() + bytes > SEGMENT { self.flush() } else { Ok(()) }
    }

    fn flush(&mut self) -> io::Result<()> {
        if self.segment.is_empty() {
            return Ok(());
        }
        self.record_head(record::SEGMENT, self.segment.len() as u32)?;
        self.pour()
    }

    fn pour(&mut self) -> io::Result<()> {
        self.out.write_all(&self.segment)?;
        self.segment.clear();
        Ok(())
    }

    fn put_id(&mut self, id: Id) {
        self.segment.extend(id.0.to_be_bytes());
    }

    fn put(&mut self, n: u32) {
        self.segment.extend(n.to_be_bytes());
    }

    /// Writes a class with its fields; `above`: the class that it extends. `names`: those of its pointers.
    pub(crate) fn class(
        &mut self,
        class: Id,
        above: Id,
        layout: Layout,
        names: &[Id],
        number: Id,
    ) -> io::Result<()> {
        let numbers = layout.numbers();
        self.room(71 + (names.len() + numbers.len()) * 9)?;
        self.segment.push(sub::CLASS);
        self.put_id(class);
        self.put(NO_STACK);
        // Behind the class above: loader, signers, protection domain, and two reserved ones.
        [above, Id(0), Id(0), Id(0), Id(0), Id(0)].into_iter().for_each(|id| self.put_id(id));
        // The size of the class above all others is that of an object's head.
        self.put(if above == Id(0) { HEAD as u32 } else { layout.size() });
        // There are neither constants nor static fields.
        self.put(0);
        let fields = names.len() + numbers.len();
        self.segment.extend((fields as u16).to_be_bytes());
        let pointers = names.iter().map(|name| (*name, field::OBJECT));
        for (name, kind) in pointers.chain(numbers.map(|kind| (number, kind))) {
            self.put_id(name);
            self.segment.push(kind);
        }
        Ok(())
    }

    /// Writes that an object is a root.
    pub(crate) fn root(&mut self, id: Id, reason: Reason) -> io::Result<()> {
        self.room(32)?;
        self.segment.push(match reason {
            Reason::Native => sub::JNI_GLOBAL,
            Reason::Stack(_) => sub::NATIVE_STACK,
            Reason::Class => sub::STICKY_CLASS,
            Reason::Unknown => sub::UNKNOWN,
        });
        self.put_id(id);
        match reason {
            Reason::Native => self.put_id(id),
            Reason::Stack(thread) => self.put(thread),
            Reason::Class | Reason::Unknown => {}
        }
        Ok(())
    }

    /// Makes readers count 4 bytes for a pointer. Eclipse MAT takes pointers for compressed where an array begins in front of
    /// the end that the one before it would have otherwise: so two empty arrays, to which nothing points, are 8 bytes apart.
    /// VisualVM looks at the size of `java.lang.Object`, which is [`HEAD`].
    pub(crate) fn compress(&mut self, class: Id) -> io::Result<()> {
        for _ in 0..2 {
            let id = self.id();
            self.array(Object { id, class, stack: NO_STACK }, 0, 0, std::iter::empty())?;
        }
        Ok(())
    }

    /// Writes an object with fields. Pointers behind those in `to` are null.
    pub(crate) fn instance(
        &mut self,
        object: Object,
        layout: Layout,
        to: impl Iterator<Item = Id>,
    ) -> io::Result<()> {
        let bytes = usize::from(layout.pointers) * 8 + layout.filling as usize;
        self.room(25 + bytes)?;
        self.segment.push(sub::INSTANCE);
        self.put_id(object.id);
        self.put(object.stack);
        self.put_id(object.class);
        self.put(bytes as u32);
        let end = self.segment.len() + bytes;
        to.take(layout.pointers.into()).for_each(|id| self.put_id(id));
        self.segment.resize(end, 0);
        Ok(())
    }

    /// Writes an object that is an array of `pointers` pointers, and null behind them until it has `size` bytes. If it is
    /// long, the first elements lead to arrays with the rest.
    pub(crate) fn array(
        &mut self,
        object: Object,
        pointers: u64,
        size: u64,
        mut to: impl Iterator<Item = Id>,
    ) -> io::Result<()> {
        let wanted = size.next_multiple_of(GRAIN).saturating_sub(ARRAY_HEAD) / POINTER;
        let more = wanted.max(pointers).div_ceil(PART).saturating_sub(1);
        let heads = more * (ARRAY_HEAD / POINTER + 1);
        let elements = wanted.saturating_sub(heads).max(pointers);
        // No array but the last two has a size that is to be rounded up.
        let share = elements.div_ceil(more + 1).next_multiple_of(2).min(elements);
        let parts: Vec<Id> = (0..more).map(|_| self.id()).collect();
        let links = parts.iter().copied().chain(to.by_ref().take(share as usize));
        self.put_array(object, more + share, links)?;
        let mut left = elements - share;
        for id in parts {
            let n = share.min(left);
            self.put_array(Object { id, ..object }, n, to.by_ref().take(n as usize))?;
            left -= n;
        }
        Ok(())
    }

    /// Writes one array. Elements behind those in `to`, which are `n` at most, are null.
    fn put_array(
        &mut self,
        object: Object,
        n: u64,
        to: impl Iterator<Item = Id>,
    ) -> io::Result<()> {
        let bytes = 25 + n * 8;
        let is_large = bytes > SEGMENT as u64;
        if is_large {
            self.flush()?;
            self.record_head(record::SEGMENT, bytes as u32)?;
        } else {
            self.room(bytes as usize)?;
        }
        self.segment.push(sub::OBJECT_ARRAY);
        self.put_id(object.id);
        self.put(object.stack);
        self.put(n as u32);
        self.put_id(object.class);
        let mut nulls = n;
        for id in to {
            self.put_id(id);
            nulls -= 1;
            if is_large && self.segment.len() >= SEGMENT {
                self.pour()?;
            }
        }
        if is_large {
            self.pour()?;
            return self.out.zeros(nulls * 8);
        }
        self.segment.resize(self.segment.len() + nulls as usize * 8, 0);
        Ok(())
    }

    /// Ends the dump.
    pub(crate) fn finish(mut self) -> io::Result<()> {
        self.flush()?;
        self.record(record::END, &[])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Keeps all but zeros, and counts those.
    #[derive(Default)]
    struct Counted {
        bytes: Vec<u8>,
        zeros: u64,
    }

    impl Write for Counted {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.bytes.write(bytes)
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    impl Sink for Counted {
        fn zeros(&mut self, n: u64) -> io::Result<()> {
            self.zeros += n;
            Ok(())
        }
    }

    #[test]
    fn objects_have_the_sizes_of_blocks() {
        // The first and the last have more pointers than their bytes have room for.
        for (pointers, size, wanted) in [
            (1, 8, 16),
            (0, 1, 16),
            (3, 24, 24),
            (4, 32, 32),
            (0, 1000, 1000),
            (7, 88, 88),
            (2, 16, 24),
        ] {
            let layout = Layout::new(pointers, size);
            assert_eq!(layout.size(), wanted, "{pointers} pointers in {size} bytes");
            let numbers = layout.numbers().map(|kind| if kind == field::INT { 4 } else { 8 });
            assert_eq!(numbers.sum::<u32>(), layout.filling);
        }
    }

    #[test]
    fn long_arrays_are_several_whose_sizes_add_up() {
        let size = 9 << 22;
        let mut out = Counted::default();
        let mut dump = Dump::begin(&mut out, 0).expect("begun");
        let front = dump.last;
        let object = Object { id: Id(16), class: Id(8), stack: NO_STACK };
        dump.array(object, 3, size, [Id(24), Id(32), Id(40)].into_iter()).expect("written");
        dump.finish().expect("written");
        let mut at = 31;
        let (mut ids, mut elements, mut sum) = (Vec::new(), Vec::new(), 0);
        let word =
            |at: usize| u64::from_be_bytes(out.bytes[at..at + 8].try_into().expect("8 bytes"));
        let short = |at: usize| (word(at) >> 32) as usize;
        while out.bytes[at] != record::END {
            if out.bytes[at] != record::SEGMENT {
                at += 9 + short(at + 5);
                continue;
            }
            let n = short(at + 9 + 13);
            assert_eq!((out.bytes[at + 9], short(at + 5)), (sub::OBJECT_ARRAY, 25 + 8 * n));
            ids.push(word(at + 10));
            sum += (ARRAY_HEAD + POINTER * n as u64).next_multiple_of(GRAIN);
            at += 34;
            // Of the first array all but its first elements are zeros, of the others all.
            while ids.len() == 1 && out.bytes[at] != record::SEGMENT {
                elements.push(word(at));
                at += 8;
            }
        }
        assert!((size..size + 16).contains(&sum), "{sum}");
        assert!(ids.len() == 9 && out.zeros > 2 * size - 400);
        let parts: Vec<u64> = (1..9).map(|k| front + GRAIN * k).collect();
        assert_eq!(
            (&ids[1..], &elements[..8], &elements[8..]),
            (&parts[..], &parts[..], &[24, 32, 40][..])
        );
    }

    #[test]
    fn names_stay_as_they_are() {
        let shown = ["a/b", "[heap]", "", "f(int[])"].map(class_name);
        assert_eq!(shown, ["a\u{2215}b", "([heap])", "()", "f(int[])"]);
    }
}
