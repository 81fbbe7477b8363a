//! Resolves code addresses to functions, files and lines.

mod alive;
mod cache;
mod debuginfod;
mod declared;
mod demangle;
mod dwarf;
mod elf;
mod embedded;
mod find;
mod frame;
mod jit;
mod names;
mod options;
mod recorded;
mod scope;
mod table;
mod unpack;
mod variables;

use crate::Analysis;
use crate::load::{BEFORE_PC, LABEL, Pc};
use names::Names;
use prof_trace::runtimes::Runtime;
use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

pub use alive::is_target;
pub(crate) use cache::of_user as cache_folder;
pub use debuginfod::{Debuginfod, Tell};
pub(crate) use demangle::shorten;
pub use demangle::{class_name, demangle};
pub use embedded::suppressions as embedded_suppressions;
pub(crate) use find::paths;
pub use frame::{Frame, Unnamed};
pub use options::{SymbolCache, SymbolOptions};
pub(crate) use recorded::RecordedNames;
pub use variables::{Variable, Variables};

/// The symbols of one module.
struct ModuleSymbols {
    path: Arc<str>,
    bias: u64,
    files: find::Files,
    cache: Option<cache::Cache>,
    /// Loaded when an address is not in the cache.
    loaded: Option<Loaded>,
    /// Time spent on addresses that were not in the cache.
    spent: Duration,
    /// Why frames of this module have no function.
    unnamed: Unnamed,
}

/// The symbols in the files of a module.
struct Loaded {
    table: table::Table,
    dwarf: Option<dwarf::Dwarf>,
    /// The names come from the recording.
    recorded: bool,
}

/// Symbolises the addresses of a recording. A module is loaded when its first address is looked up, and every address
/// is looked up once.
pub struct Symbolizer<'a> {
    analysis: &'a Analysis,
    modules: HashMap<u32, Option<ModuleSymbols>>,
    cache: HashMap<Pc, Arc<[Frame]>>,
    jit: Option<jit::Jit>,
    names: Names,
    counted: HashSet<Pc>,
    unnamed: BTreeMap<(Unnamed, Option<Arc<str>>), u64>,
}

impl<'a> Symbolizer<'a> {
    /// Creates a symbolizer for the addresses of a recording.
    pub fn new(analysis: &'a Analysis) -> Self {
        Self {
            analysis,
            modules: HashMap::new(),
            cache: HashMap::new(),
            jit: None,
            names: Names::new(analysis.symbol_options().short_names),
            counted: HashSet::new(),
            unnamed: BTreeMap::new(),
        }
    }

    /// Returns the frames of a code address, innermost first: its function, preceded by functions inlined there. They
    /// are never empty.
    pub fn frames(&mut self, pc: Pc) -> Arc<[Frame]> {
        let frames = self.peek(pc);
        if self.counted.insert(pc)
            && let Some(f) = frames.last().filter(|f| f.function.is_none())
        {
            let why = match self.modules.get(&pc.module) {
                Some(Some(m)) => m.unnamed,
                _ => Unnamed::NoModule,
            };
            *self.unnamed.entry((why, f.module.clone())).or_default() += 1;
        }
        frames
    }

    /// Returns the frames of a code address of the process as it is now: of modules that were loaded there one after the other,
    /// the last is meant. `exact`: see [`Pc`].
    pub fn frames_at(&mut self, address: u64, exact: bool) -> Arc<[Frame]> {
        let call = address.wrapping_sub(u64::from(!exact));
        let module = self.analysis.meta().module_at(call).map_or(0, |(number, _)| number);
        self.frames(Pc { address, module, exact })
    }

    /// Returns the frames of a code address without counting it in the statistics.
    pub(crate) fn peek(&mut self, pc: Pc) -> Arc<[Frame]> {
        if let Some(f) = self.cache.get(&pc) {
            return f.clone();
        }
        let (analysis, names) = (self.analysis, &mut self.names);
        let load = || {
            let module = analysis.meta().modules.get(&pc.module)?;
            Some(ModuleSymbols::load(analysis, module))
        };
        let module = self.modules.entry(pc.module).or_insert_with(load);
        // Names that were recorded where the modules' files were are right; the files here may differ.
        let recorded = analysis.named().frames(analysis.meta(), pc, names);
        let frames = match module {
            _ if recorded.is_some() => recorded.unwrap_or_default(),
            Some(m) => m.frames(analysis, pc.module, pc, names),
            None => {
                let jit = self.jit.get_or_insert_with(|| jit::Jit::load(analysis));
                vec![made(pc, analysis, jit, names)]
            }
        };
        let frames: Arc<[Frame]> = frames.into();
        self.cache.insert(pc, frames.clone());
        frames
    }

    /// Returns the number of addresses that were looked up.
    pub fn looked_up(&self) -> u64 {
        self.counted.len() as u64
    }

