//! The macro that defines records.

/// Defines a record: integers and blobs, encoded in the order of its fields.
macro_rules! record {
    ($(#[$doc:meta])* $name:ident { $($(#[$fdoc:meta])* $field:ident : $ty:tt),* $(,)? }) => {
        $(#[$doc])*
        #[derive(Clone, Debug, Default, PartialEq, Eq)]
        pub struct $name { $($(#[$fdoc])* pub $field: record!(@ty $ty)),* }

        impl $name {
            /// Encodes the payload of a chunk.
            pub fn encode(&self) -> Vec<u8> {
                let mut w = Writer::default();
                self.write(&mut w);
                w.bytes
            }

            /// Appends the encoded fields to a payload.
            pub fn write(&self, w: &mut Writer) {
                $( record!(@put $ty, w, self.$field); )*
            }

            /// Decodes the fields at the front of a payload. Callers that read whole chunks skip fields that
            /// a newer prof appended.
            pub fn read(r: &mut Reader<'_>) -> Option<Self> {
                Some(Self { $($field: record!(@get $ty, r)),* })
            }

            /// Decodes a payload; returns `None` if it is truncated or malformed.
            pub fn decode(payload: &[u8]) -> Option<Self> {
                Self::read(&mut Reader::new(payload))
            }
        }
    };
    (@ty int) => { u64 };
    (@ty ticks) => { Ticks };
    (@ty later) => { u64 }; // appended in a later version: 0 if missing
    (@ty int32) => { u32 };
    (@ty text) => { String };
    (@ty bytes) => { Vec<u8> };
    (@ty ints) => { Vec<u64> };
    (@ty later_ints) => { Vec<u64> }; // appended in a later version: empty if missing
    (@ty texts) => { Vec<String> };
    (@put int, $w:ident, $v:expr) => { $w.int($v) };
    (@put ticks, $w:ident, $v:expr) => { $w.int($v.0) };
    (@put later, $w:ident, $v:expr) => { $w.int($v) };
    (@put int32, $w:ident, $v:expr) => { $w.int($v as u64) };
    (@put text, $w:ident, $v:expr) => { $w.blob($v.as_bytes()) };
    (@put bytes, $w:ident, $v:expr) => { $w.blob(&$v) };
    (@put ints, $w:ident, $v:expr) => {{
        $w.int($v.len() as u64);
        for x in &$v { $w.int(*x); }
    }};
    (@put later_ints, $w:ident, $v:expr) => { record!(@put ints, $w, $v) };
    (@put texts, $w:ident, $v:expr) => {{
        $w.int($v.len() as u64);
        for x in &$v { $w.blob(x.as_bytes()); }
    }};
    (@get int, $r:ident) => { $r.int()? };
    (@get ticks, $r:ident) => { Ticks($r.int()?) };
    (@get later, $r:ident) => { if $r.rest().is_empty() { 0 } else { $r.int()? } };
    (@get int32, $r:ident) => { $r.int32()? };
    (@get text, $r:ident) => { $r.text()? };
    (@get bytes, $r:ident) => { $r.blob()?.to_vec() };
    (@get later_ints, $r:ident) => {
        if $r.rest().is_empty() { Vec::new() } else { record!(@get ints, $r) }
    };
    (@get ints, $r:ident) => {{
        let n = $r.int()? as usize;
        if n > $r.rest().len() { return None; }
        let mut v = Vec::with_capacity(n);
        for _ in 0..n { v.push($r.int()?); }
        v
    }};
    (@get texts, $r:ident) => {{
        let n = $r.int()? as usize;
        if n > $r.rest().len() { return None; }
        let mut v = Vec::with_capacity(n);
        for _ in 0..n { v.push($r.text()?); }
        v
    }};
}
