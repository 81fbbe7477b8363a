//! Writes speedscope's file format: a sampled profile whose weights are the cost.

use super::profile::{base, label};
use super::{ExportError, Source};
use serde_json::json;
use std::collections::HashMap;
use std::io::Write;

pub(super) fn write(source: &Source<'_>, out: &mut dyn Write) -> Result<(), ExportError> {
    let profile = source.profile()?;
    let target = &source.index.analysis().meta().target;
    let mut known: HashMap<(String, Option<String>, Option<u32>), usize> = HashMap::new();
    let mut frames = Vec::new();
    let (mut samples, mut weights, mut total) = (Vec::new(), Vec::new(), 0u64);
    for stack in profile.stacks.iter().filter(|s| s.cost(source.cost) > 0) {
        let sample: Vec<usize> = profile
            .frames(stack)
            .rev()
            .map(|f| {
                let module = f.module.as_deref().map(base).unwrap_or_default();
                let name = match f.function {
                    Some(_) if !module.is_empty() => format!("{} [{module}]", label(f)),
                    _ => label(f),
                };
                *known
                    .entry((name.clone(), f.file.as_deref().map(str::to_owned), f.line))
                    .or_insert_with(|| {
                        let mut frame = json!({ "name": name });
                        if let Some(file) = &f.file {
                            frame["file"] = json!(**file);
                        }
                        if let Some(line) = f.line {
                            frame["line"] = json!(line);
                        }
                        frames.push(frame);
                        frames.len() - 1
                    })
            })
            .collect();
        samples.push(sample);
        weights.push(stack.cost(source.cost));
        total = total.saturating_add(stack.cost(source.cost));
    }
    let unit = if source.cost.unit() == "bytes" { "bytes" } else { "none" };
    let name = format!("{}: {}", target.comm, source.cost.name());
    let file = json!({
        "$schema": "https://www.speedscope.app/file-format-schema.json",
        "exporter": concat!("prof ", env!("CARGO_PKG_VERSION")),
        "name": name,
        "activeProfileIndex": 0,
        "shared": { "frames": frames },
        "profiles": [{
            "type": "sampled",
            "name": name,
            "unit": unit,
            "startValue": 0,
            "endValue": total,
            "samples": samples,
            "weights": weights,
        }],
    });
    serde_json::to_writer(&mut *out, &file).map_err(std::io::Error::from)?;
    writeln!(out)?;
    Ok(())
}
