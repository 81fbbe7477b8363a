//! Functions that the user has named, as `MODULE:FUNCTION(ARGUMENTS)`.

use crate::hooked::found::Found;
use crate::process::elf::Module;
use crate::{Refusal, RemoteMemory, Result};
use prof_os::{Pid, process};
use prof_trace::shared::Kind;

/// Number of arguments that every calling convention known to prof passes in registers.
const ARGUMENTS: u8 = 6;

/// The role of a named function.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// The function returns a block. The user names the argument that is its size.
    Alloc,
    /// The function takes a block and returns another or the same one. The user names both arguments: block, size.
    Realloc,
    /// The function releases a block. The user names the argument that is the block.
    Free,
}

/// A function that the user has named.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Named {
    /// The function's role.
    pub role: Role,
    /// The module: the file's name, with or without the part behind `.so`, or its path.
    pub module: String,
    /// The function's symbol.
    pub function: String,
    /// Index of the argument that is the size, from 0.
    pub size_arg: u8,
    /// Index of the argument that is the block, from 0.
    pub block_arg: u8,
}

impl Named {
    /// Parses `MODULE:FUNCTION(N)`, or `MODULE:FUNCTION(BLOCK,SIZE)` for a reallocation. Arguments are counted from
    /// 1.
    ///
    /// # Errors
    /// With a description of the mistake.
    pub fn parse(role: Role, text: &str) -> Result<Self, String> {
        let form = match role {
            Role::Alloc => "MODULE:FUNCTION(SIZE)",
            Role::Realloc => "MODULE:FUNCTION(BLOCK,SIZE)",
            Role::Free => "MODULE:FUNCTION(BLOCK)",
        };
        let wrong = || {
            format!(
                "not of the form {form}, such as libpool.so:pool_function({})",
                if role == Role::Realloc { "1,2" } else { "1" }
            )
        };
        let (module, rest) = text.split_once(':').ok_or_else(wrong)?;
        let (function, arguments) =
            rest.strip_suffix(')').and_then(|r| r.rsplit_once('(')).ok_or_else(wrong)?;
        if module.is_empty() || function.is_empty() {
            return Err(wrong());
        }
        let number = |text: &str| match text.trim().parse::<u8>() {
            Ok(n @ 1..=ARGUMENTS) => Ok(n - 1),
            Ok(_) => Err(format!("arguments are counted from 1 to {ARGUMENTS}")),
            Err(_) => Err(wrong()),
        };
        let (block_arg, size_arg) = match (role, arguments.split_once(',')) {
            (Role::Realloc, Some((block, size))) => (number(block)?, number(size)?),
            (Role::Realloc, None) | (_, Some(_)) => return Err(wrong()),
            (Role::Alloc, None) => (0, number(arguments)?),
            (Role::Free, None) => (number(arguments)?, 0),
        };
        let (module, function) = (module.to_owned(), function.to_owned());
        Ok(Self { role, module, function, size_arg, block_arg })
    }

    /// Finds the function in the target.
    ///
    /// # Errors
    /// If the target has no such module, or the module no such function.
    pub(crate) fn find(
        &self,
        pid: Pid,
        mem: &RemoteMemory,
        modules: &[Module],
    ) -> Result<Vec<Found>> {
        let kind = match self.role {
            Role::Alloc => Kind::NamedAlloc,
            Role::Realloc => Kind::NamedRealloc,
            Role::Free => Kind::NamedFree,
        };
        module(pid, modules, &self.module)?;
        let mut found: Vec<Found> = Vec::new();
        for (index, m) in modules.iter().enumerate().filter(|(_, m)| m.is_named(&self.module)) {
            let symbols = m.symbols(pid, mem, |n| n == self.function);
            for s in symbols.iter().filter(|s| !s.indirect) {
                let args = (self.size_arg, self.block_arg);
                found.push(Found { args, ..Found::new(s, kind, index) });
            }
        }
        if found.is_empty() {
            let (module, function) = (self.module.clone(), self.function.clone());
            return Err(
                Refusal::NoFunction { pid, comm: process::comm(pid), module, function }.into()
            );
        }
        Ok(found)
    }
}

/// Finds a module by the name that the user gives.
///
/// # Errors
/// If there is none.
pub(crate) fn module<'a>(pid: Pid, modules: &'a [Module], name: &str) -> Result<&'a Module> {
    modules.iter().find(|m| m.is_named(name)).ok_or_else(|| {
        let there: Vec<&str> = modules.iter().map(Module::file_name).collect();
        let (comm, module, there) = (process::comm(pid), name.to_owned(), there.join(", "));
        Refusal::NoModule { pid, comm, module, there }.into()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_understood() {
        let n = Named::parse(Role::Alloc, "libpool.so:pool_alloc(2)").expect("good");
        assert_eq!((n.module.as_str(), n.function.as_str()), ("libpool.so", "pool_alloc"));
        assert_eq!((n.size_arg, n.block_arg), (1, 0));
        let n = Named::parse(Role::Realloc, "/a b/x:_ZN4Pool4growEPvm(2, 3)").expect("good");
        assert_eq!((n.module.as_str(), n.size_arg, n.block_arg), ("/a b/x", 2, 1));
        let n = Named::parse(Role::Free, "app:put(6)").expect("good");
        assert_eq!(n.block_arg, 5);
        let wrong = [
            "", "f(1)", "m:f", "m:f()", "m:f(x)", "m:f(1,2)", "m:(1)", ":f(1)", "m:f(0)", "m:f(7)",
            "m:f(1", "m:f(300)", "m:f(-1)",
        ];
        for text in wrong {
            assert!(Named::parse(Role::Free, text).is_err(), "{text}");
        }
        assert!(Named::parse(Role::Realloc, "m:f(1)").is_err());
        assert!(Named::parse(Role::Alloc, "m:f(0)").unwrap_err().contains("from 1"));
    }
}
