//! Removes names from a recording before it is given away, as bytehound does: partially, by reducing paths to their
//! last component, or fully, by replacing every name by a number.

use prof_trace::records::{
    Allocators, CallFile, Calls, CensusClasses, Hooks, Mappings, Module, Scan, ScanRoots, Symbols,
    Target, Thread, root_kind, setting,
};
use std::collections::HashMap;

/// The degree to which names are removed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "clap", derive(clap::ValueEnum))]
pub enum Anonymize {
    /// No names
    #[default]
    None,
    /// Paths lose their folders; the command line and files are removed
    Partial,
    /// Functions, files, modules, threads and the program get numbers in place of names
    Full,
}

/// Numbers the names of one kind.
#[derive(Default)]
struct Numbers(HashMap<String, usize>);

impl Numbers {
    fn name(&mut self, prefix: &str, of: &str) -> String {
        let next = self.0.len();
        let n = *self.0.entry(of.to_owned()).or_insert(next);
        format!("{prefix}{n}")
    }
}

/// Replaces names; equal names get equal replacements.
#[derive(Default)]
pub(super) struct Names {
    how: Anonymize,
    modules: Numbers,
    files: Numbers,
    functions: Numbers,
    mappings: Numbers,
    roots: Numbers,
}

/// Returns the last component of a path.
fn base(path: &str) -> String {
    path.rsplit('/').find(|s| !s.is_empty()).unwrap_or(path).to_owned()
}

impl Names {
    pub(super) fn new(how: Anonymize) -> Self {
        Self { how, ..Self::default() }
    }

    pub(super) fn target(&self, t: &mut Target) {
        match self.how {
            Anonymize::None => return,
            Anonymize::Partial => t.exe = base(&t.exe),
            Anonymize::Full => {
                t.exe = "program".into();
                t.comm = "program".into();
            }
        }
        t.cmdline = vec![t.exe.clone()];
    }

    pub(super) fn thread(&self, t: &mut Thread) {
        if self.how == Anonymize::Full {
            t.name = format!("thread_{}", t.number);
        }
    }

    /// Returns the replacement for the path of a module. Names that are not paths (`[vdso]`) are the kernel's and stay.
    fn module_path(&mut self, path: &str) -> String {
        match self.how {
            _ if path.starts_with('[') => path.to_owned(),
            Anonymize::None => path.to_owned(),
            Anonymize::Partial => base(path),
            Anonymize::Full => self.modules.name("lib_", path),
        }
    }

    /// Values of the environment may contain paths.
    pub(super) fn allocators(&mut self, a: &mut Allocators) {
        if self.how == Anonymize::None {
            return;
        }
        for f in a.found.as_chunks_mut::<3>().0 {
            f[2] = self.module_path(&f[2]);
        }
        for s in a.settings.as_chunks_mut::<3>().0 {
            if s[0] == setting::ENVIRONMENT {
                s[2] = "(removed)".into();
            }
        }
    }

    pub(super) fn module(&mut self, m: &mut Module) {
        m.path = self.module_path(&m.path);
        if self.how == Anonymize::Full {
            m.build_id.clear();
        }
    }

    /// Replaces paths of mappings. A number of a name that was given earlier keeps its meaning, as each stays at its
    /// place.
    pub(super) fn mappings(&mut self, m: &mut Mappings) {
        for name in &mut m.names {
            // A program chooses the name of its anonymous memory.
            let own = name.starts_with("[anon:") || name.starts_with("[anon_shmem:");
            *name = match self.how {
                Anonymize::Full if own => self.modules.name("[anon:", name) + "]",
                _ => self.module_path(name),
            };
        }
    }

    /// Replaces the names of classes.
    pub(super) fn scan(&mut self, s: &mut Scan) {
        if self.how == Anonymize::Full {
            s.name.clear();
            for class in &mut s.classes {
                *class = self.functions.name("class_", class);
            }
        }
    }

    /// Replaces the names of the classes of blocks from before the recording.
    pub(super) fn census_classes(&mut self, c: &mut CensusClasses) {
        if self.how == Anonymize::Full {
            for class in &mut c.names {
                *class = self.functions.name("class_", class);
            }
        }
    }

