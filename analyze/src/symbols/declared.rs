//! Finds where variables are declared, by debug information.

use super::elf::ObjectFile;
use gimli::{
    AttributeValue, DwAt, DwarfSections, EndianSlice, EntriesRaw, Expression, Operation,
    RunTimeEndian, SectionId, Unit, UnitOffset, constants,
};
use std::borrow::Cow;
use std::collections::{BTreeSet, HashMap};

/// Debug information that is searched at most, in bytes: it is gone through from its start.
const LONGEST: usize = 512 << 20;

/// A file and a line.
pub(super) type Place = (String, u32);

type Slice<'a> = EndianSlice<'a, RunTimeEndian>;

/// Attributes of an entry that are of interest.
#[derive(Clone, Copy, Debug, Default)]
struct Entry<'a> {
    location: Option<AttributeValue<Slice<'a>>>,
    file: Option<u64>,
    line: Option<u64>,
    /// The entry that declares what this one defines.
    declaration: Option<UnitOffset>,
}

/// Returns where the variables are declared that begin at some addresses of a file. What is not found is left out, and so
/// are variables whose debug information is in a file of its own (`.dwo`).
pub(super) fn declared(image: &ObjectFile, wanted: &BTreeSet<u64>) -> HashMap<u64, Place> {
    let mut found = HashMap::new();
    if image.section(SectionId::DebugInfo.name()).is_none_or(|s| s.len() > LONGEST) {
        return found;
    }
    let load = |id: SectionId| -> Result<Cow<'_, [u8]>, gimli::Error> {
        Ok(image.section(id.name()).unwrap_or_default())
    };
    let Ok(sections) = DwarfSections::load(load) else { return found };
    let endian = match image.is_little_endian() {
        true => RunTimeEndian::Little,
        false => RunTimeEndian::Big,
    };
    let dwarf = sections.borrow(|bytes| EndianSlice::new(bytes, endian));
    let mut units = dwarf.units();
    // A damaged unit ends the search: what is behind it can't be told.
    while found.len() < wanted.len() {
        let Ok(Some(header)) = units.next() else { break };
        let Ok(unit) = dwarf.unit(header) else { continue };
        // An error ends the search of this unit, and keeps what was found in it.
        let _ = search(&dwarf, &unit, wanted, &mut found);
    }
    found
}

fn search<'a>(
    dwarf: &gimli::Dwarf<Slice<'a>>,
    unit: &Unit<Slice<'a>>,
    wanted: &BTreeSet<u64>,
    found: &mut HashMap<u64, Place>,
) -> gimli::Result<()> {
    let mut entries = unit.entries_raw(None)?;
    while !entries.is_empty() {
        let Some(abbreviation) = entries.read_abbreviation()? else { continue };
        if abbreviation.tag() != constants::DW_TAG_variable {
            entries.skip_attributes(abbreviation.attributes())?;
            continue;
        }
        let entry = read(&mut entries, abbreviation.attributes())?;
        let Some(address) = entry.location.and_then(|l| address(dwarf, unit, l)) else { continue };
        if wanted.contains(&address)
            && let Some(place) = place(dwarf, unit, &entry)
        {
            found.entry(address).or_insert(place);
        }
    }
    Ok(())
}

fn read<'a>(
    entries: &mut EntriesRaw<'_, Slice<'a>>,
    attributes: &[gimli::AttributeSpecification],
) -> gimli::Result<Entry<'a>> {
    let mut entry = Entry::default();
    for spec in attributes {
        let attribute = entries.read_attribute(*spec)?;
        let value = attribute.value();
        match attribute.name() {
            constants::DW_AT_location => entry.location = Some(value),
            constants::DW_AT_decl_file => entry.file = index(value),
            constants::DW_AT_decl_line => entry.line = value.udata_value(),
            DwAt(_) if is_declaration(attribute.name()) => {
                if let AttributeValue::UnitRef(offset) = value {
                    entry.declaration = Some(offset);
                }
            }
            _ => {}
        }
    }
    Ok(entry)
}

fn is_declaration(name: DwAt) -> bool {
    name == constants::DW_AT_specification || name == constants::DW_AT_abstract_origin
}

fn index(value: AttributeValue<Slice<'_>>) -> Option<u64> {
    match value {
        AttributeValue::FileIndex(i) => Some(i),
        other => other.udata_value(),
    }
}

/// Returns the address that a location consists of; `None`: it is another place, or one that is computed.
fn address<'a>(
    dwarf: &gimli::Dwarf<Slice<'a>>,
    unit: &Unit<Slice<'a>>,
    location: AttributeValue<Slice<'a>>,
) -> Option<u64> {
    let AttributeValue::Exprloc(Expression(bytes)) = location else { return None };
    let mut operations = Expression(bytes).operations(unit.encoding());
    let address = match operations.next().ok()?? {
        Operation::Address { address } => address,
        Operation::AddressIndex { index } => dwarf.address(unit, index).ok()?,
        _ => return None,
    };
    matches!(operations.next(), Ok(None)).then_some(address)
}

/// Returns the file and the line of an entry, or of the entry that declares it: a static member, say.
fn place<'a>(
    dwarf: &gimli::Dwarf<Slice<'a>>,
    unit: &Unit<Slice<'a>>,
    entry: &Entry<'a>,
) -> Option<Place> {
    let (mut file, mut line) = (entry.file, entry.line);
    if let (Some(at), true) = (entry.declaration, file.is_none() || line.is_none()) {
        let mut entries = unit.entries_raw(Some(at)).ok()?;
        let abbreviation = entries.read_abbreviation().ok()??;
        let declaration = read(&mut entries, abbreviation.attributes()).ok()?;
        (file, line) = (file.or(declaration.file), line.or(declaration.line));
    }
    let program = unit.line_program.as_ref()?;
    let file = program.header().file(file?)?;
    let name = dwarf.attr_string(unit, file.path_name()).ok()?;
    let name = String::from_utf8_lossy(name.slice());
    let name = name.rsplit('/').next().unwrap_or(&name).to_owned();
    Some((name, u32::try_from(line?).ok()?))
}
