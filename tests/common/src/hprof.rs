//! A strict reader of heap dumps in the format HPROF. It takes the sizes of objects as Eclipse MAT does.

use std::collections::{HashMap, HashSet};
use std::path::Path;

/// An object of a dump.
#[derive(Debug)]
pub struct HprofObject {
    /// Name of its class; that of an array ends in `[]`.
    pub class: String,
    /// Bytes that it has for readers.
    pub size: u64,
    /// The objects that it points to: name of the field, or nothing for an element of an array, and identifier.
    pub to: Vec<(String, u64)>,
    /// Functions of the stack that allocated it, innermost first.
    pub stack: Vec<String>,
}

/// A dump.
#[derive(Debug, Default)]
pub struct HprofDump {
    /// The objects by identifier, without classes.
    pub objects: HashMap<u64, HprofObject>,
    /// The objects that are roots.
    pub roots: Vec<u64>,
}

/// Bytes that are read from the front.
struct Bytes<'a>(&'a [u8]);

impl<'a> Bytes<'a> {
    fn take(&mut self, n: usize) -> &'a [u8] {
        let (front, rest) =
            self.0.split_at_checked(n).unwrap_or_else(|| panic!("{n} bytes are missing"));
        self.0 = rest;
        front
    }

    fn number(&mut self, bytes: usize) -> u64 {
        self.take(bytes).iter().fold(0, |n, b| n << 8 | u64::from(*b))
    }

    fn id(&mut self) -> u64 {
        self.number(8)
    }

    fn u32(&mut self) -> u32 {
        self.number(4) as u32
    }
}

/// A class of a dump: the class that it extends, the size that it states, and its own fields, each with name and type.
struct Class {
    above: u64,
    stated: u64,
    fields: Vec<(String, u8)>,
}

/// An object before its class is looked at.
enum Body {
    Fields(Vec<u8>),
    Elements(u64, Vec<u64>),
}

#[derive(Default)]
struct Reader {
    texts: HashMap<u64, String>,
    names: HashMap<u64, String>,
    serials: HashSet<u32>,
    frames: HashMap<u64, String>,
    stacks: HashMap<u32, Vec<String>>,
    classes: HashMap<u64, Class>,
    objects: HashMap<u64, (u64, u32, Body)>,
    roots: Vec<u64>,
    /// Address of the array before this one, and its end if pointers have 8 bytes.
    array: (u64, u64),
    compressed: bool,
}

const OBJECT: u8 = 2;

fn size_of_field(kind: u8) -> u64 {
    match kind {
        OBJECT | 11 => 8,
        10 => 4,
        _ => panic!("a field of the type {kind}"),
    }
}

impl HprofDump {
    /// Reads a file, and panics if anything in it is not as the format wants it.
    #[must_use]
    pub fn read(path: &Path) -> Self {
        let bytes = std::fs::read(path).expect("a dump");
        let mut all = Bytes(&bytes);
        assert_eq!(all.take(19), b"JAVA PROFILE 1.0.2\0");
        assert_eq!(all.u32(), 8, "bytes of an identifier");
        let year = all.id() / (365 * 24 * 3_600_000) + 1970;
        assert!((2024..2200).contains(&year), "made in {year}");
        let mut r = Reader::default();
        loop {
            let (kind, _) = (all.number(1), all.u32());
            let len = all.u32() as usize;
            let mut record = Bytes(all.take(len));
            match kind {
                0x01 => r.text(record),
                0x02 => r.load_class(record),
                0x04 => r.frame(record),
                0x05 => r.stack(record),
                0x1c => {
                    assert!(!record.0.is_empty(), "an empty segment");
                    while !record.0.is_empty() {
                        r.sub_record(&mut record);
                    }
                }
                0x2c => {
                    break assert!(record.0.is_empty() && all.0.is_empty(), "more behind the end");
                }
                _ => panic!("a record of the kind {kind}"),
            }
        }
        r.finish()
    }