    /// Returns why addresses have no function, and what would name them.
    pub fn why(&self, unnamed: Unnamed) -> &'static str {
        let runtimes = &self.analysis.meta().runtimes;
        match unnamed {
            Unnamed::NoModule if runtimes.contains(&Runtime::Java) => {
                "in no module, and in no /tmp/perf-PID.map: `jcmd PID Compiler.perfmap` writes one (JDK 17), and \
                 java -XX:+PreserveFramePointer has whole stacks"
            }
            Unnamed::NoModule if runtimes.contains(&Runtime::V8) => {
                "in no module, and in no /tmp/perf-PID.map: node --perf-basic-prof writes one"
            }
            other => other.why(),
        }
    }

    /// Returns the number of addresses without a function, by reason and module.
    pub fn unnamed(&self) -> impl Iterator<Item = (Unnamed, Option<&str>, u64)> {
        self.unnamed.iter().map(|((why, module), n)| (*why, module.as_deref(), *n))
    }
}

/// Returns a frame outside of modules.
fn made(pc: Pc, analysis: &Analysis, jit: &jit::Jit, names: &mut Names) -> Frame {
    let class = analysis.meta().before_classes.name(pc).map(|c| format!("class {}", class_name(c)));
    if let Some(label) = class.or_else(|| (pc == BEFORE_PC).then(|| LABEL.to_owned())) {
        let function = Some(names.function(&label));
        return Frame { address: pc.address, function, ..Frame::default() };
    }
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

impl Drop for Symbolizer<'_> {
    /// Caches names that took long to find.
    fn drop(&mut self) {
        let Some(options) = &self.analysis.symbol_options().cache else { return };
        for (number, module) in &self.modules {
            let Some(m) = module.as_ref().filter(|m| m.spent >= options.worth) else { continue };
            let lasting = m.loaded.as_ref().is_some_and(Loaded::is_lasting);
            if let Some(cache) = m.cache.as_ref().filter(|_| lasting) {
                let found = self.cache.iter().filter(|(pc, _)| pc.module == *number);
                cache.save(found.map(|(pc, frames)| (pc.exact, &frames[..])));
            }
        }
    }
}

impl Loaded {
    fn new(analysis: &Analysis, number: u32, files: &find::Files) -> Self {
        let options = analysis.symbol_options();
        let mut table = table::Table::default();
        // Symbols that the distribution has left in a stripped program.
        let inner = files.image.as_ref().and_then(|i| i.inner()).map(Arc::new);
        for image in files.image.iter().chain(&files.debug).chain(&inner) {
            table.add_image(image);
        }
        let mut recorded = false;
        if table.is_empty()
            && let Some(s) = analysis.symbols(number)
        {
            table.add_recorded(s);
            recorded = true;
        }
        table.finish();
        let dwarf = [&files.debug, &files.image]
            .into_iter()
            .flatten()
            .find_map(|image| dwarf::Dwarf::load(image.clone(), options));
        Self { table, dwarf, recorded }
    }

    /// Returns whether the names depend only on the files in the cache's key.
    fn is_lasting(&self) -> bool {
        !self.recorded && self.dwarf.as_ref().is_none_or(|d| !d.is_split())
    }

    fn frames(&self, exact: bool, plain: Frame, names: &mut Names) -> Vec<Frame> {
        let offset = plain.offset.unwrap_or(plain.address);
        // A return address may already belong to the next line, or function.
        let call = offset.wrapping_sub(u64::from(!exact));
        let symbol = self.table.find(call);
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
        // The last frame is the function that contains the code; those before it were inlined.
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

impl ModuleSymbols {
    fn load(analysis: &Analysis, module: &prof_trace::records::Module) -> Self {
        let files = find::find(analysis, module);
        let options = analysis.symbol_options();
        let unnamed = match (&files.image, files.replaced) {
            (Some(_), _) => Unnamed::NoSymbol,
            (None, true) => Unnamed::Replaced,
            (None, false) => Unnamed::NoFile,
        };
        let cache = options.cache.as_ref().zip(files.image.as_ref()).and_then(|(cache, image)| {
            let other = files.debug.as_ref().unwrap_or(image);
            let alternate = find::alternate(other, options);
            let package = find::package(image, options);
            let all = [files.image.clone(), files.debug.clone(), alternate, package];
            let key = cache::key(options.short_names, &module.build_id, &all)?;
            Some(cache::Cache::open(&cache.folder, key))
        });
        Self {
            path: module.path.as_str().into(),
            bias: module.bias,
            files,
            cache,
            loaded: None,
            spent: Duration::ZERO,
            unnamed,
        }
    }

    /// Returns the frames of an address in this module, see [`Symbolizer::frames`].
    fn frames(
        &mut self,
        analysis: &Analysis,
        number: u32,
        pc: Pc,
        names: &mut Names,
    ) -> Vec<Frame> {
        let plain = Frame {
            address: pc.address,
            module: Some(self.path.clone()),
            offset: Some(pc.address.wrapping_sub(self.bias)),
            ..Frame::default()
        };
        if let Some(known) = self.cache.as_ref().and_then(|c| c.frames(pc.exact, &plain)) {
            return known;
        }
        let begin = Instant::now();
        let files = &self.files;
        let loaded = self.loaded.get_or_insert_with(|| Loaded::new(analysis, number, files));
        let frames = loaded.frames(pc.exact, plain, names);
        self.spent += begin.elapsed();
        frames
    }
}