    /// Replaces the names of roots, and those of their variables and modules.
    pub(super) fn scan_roots(&mut self, r: &mut ScanRoots) {
        if self.how == Anonymize::None {
            return;
        }
        let (Some(mut roots), Some(mut frames)) = (r.all(), r.all_frames()) else {
            *r = ScanRoots { ticks: r.ticks, ..ScanRoots::default() };
            return;
        };
        let mut new = ScanRoots { ticks: r.ticks, ..ScanRoots::default() };
        for root in &mut roots {
            root.module = root.module.as_deref().map(|m| self.module_path(m));
            if self.how == Anonymize::Full {
                root.name = self.roots.name("root_", &root.name);
                root.file = root.file.as_deref().map(|f| self.files.name("file_", f));
                root.variable =
                    root.variable.as_deref().map(|v| self.functions.name("variable_", v));
            } else if root.kind == root_kind::MAPPING {
                root.name = self.roots.name("memory_", &root.name);
            }
            new.put(root);
        }
        for f in &mut frames {
            f.module = f.module.as_deref().map(|m| self.module_path(m));
            if self.how == Anonymize::Full {
                f.name = self.roots.name("root_", &f.name);
                f.file = f.file.as_deref().map(|file| self.files.name("file_", file));
                f.function = f.function.as_deref().map(|name| self.function(name));
            }
            new.put_frame(f);
        }
        *r = new;
    }

    /// Replaces the path of a mapped file. A module that is mapped keeps the name that it has as a module.
    pub(super) fn call_file(&mut self, f: &mut CallFile) {
        f.path = self.module_path(&f.path);
        if self.how == Anonymize::Full {
            (f.device, f.inode) = (0, f.id.into());
        }
    }

    /// Replaces the names that a program has given to its mappings.
    pub(super) fn calls(&mut self, calls: &mut Calls) {
        if self.how != Anonymize::Full {
            return;
        }
        for (_, call) in calls.calls.iter_mut().filter(|c| !c.1.name.is_empty()) {
            call.name = self.mappings.name("map_", &call.name);
        }
    }

    pub(super) fn hooks(&mut self, h: &mut Hooks) {
        for k in &mut h.hooked {
            k.module = self.module_path(&k.module);
            k.function = self.function(&k.function);
        }
        for k in &mut h.not_hooked {
            k.module = self.module_path(&k.module);
            k.function = self.function(&k.function);
            // The reason may contain a path.
            let partial = self.how == Anonymize::Partial && k.reason.contains('/');
            if partial || self.how == Anonymize::Full {
                k.reason = "not said".into();
            }
        }
    }

    pub(super) fn function(&mut self, name: &str) -> String {
        match self.how {
            Anonymize::Full => self.functions.name("fn_", name),
            _ => name.to_owned(),
        }
    }

    pub(super) fn file(&mut self, path: &str) -> String {
        match self.how {
            Anonymize::None => path.to_owned(),
            Anonymize::Partial => base(path),
            Anonymize::Full => self.files.name("src_", path),
        }
    }

    /// Returns whether symbols of a module stay.
    pub(super) fn keeps(&self, _: &Symbols) -> bool {
        self.how != Anonymize::Full
    }

    /// Returns whether the modules' files stay.
    pub(super) fn keeps_files(&self) -> bool {
        self.how == Anonymize::None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_replaced_by_degrees() {
        let target = || Target {
            exe: "/srv/secret/app".into(),
            cmdline: vec!["app".into(), "--password=x".into()],
            comm: "app".into(),
            ..Target::default()
        };
        let mut t = target();
        Names::new(Anonymize::Partial).target(&mut t);
        assert_eq!((t.exe.as_str(), t.cmdline), ("app", vec!["app".to_owned()]));
        let mut t = target();
        Names::new(Anonymize::Full).target(&mut t);
        assert_eq!((t.exe.as_str(), t.comm.as_str()), ("program", "program"));
        let mut t = target();
        Names::new(Anonymize::None).target(&mut t);
        assert_eq!(t, target());
        let mut full = Names::new(Anonymize::Full);
        let names = [full.function("b"), full.function("a"), full.function("b")];
        assert_eq!(names, ["fn_0", "fn_1", "fn_0"]);
        assert_eq!(
            (full.file("/a/b.c"), full.module_path("[vdso]")),
            ("src_0".into(), "[vdso]".into())
        );
        let mut partial = Names::new(Anonymize::Partial);
        assert_eq!(
            (partial.file("/a/b.c"), partial.module_path("/l/x.so")),
            ("b.c".into(), "x.so".into())
        );
    }
}
