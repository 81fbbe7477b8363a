//! Reads tracefs's description of a tracepoint: its number, and where its fields are in the raw data of an event.

/// A field in the raw data.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Field {
    /// Offset in bytes.
    pub offset: usize,
    /// Length in bytes.
    pub size: usize,
}

/// The description of a tracepoint.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Format {
    /// Number of the tracepoint.
    pub id: u64,
    fields: Vec<(String, Field)>,
}

impl Format {
    /// Parses a description; returns `None` if it has no number.
    pub(crate) fn parse(text: &str) -> Option<Self> {
        let id = text.lines().find_map(|l| l.strip_prefix("ID: "))?.trim().parse().ok()?;
        let fields = text.lines().filter_map(field).collect();
        Some(Self { id, fields })
    }

    /// Returns a field by its name; `None` if there is none.
    pub(crate) fn field(&self, name: &str) -> Option<Field> {
        self.fields.iter().find(|f| f.0 == name).map(|f| f.1)
    }
}

/// Parses a line such as `field:const void * ptr; offset:16; size:8; signed:0;`, with tabs between its parts.
fn field(line: &str) -> Option<(String, Field)> {
    let mut parts = line.trim().strip_prefix("field:")?.split(';').map(str::trim);
    // `char comm[16]` has its length behind the name, `__data_loc char[] name` none before it.
    let name = parts.next()?.rsplit([' ', '*']).next()?.split('[').next()?;
    let (mut offset, mut size) = (None, None);
    for part in parts {
        match part.split_once(':') {
            Some(("offset", n)) => offset = n.parse().ok(),
            Some(("size", n)) => size = n.parse().ok(),
            _ => {}
        }
    }
    Some((name.to_owned(), Field { offset: offset?, size: size? }))
}

impl Field {
    /// Reads an integer; 0 if the data are too short.
    #[inline]
    pub(crate) fn int(self, raw: &[u8]) -> u64 {
        let Some(bytes) = raw.get(self.offset..self.offset + self.size) else { return 0 };
        if let Ok(b) = <[u8; 8]>::try_from(bytes) {
            return u64::from_ne_bytes(b);
        }
        match *bytes {
            [a, b, c, d] => u32::from_ne_bytes([a, b, c, d]).into(),
            [a, b] => u16::from_ne_bytes([a, b]).into(),
            [a] => a.into(),
            _ => 0,
        }
    }

    /// Reads a string that the field only refers to (`__data_loc`), up to its zero byte.
    #[inline]
    pub(crate) fn text(self, raw: &[u8]) -> &[u8] {
        let place = self.int(raw);
        let (at, len) = ((place & 0xffff) as usize, (place >> 16) as usize & 0xffff);
        let bytes = raw.get(at..at + len).unwrap_or_default();
        bytes.strip_suffix(b"\0").unwrap_or(bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "name: kmem_cache_alloc\nID: 659\nformat:\n\
        \tfield:unsigned short common_type;\toffset:0;\tsize:2;\tsigned:0;\n\n\
        \tfield:const void * ptr;\toffset:8;\tsize:8;\tsigned:0;\n\
        \tfield:__data_loc char[] name;\toffset:16;\tsize:4;\tsigned:0;\n\
        \tfield:void __seg_gs * base;\toffset:20;\tsize:8;\tsigned:0;\n\
        print fmt: \"x\", (REC->ptr)\n";

    #[test]
    fn fields_are_found_and_read() {
        let f = Format::parse(TEXT).expect("a format");
        assert_eq!(f.id, 659);
        assert_eq!(f.field("ptr"), Some(Field { offset: 8, size: 8 }));
        assert_eq!(f.field("base"), Some(Field { offset: 20, size: 8 }));
        assert_eq!(f.field("common_type"), Some(Field { offset: 0, size: 2 }));
        assert_eq!(f.field("bytes_req"), None);
        let mut raw = vec![0u8; 28];
        raw[8..16].copy_from_slice(&0xffff_8881_0000_1000u64.to_ne_bytes());
        raw[16..20].copy_from_slice(&(5u32 << 16 | 28).to_ne_bytes());
        raw.extend_from_slice(b"filp\0\0\0\0");
        assert_eq!(f.field("ptr").map(|p| p.int(&raw)), Some(0xffff_8881_0000_1000));
        let name = f.field("__data_loc").or(f.field("name")).expect("name");
        assert_eq!(name.text(&raw), b"filp");
        assert_eq!(name.text(&raw[..30]), b"");
        assert_eq!(Format::parse("name: x\n"), None);
    }
}