    /// Returns the identifiers of objects whose class has this in its name.
    #[must_use]
    pub fn named(&self, text: &str) -> Vec<u64> {
        let of = |(id, o): (&u64, &HprofObject)| o.class.contains(text).then_some(*id);
        self.objects.iter().filter_map(of).collect()
    }

    /// Returns the bytes and the number of the objects that are reached from the roots without passing through some.
    #[must_use]
    pub fn reached(&self, without: &[u64]) -> (u64, u64) {
        let mut seen: HashSet<u64> = without.iter().copied().collect();
        let mut work = self.roots.clone();
        let mut sum = (0, 0);
        while let Some(id) = work.pop() {
            if let Some(o) = self.objects.get(&id).filter(|_| seen.insert(id)) {
                sum = (sum.0 + o.size, sum.1 + 1);
                work.extend(o.to.iter().map(|(_, to)| *to));
            }
        }
        sum
    }
}

impl Reader {
    fn named(&self, text: u64) -> String {
        self.texts.get(&text).unwrap_or_else(|| panic!("no text {text:#x} yet")).clone()
    }

    fn text(&mut self, mut record: Bytes<'_>) {
        let id = record.id();
        let text = std::str::from_utf8(record.0).expect("UTF-8").to_owned();
        assert!(self.texts.insert(id, text).is_none(), "a second text {id:#x}");
    }

    fn load_class(&mut self, mut record: Bytes<'_>) {
        let (serial, class, stack, name) = (record.u32(), record.id(), record.u32(), record.id());
        assert!(serial > 0 && self.serials.insert(serial) && record.0.is_empty());
        assert!(self.stacks.contains_key(&stack), "stack {stack}");
        let name = self.named(name);
        let name = match name.strip_prefix("[L").map(|n| n.strip_suffix(';')) {
            Some(element) => format!("{}[]", element.expect("the end of an array's name")),
            None => name,
        };
        let name = name.replace('/', ".");
        assert!(self.names.insert(class, name).is_none(), "a second name of class {class:#x}");
    }

    fn frame(&mut self, mut record: Bytes<'_>) {
        let [id, function, signature, file] = [(); 4].map(|()| record.id());
        let [serial, line] = [record.u32(), record.u32()];
        assert!(record.0.is_empty() && self.serials.contains(&serial));
        assert_eq!(self.named(signature), "");
        let text = format!("{} {}:{}", self.named(function), self.named(file), line as i32);
        assert!(self.frames.insert(id, text).is_none(), "a second frame {id:#x}");
    }

    fn stack(&mut self, mut record: Bytes<'_>) {
        let [serial, thread, n] = [record.u32(), record.u32(), record.u32()];
        let frame = |_| self.frames.get(&record.id()).expect("a frame").clone();
        let frames = (0..n).map(frame).collect();
        assert!(record.0.is_empty() && thread == 0);
        assert!(self.stacks.insert(serial, frames).is_none(), "a second stack {serial}");
    }

    fn sub_record(&mut self, r: &mut Bytes<'_>) {
        match r.number(1) {
            0x01 => {
                self.roots.push(r.id());
                assert_ne!(r.id(), 0, "the reference of a root");
            }
            0x04 => {
                self.roots.push(r.id());
                assert_ne!(r.u32(), 0, "the thread of a root");
            }
            0x05 | 0xff => self.roots.push(r.id()),
            0x20 => self.class(r),
            0x21 => {
                let (id, stack, class, n) = (r.id(), r.u32(), r.id(), r.u32());
                let fields = r.take(n as usize).to_vec();
                self.object(id, class, stack, Body::Fields(fields));
            }
            0x22 => {
                let (id, stack, n, class) = (r.id(), r.u32(), r.u32(), r.id());
                self.compressed |= id > self.array.0 && id < self.array.1;
                self.array = (id, id + 16 + u64::from(n) * 8);
                let to = (0..n).map(|_| r.id()).filter(|to| *to != 0).collect();
                self.object(id, class, stack, Body::Elements(n.into(), to));
            }
            kind => panic!("a sub-record of the kind {kind:#x}"),
        }
    }

