//! Code addresses to functions, files and lines.

mod demangle;
mod dwarf;
mod elf;
mod embedded;
mod find;
mod jit;
mod names;
mod options;
mod recorded;
mod table;
mod unpack;

use crate::Analysis;
use crate::load::Pc;
use names::Names;
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

pub use demangle::demangle;
pub use embedded::suppressions as embedded_suppressions;
pub use find::is_target;
pub(crate) use find::paths;
pub use options::SymbolOptions;
pub(crate) use recorded::Named;

/// A frame of a stack, named as far as it could be.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Frame {
    /// The address in the stack: where the call returns to.
    pub address: u64,
    /// The function, demangled.
    pub function: Option<Arc<str>>,
    /// How far behind the start of its symbol the address lies, if that is known.
    pub function_offset: Option<u64>,
    /// The source file.
    pub file: Option<Arc<str>>,
    /// The line in it.
    pub line: Option<u32>,
    /// Path of the module.
    pub module: Option<Arc<str>>,
    /// The address as the module's file counts it (what `addr2line` and `objdump` take).
    pub offset: Option<u64>,
    /// The compiler put this function's code into that of the next frame.
    pub inlined: bool,
}

/// Why a frame has no function.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Unnamed {
    /// It is in no module: made by a just-in-time compiler that writes no map, or nonsense.
    NoModule,
    /// The file of its module was not found.
    NoFile,
    /// The file of its module is another build by now.
    Replaced,
    /// No symbol of its module has the address: it was stripped.
    NoSymbol,
}

impl Unnamed {
    /// The reason, in words.
    pub fn why(self) -> &'static str {
        match self {
            Unnamed::NoModule => "in no module, and in no /tmp/perf-PID.map",
            Unnamed::NoFile => "the file was not found",
            Unnamed::Replaced => "the file is another build by now",
            Unnamed::NoSymbol => "no symbol for these addresses, and no debug file found",
        }
    }
}

/// What is known of one module.
struct ModuleSymbols {
    path: Arc<str>,
    bias: u64,
    table: table::Table,
    dwarf: Option<dwarf::Dwarf>,
    /// Why a frame of it has no function.
    unnamed: Unnamed,
}

/// Names the addresses of a recording. Modules are loaded when one of their addresses is asked
/// for, and every address is looked up once.
pub struct Symbolizer<'a> {
    analysis: &'a Analysis,
    modules: HashMap<u32, Option<ModuleSymbols>>,
    cache: HashMap<Pc, Arc<[Frame]>>,
    jit: Option<jit::Jit>,
    names: Names,
    unnamed: BTreeMap<(Unnamed, Option<Arc<str>>), u64>,
}

impl<'a> Symbolizer<'a> {
    /// For the addresses of a recording.
    pub fn new(analysis: &'a Analysis) -> Self {
        Self {
            analysis,
            modules: HashMap::new(),
            cache: HashMap::new(),
            jit: None,
            names: Names::new(analysis.symbol_options().short_names),
            unnamed: BTreeMap::new(),
        }
    }

    /// The frames of a code address: one, preceded by those that were inlined into it, innermost
    /// first. Never empty.
    pub fn frames(&mut self, pc: Pc) -> Arc<[Frame]> {
        if let Some(f) = self.cache.get(&pc) {
            return f.clone();
        }
        let (analysis, names) = (self.analysis, &mut self.names);
        let load = || {
            let module = analysis.meta().modules.get(&pc.module)?;
            Some(ModuleSymbols::load(analysis, module))
        };
        let module = self.modules.entry(pc.module).or_insert_with(load);
        let mut why = Unnamed::NoModule;
        // What was looked up where the files were is right; here there may be others.
        let recorded = analysis.named().frames(analysis.meta(), pc, names);
        let frames = match module {
            _ if recorded.is_some() => recorded.unwrap_or_default(),
            Some(m) => {
                why = m.unnamed;
                m.frames(pc, names)
            }
            None => {
                let jit = self.jit.get_or_insert_with(|| jit::Jit::load(analysis));
                vec![made(pc, jit, names)]
            }
        };
        if let Some(f) = frames.last().filter(|f| f.function.is_none()) {
            *self.unnamed.entry((why, f.module.clone())).or_default() += 1;
        }
        let frames: Arc<[Frame]> = frames.into();
        self.cache.insert(pc, frames.clone());
        frames
    }

    /// How many addresses were looked up.
    pub fn looked_up(&self) -> u64 {
        self.cache.len() as u64
    }

    /// Addresses without a function, by reason and module.
    pub fn unnamed(&self) -> impl Iterator<Item = (Unnamed, Option<&str>, u64)> {
        self.unnamed.iter().map(|((why, module), n)| (*why, module.as_deref(), *n))
    }
}

/// A frame of no module.
fn made(pc: Pc, jit: &jit::Jit, names: &mut Names) -> Frame {
    let call = pc.address.wrapping_sub(u64::from(!pc.exact));
    match jit.find(call) {
        None => Frame { address: pc.address, ..Frame::default() },
        Some(f) => Frame {
            address: pc.address,
            function: Some(names.function(&f.name)),
            function_offset: Some(pc.address.wrapping_sub(f.start)),
            module: Some("[jit]".into()),
            ..Frame::default()
        },
    }
}

impl ModuleSymbols {
    fn load(analysis: &Analysis, module: &prof_trace::records::Module) -> Self {
        let found = find::find(analysis, module);
        let options = analysis.symbol_options();
        let mut table = table::Table::default();
        // The symbols of a stripped program that its distribution left in it.
        let inner = found.image.as_ref().and_then(|i| i.inner()).map(Arc::new);
        for image in found.image.iter().chain(&found.debug).chain(&inner) {
            table.add_image(image);
        }
        if table.is_empty()
            && let Some(s) = analysis.symbols(module.number)
        {
            table.add_recorded(s);
        }
        table.finish();
        let dwarf = [&found.debug, &found.image]
            .into_iter()
            .flatten()
            .find_map(|image| dwarf::Dwarf::load(image.clone(), options));
        let unnamed = match (&found.image, found.replaced) {
            (Some(_), _) => Unnamed::NoSymbol,
            (None, true) => Unnamed::Replaced,
            (None, false) => Unnamed::NoFile,
        };
        Self { path: module.path.as_str().into(), bias: module.bias, table, dwarf, unnamed }
    }

    /// See [`Symbolizer::frames`].
    fn frames(&self, pc: Pc, names: &mut Names) -> Vec<Frame> {
        let address = pc.address;
        let offset = address.wrapping_sub(self.bias);
        // A return address may already belong to the next line, or function.
        let call = offset.wrapping_sub(u64::from(!pc.exact));
        let symbol = self.table.find(call);
        let plain = Frame {
            address,
            module: Some(self.path.clone()),
            offset: Some(offset),
            ..Frame::default()
        };
        let mut frames: Vec<Frame> = Vec::new();
        if let Some(dwarf) = &self.dwarf {
            dwarf.frames(call, |function, file, line| {
                frames.push(Frame {
                    function: function.map(|name| names.function(name)),
                    file: file.map(|path| names.file(path)),
                    line,
                    inlined: true,
                    ..plain.clone()
                });
            });
        }
        if frames.is_empty() {
            frames.push(plain);
        }
        // The last is the function whose code it is, those before it were inlined.
        if let Some(last) = frames.last_mut() {
            last.inlined = false;
            if let Some(s) = symbol {
                last.function_offset = Some(offset.wrapping_sub(s.start));
                last.function.get_or_insert_with(|| names.function(&s.name));
            }
        }
        frames
    }
}
