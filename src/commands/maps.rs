//! `prof maps`: shows the mappings of a process.

use super::by_process::{ByProcess, each};
use super::input::{IndexArgs, Locate, resolve, say_losses};
use super::report::{Format, print};
use crate::failure::usage;
use crate::term;
use anyhow::Result;
use clap::error::ErrorKind as ClapError;
use clap::{Arg, ArgAction, ArgMatches, Args, Command, FromArgMatches};
use prof_analyze::maps::{FIELDS, MapFilter, MapGroupBy, MapSort, Maps, MapsOptions, MapsReport};
use prof_analyze::report::{FilterData, Style};
use std::process::ExitCode;

/// Show the mappings of a process: address space, resident memory, who made them
///
/// Mappings that were made by a call that prof recorded have its stack. Others were found by looks at /proc/PID/maps:
/// they are seen, not caught.
#[derive(Args, Clone, Debug)]
pub(crate) struct MapsArgs {
    /// A recording, or the id of a process that is being recorded
    /// [default: the newest recording in the current folder]
    #[arg(value_name = "FILE|PID")]
    pub input: Option<String>,
    #[command(flatten)]
    #[allow(missing_docs)]
    pub index: IndexArgs,

    /// Number of mappings or groups to show; 0 shows all [default: 40]
    #[arg(short = 'n', long, value_name = "N")]
    pub top: Option<usize>,

    /// The key to sort by, largest first; time and address: smallest first
    #[arg(short, long, value_name = "KEY", value_enum, default_value_t = MapSort::Size)]
    pub sort: MapSort,

    /// The other way round
    #[arg(long)]
    pub reverse: bool,

    /// Group the mappings by this
    #[arg(long, value_name = "WHAT", value_enum)]
    pub group_by: Option<MapGroupBy>,

    /// Show all of this mapping: its regions, its use over time, its stacks
    #[arg(long, value_name = "ID", conflicts_with_all = ["group_by", "over_time"])]
    pub map: Option<u32>,

    /// Show the sums over time: address space, resident, anonymous, dirty, clean, swapped out
    #[arg(long)]
    pub over_time: bool,

    /// The format of the output
    #[arg(short, long, value_name = "FORMAT", value_enum, default_value_t = Format::Text)]
    pub format: Format,

    /// Print the question as a script for `prof script`, and don't answer it
    #[cfg(feature = "script")]
    #[arg(long, conflicts_with_all = ["reverse", "group_by", "map", "over_time", "format"])]
    pub as_script: bool,

    #[command(flatten)]
    #[allow(missing_docs)]
    pub filter: MapFilterArgs,

    #[command(flatten)]
    #[allow(missing_docs)]
    pub by: ByProcess,
}

/// The filter options: one for each field.
#[derive(Clone, Debug, Default)]
pub(crate) struct MapFilterArgs(pub MapFilter);

impl FromArgMatches for MapFilterArgs {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, clap::Error> {
        let mut filters = Self::default();
        filters.update_from_arg_matches(matches)?;
        Ok(filters)
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        for field in FIELDS {
            for value in matches.get_many::<String>(field.name).into_iter().flatten() {
                let set = self.0.set(field.name, value);
                set.map_err(|e| clap::Error::raw(ClapError::ValueValidation, e))?;
            }
        }
        Ok(())
    }
}

impl Args for MapFilterArgs {
    fn augment_args(command: Command) -> Command {
        // `--map` shows one mapping, and is no filter here.
        FIELDS.iter().fold(command, |command, field| {
            let aliases = field.aliases.iter().filter(|a| **a != "map");
            let arg = Arg::new(field.name)
                .long(field.name)
                .aliases(aliases)
                .value_name(field.value)
                .action(ArgAction::Append)
                .help(field.help)
                .help_heading("Filters (several: all must hold)");
            command.arg(arg)
        })
    }

    fn augment_args_for_update(command: Command) -> Command {
        Self::augment_args(command)
    }
}

/// Runs the command.
///
/// # Errors
/// If the recording can't be read, or standard output can't be written to.
pub(crate) fn run(args: &MapsArgs, locate: Locate<'_>) -> Result<ExitCode> {
    #[cfg(feature = "script")]
    if args.as_script {
        print(&prof_script::maps_script(&args.filter.0, args.top, args.sort))?;
        return Ok(ExitCode::SUCCESS);
    }
    if args.by.by_process {
        let of = (args.input.as_deref(), &*args.index.pid);
        return each(of, args.format, locate, |path| {
            let mut one = MapsArgs { input: Some(path), by: ByProcess::default(), ..args.clone() };
            one.index.pid.clear();
            run(&one, locate)
        });
    }
    let path = resolve(args.input.as_deref(), locate)?;
    let index = args.index.open_one(&path)?;
    say_losses(index.analysis());
    let analysis = index.analysis();
    let maps = Maps::of(analysis)?;
    let mut filter = args.filter.0.clone();
    if let Some(id) = args.map {
        if maps.is_recorded() && id >= maps.count() {
            let all = maps.count();
            return Err(usage(format!(
                "--map {id}: there is no such mapping; the recording has {all}, numbered from 0 on"
            )));
        }
        filter.set("id", &id.to_string()).map_err(|e| usage(e.to_string()))?;
    }
    filter.check(analysis.meta()).map_err(usage)?;
    let given = |(name, value): &(&str, String)| FilterData {
        name: (*name).to_owned(),
        value: value.clone(),
    };
    let options = MapsOptions {
        top: args.top.unwrap_or(40),
        sort: args.sort,
        reverse: args.reverse,
        group_by: args.group_by,
        details: args.map.is_some(),
        over_time: args.over_time,
        filter: filter.given().iter().map(given).collect(),
        live: !filter.is_about_time(),
        without_ours: !filter.is_about_ours(),
    };
    let report = MapsReport::new(analysis, &maps, &filter, &options);
    print(&match args.format {
        Format::Text => {
            report.text(Style { color: term::color(), width: term::width(), ..Style::default() })
        }
        Format::Json => report.json() + "\n",
    })?;
    Ok(ExitCode::SUCCESS)
}