    fn class(&mut self, r: &mut Bytes<'_>) {
        let (id, stack, above) = (r.id(), r.u32(), r.id());
        assert!(self.stacks.contains_key(&stack) && self.names.contains_key(&id));
        assert!((0..5).all(|_| r.id() == 0), "a loader");
        let (stated, constants, statics, n) = (r.u32(), r.number(2), r.number(2), r.number(2));
        assert_eq!((constants, statics), (0, 0));
        let field = |_| (self.named(r.id()), r.number(1) as u8);
        let class = Class { above, stated: stated.into(), fields: (0..n).map(field).collect() };
        assert!(self.classes.insert(id, class).is_none(), "a second class {id:#x}");
    }

    fn object(&mut self, id: u64, class: u64, stack: u32, body: Body) {
        assert!(self.stacks.contains_key(&stack), "stack {stack}");
        assert!(self.classes.contains_key(&class), "class {class:#x} is not known yet");
        assert!(id != 0 && self.objects.insert(id, (class, stack, body)).is_none(), "{id:#x}");
    }

    /// Returns the bytes of an object's head and fields.
    fn size(&self, class: u64) -> u64 {
        let Class { above, fields, .. } = &self.classes[&class];
        let pointer = if self.compressed { 4 } else { 8 };
        if *above == 0 {
            return 8 + pointer;
        }
        let of =
            |(_, kind): &(String, u8)| if *kind == OBJECT { pointer } else { size_of_field(*kind) };
        fields.iter().map(of).sum::<u64>() + self.size(*above)
    }

    fn finish(mut self) -> HprofDump {
        assert!(self.compressed, "pointers have 8 bytes");
        let of = |name: &str| self.names.iter().find(|(_, n)| *n == name).expect("a class").0;
        let base = &self.classes[of("java.lang.Object")];
        assert_eq!((base.above, base.stated, base.fields.len()), (0, 12, 0));
        assert!(
            ["java.lang.Class", "java.lang.ClassLoader"]
                .iter()
                .all(|n| self.classes.contains_key(of(n)))
        );
        let known = |id: &u64| self.objects.contains_key(id) || self.classes.contains_key(id);
        assert!(self.classes.len() == self.names.len() && self.roots.iter().all(known));
        assert!(self.classes.keys().all(|id| !self.objects.contains_key(id)));
        let objects = std::mem::take(&mut self.objects);
        let known = |to: &u64| assert!(objects.contains_key(to), "no object {to:#x}");
        let object = |(class, stack, body): &(u64, u32, Body)| {
            let name = self.names[class].clone();
            let of = &self.classes[class];
            let (size, to) = match body {
                Body::Elements(n, to) => {
                    assert!(name.ends_with("[]"), "an array of the class {name}");
                    (
                        (16 + n * 4).next_multiple_of(8),
                        to.iter().map(|to| (String::new(), *to)).collect(),
                    )
                }
                Body::Fields(bytes) => {
                    assert!(!name.ends_with("[]"), "an object of the class {name}");
                    let size = self.size(*class).next_multiple_of(8);
                    assert_eq!(of.stated, size, "the size that class {name} states");
                    let mut bytes = Bytes(bytes);
                    let mut to = Vec::new();
                    for (field, kind) in &of.fields {
                        let value = bytes.number(size_of_field(*kind) as usize);
                        if *kind == OBJECT && value != 0 {
                            to.push((field.clone(), value));
                        }
                    }
                    assert!(bytes.0.is_empty(), "more than the fields of {name}");
                    (size, to)
                }
            };
            to.iter().for_each(|(_, to)| known(to));
            HprofObject { class: name, size, to, stack: self.stacks[stack].clone() }
        };
        let read = objects.iter().map(|(id, o)| (*id, object(o))).collect();
        HprofDump { objects: read, roots: self.roots.clone() }
    }
}
