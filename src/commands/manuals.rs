//! `prof completions` and `prof man`: generate the files that a package installs beside the program from the command
//! line's own description, so that they are never out of date.

use crate::cli::Cli;
use crate::failure::usage;
use anyhow::{Context, Result};
use clap::Args;
use clap::{Command, CommandFactory};
use std::fs;
use std::path::Path;
use std::path::PathBuf;
use std::process::ExitCode;

/// Print completions for a shell, such as `prof completions bash > /etc/bash_completion.d/prof`
#[derive(Args, Debug)]
pub(crate) struct CompletionsArgs {
    /// The shell
    #[arg(value_enum)]
    pub shell: clap_complete::Shell,
}

/// Write the manual pages into a folder
#[derive(Args, Debug)]
pub(crate) struct ManArgs {
    /// The folder, such as /usr/local/share/man/man1; it is made if it is not there
    pub dir: PathBuf,
}

/// Writes the completions for a shell to standard output.
pub(crate) fn completions(args: &CompletionsArgs) -> Result<ExitCode> {
    let mut text = Vec::new();
    clap_complete::generate(args.shell, &mut Cli::command(), "prof", &mut text);
    super::report::print(&String::from_utf8_lossy(&text))?;
    Ok(ExitCode::SUCCESS)
}

/// Writes a page for prof and one for each command, in section 1, and prints the folder.
pub(crate) fn man(args: &ManArgs) -> Result<ExitCode> {
    fs::create_dir_all(&args.dir)
        .map_err(|e| usage(format!("cannot make the folder {}: {e}", args.dir.display())))?;
    let mut prof = Cli::command();
    prof.build();
    let commands: Vec<Command> = prof
        .get_subcommands()
        .filter(|c| !c.is_hide_set() && c.get_name() != "help")
        .cloned()
        .collect();
    page(&args.dir, "prof", prof)?;
    for command in commands {
        let name = format!("prof-{}", command.get_name());
        page(&args.dir, &name, command)?;
    }
    crate::term::path(&args.dir);
    Ok(ExitCode::SUCCESS)
}

fn page(dir: &Path, name: &str, command: Command) -> Result<()> {
    let mut text = Vec::new();
    clap_mangen::Man::new(command)
        .title(name)
        .render(&mut text)
        .context("cannot make a manual page")?;
    let path = dir.join(format!("{name}.1"));
    fs::write(&path, text).with_context(|| format!("cannot write {}", path.display()))
}
