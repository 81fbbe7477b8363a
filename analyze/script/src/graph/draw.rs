//! Draws a graph as SVG.

use super::{Graph, Show};
use plotters::coord::ranged1d::{KeyPointHint, NoDefaultFormatting, Ranged, ValueFormatter};
use plotters::prelude::*;
use prof_analyze::query::Span;
use prof_analyze::report::units;
use serde_json::{Value, json};
use std::ops::Range;

/// The unit of the left axis.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Unit {
    Bytes,
    Count,
}

/// A series with its values.
#[derive(Clone, Debug)]
pub(super) struct Line {
    /// Number of the series in the whole graph, which decides its colour.
    pub number: usize,
    pub label: Option<String>,
    /// The filters that select its blocks, if filters alone do.
    pub given: Vec<(&'static str, String)>,
    /// A value for each column.
    pub values: Vec<u64>,
}

/// A graph that is computed.
#[derive(Clone, Debug)]
pub(super) struct Plot {
    pub span: Span,
    /// Unix time of the recording's start, in nanoseconds.
    pub wall_ns: u64,
    pub unit: Unit,
    pub show: Show,
    /// Number of series of the whole graph.
    pub all: usize,
    pub legend: bool,
    pub lines: Vec<Line>,
}

impl Plot {
    /// Returns the graph of one series alone.
    pub(super) fn of_one(&self, i: usize) -> Self {
        let lines = self.lines.get(i).cloned().into_iter().collect();
        Self { lines, ..self.clone() }
    }

    /// Returns the data, for a page that draws the graph itself.
    pub(super) fn data(&self) -> Value {
        let series: Vec<Value> = self
            .lines
            .iter()
            .map(|l| json!({ "label": l.label, "filter": l.given, "values": l.values }))
            .collect();
        json!({
            "from_ns": self.span.from_ns,
            "to_ns": self.span.to_ns,
            "unit": if self.unit == Unit::Bytes { "bytes" } else { "count" },
            "series": series,
        })
    }

    fn y(&self, value: f64) -> String {
        match self.unit {
            Unit::Bytes => exact(value as u64),
            Unit::Count => units::number(value as u64),
        }
    }

    /// Returns the value at the top of the graph: above all series, and such that the legend in the upper left corner hides
    /// nothing of a level graph.
    fn top(&self, has_legend: bool) -> f64 {
        let most = |columns: usize| {
            let sum =
                |c| self.lines.iter().map(|l| l.values.get(c).copied().unwrap_or(0)).sum::<u64>();
            (0..columns).map(sum).max().unwrap_or(0).max(1) as f64
        };
        let labels = self.lines.iter().filter(|l| l.label.is_some()).count() as f64;
        let hidden = (LEGEND_MARGIN + LEGEND_LINE * labels) / f64::from(HEIGHT - 90);
        let left =
            if has_legend { most(self.span.width / 4) / (1.0 - hidden.min(0.5)) } else { 0.0 };
        left.max(most(self.span.width) * 1.04)
    }

    /// Returns a description of the left axis, if its unit does not say it.
    fn about(&self) -> String {
        let column = self.span.to_ns.saturating_sub(self.span.from_ns) / self.span.width as u64;
        let per = units::duration(column.max(1));
        match self.show {
            Show::Live => "live allocations".into(),
            Show::New => format!("allocations in {per}"),
            Show::Ended => format!("deallocations in {per}"),
            _ => String::new(),
        }
    }
}

const WIDTH: u32 = 1024;
const HEIGHT: u32 = 768;
/// Pixels of the legend: around its lines, and of a line.
const LEGEND_MARGIN: f64 = 34.0;
const LEGEND_LINE: f64 = 20.0;
/// Pixels of the left axis: of a letter of its labels, of its description, and the least, for half of the first moment.
const LETTER: u32 = 8;
const ABOUT: u32 = 24;
const LEAST: u32 = 44;
const FONT: &str = "sans-serif";
const GRID: RGBColor = RGBColor(214, 214, 214);
const TEXT: RGBColor = RGBColor(60, 60, 60);

fn color(graph: &Graph, line: &Line, all: usize) -> RGBColor {
    let Some((start, end)) = &graph.gradient else {
        let (r, g, b) = Palette99::pick(line.number).to_rgba().rgb();
        return RGBColor(r, g, b);
    };
    let part = if all > 1 { line.number as f32 / (all - 1) as f32 } else { 0.0 };
    let mix = |a: f32, b: f32| ((a + (b - a) * part).clamp(0.0, 1.0) * 255.0).round() as u8;
    RGBColor(mix(start.r, end.r), mix(start.g, end.g), mix(start.b, end.b))
}

/// Returns moments for labels, as round as they can be: at most `most` of them.
fn moments(from: f64, to: f64, most: usize, steps: &[f64]) -> Vec<f64> {
    let long = (to - from).max(f64::MIN_POSITIVE);
    let few = |step: &f64| long / step <= most as f64;
    let step = steps.iter().copied().find(few).unwrap_or(long / most as f64);
    let first = (from / step).ceil() as i64;
    let last = (to / step).floor() as i64;
    (first..=last).map(|i| i as f64 * step).collect()
}

/// Returns the lengths of time between labels, in seconds.
fn steps_of_time() -> Vec<f64> {
    let mut steps: Vec<f64> =
        (-9..0).flat_map(|e| [1.0, 2.0, 5.0].map(|m| m * 10f64.powi(e))).collect();
    steps.extend([1.0, 2.0, 5.0, 10.0, 15.0, 30.0].map(|m| m * 1.0));
    steps.extend([1.0, 2.0, 5.0, 10.0, 15.0, 30.0].map(|m| m * 60.0));
    steps.extend([1.0, 2.0, 3.0, 6.0, 12.0, 24.0, 48.0, 168.0].map(|m| m * 3600.0));
    steps.extend((1..40).map(|e| 168.0 * 3600.0 * 2f64.powi(e)));
    steps
}

fn steps_of_values(unit: Unit) -> Vec<f64> {
    match unit {
        Unit::Bytes => (0..64).map(|e| 2f64.powi(e)).collect(),
        Unit::Count => (0..20).flat_map(|e| [1.0, 2.0, 5.0].map(|m| m * 10f64.powi(e))).collect(),
    }
}

/// Returns bytes as a label, without rounding: labels are parts of a power of two, of which one decimal hides some.
fn exact(bytes: u64) -> String {
    const UNITS: [&str; 7] = ["B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];
    let unit = (bytes.max(1).ilog2() / 10) as usize;
    let part = bytes as f64 / (1u64 << (10 * unit)) as f64;
    format!("{} {}", (part * 1000.0).round() / 1000.0, UNITS[unit])
}

/// Returns seconds since the start as a label.
fn since(s: f64) -> String {
    if s == 0.0 {
        return "0".into();
    }
    let ns = (s * 1e9).round();
    // Rounded, as the multiple of a step such as 0.1 is not quite a number of milliseconds.
    let d = crate::duration::Duration(ns as i64);
    let text = d.to_string();
    if text.is_empty() { format!("{ns}ns") } else { text }
}

/// Returns a moment as the time of day in UTC.
fn of_day(wall_ns: u64, s: f64, step: f64) -> String {
    let ns = i128::from(wall_ns) + (s * 1e9).round() as i128;
    let in_day = ns.rem_euclid(86_400_000_000_000) as u64;
    let (seconds, part) = (in_day / 1_000_000_000, in_day % 1_000_000_000);
    let time = format!("{:02}:{:02}:{:02}", seconds / 3600, seconds / 60 % 60, seconds % 60);
    match step {
        1.0.. => time,
        0.001.. => format!("{time}.{:03}", part / 1_000_000),
        _ => format!("{time}.{:06}", part / 1000),
    }
}

/// An axis with labels at chosen values.
struct Axis<'a> {
    range: Range<f64>,
    keys: Vec<f64>,
    text: &'a dyn Fn(f64) -> String,
}

impl Ranged for Axis<'_> {
    type FormatOption = NoDefaultFormatting;
    type ValueType = f64;

    fn map(&self, value: &f64, (from, to): (i32, i32)) -> i32 {
        let part = (value - self.range.start) / (self.range.end - self.range.start);
        from + (f64::from(to - from) * part).round() as i32
    }

    fn key_points<Hint: KeyPointHint>(&self, _: Hint) -> Vec<f64> {
        self.keys.clone()
    }

    fn range(&self) -> Range<f64> {
        self.range.clone()
    }
}

impl ValueFormatter<f64> for Axis<'_> {
    fn format_ext(&self, value: &f64) -> String {
        (self.text)(*value)
    }
}

/// Draws the graph.
///
/// # Errors
/// If it can't be drawn, which is a bug.
pub(super) fn svg(graph: &Graph, plot: &Plot) -> Result<String, String> {
    let mut out = String::new();
    let area = SVGBackend::with_string(&mut out, (WIDTH, HEIGHT)).into_drawing_area();
    draw(graph, plot, &area).map_err(|e| format!("the graph can't be drawn: {e}"))?;
    area.present().map_err(|e| format!("the graph can't be drawn: {e}"))?;
    drop(area);
    Ok(out)
}

type Area<'a> = DrawingArea<SVGBackend<'a>, plotters::coord::Shift>;

fn draw(graph: &Graph, plot: &Plot, area: &Area<'_>) -> Result<(), Box<dyn std::error::Error>> {
    area.fill(&WHITE).map_err(|e| e.to_string())?;
    let (from, to) = (plot.span.from_ns as f64 / 1e9, plot.span.to_ns as f64 / 1e9);
    let has_legend = graph.legend && plot.legend;
    let top = plot.top(has_legend);
    let xs = moments(from, to, 8, &steps_of_time());
    let step = xs.get(1).zip(xs.first()).map_or(1.0, |(b, a)| b - a);
    let ys = moments(0.0, top, 9, &steps_of_values(plot.unit));
    let mut builder = ChartBuilder::on(area);
    builder.margin(12);
    if graph.axes {
        builder.margin_right(44).x_label_area_size(34).top_x_label_area_size(34);
        let longest = ys.iter().map(|v| plot.y(*v).len()).max().unwrap_or(0);
        let about = if plot.about().is_empty() { 0 } else { ABOUT };
        builder.y_label_area_size((LETTER * longest as u32 + 20 + about).max(LEAST));
    }
    let day = |s: f64| of_day(plot.wall_ns, s, step);
    let value = |v: f64| plot.y(v);
    let axis = |text, keys| Axis { range: from..to, keys, text };
    let left = |keys| Axis { range: 0.0..top, keys, text: &value };
    let mut chart = builder
        .build_cartesian_2d(axis(&day, xs.clone()), left(ys))
        .map_err(|e| e.to_string())?
        .set_secondary_coord(axis(&since, xs), left(Vec::new()));
    let font = (FONT, 15).into_font().color(&TEXT);
    let mut mesh = chart.configure_mesh();
    mesh.bold_line_style(GRID)
        .light_line_style(TRANSPARENT)
        .axis_style(TEXT.mix(0.8))
        .label_style(font.clone());
    if !graph.grid {
        mesh.disable_mesh();
    }
    if !graph.axes {
        mesh.disable_axes();
    }
    mesh.y_desc(plot.about()).draw().map_err(|e| e.to_string())?;
    if graph.axes {
        let mut axes = chart.configure_secondary_axes();
        axes.axis_style(TEXT.mix(0.8)).label_style(font).draw().map_err(|e| e.to_string())?;
    }
    let edges: Vec<f64> =
        (0..=plot.span.width).map(|i| plot.span.edge_ns(i) as f64 / 1e9).collect();
    let mut below = vec![0u64; plot.span.width];
    for line in &plot.lines {
        let color = color(graph, line, plot.all);
        let above: Vec<u64> = below.iter().zip(&line.values).map(|(b, v)| b + v).collect();
        let empty = line.values.iter().all(|v| *v == 0);
        let outline = outline(&edges, &below, &above);
        let series = (!empty).then(|| Polygon::new(outline, color.filled()));
        let drawn = chart.draw_series(series).map_err(|e| e.to_string())?;
        if let Some(label) = line.label.as_ref().filter(|_| !(empty && graph.only_non_empty)) {
            drawn.label(shortened(label)).legend(move |(x, y)| {
                Rectangle::new([(x, y - 6), (x + 14, y + 6)], color.filled())
            });
        }
        below = above;
    }
    if has_legend {
        chart
            .configure_series_labels()
            .position(SeriesLabelPosition::UpperLeft)
            .margin(14)
            .legend_area_size(22)
            .background_style(WHITE.mix(0.85))
            .border_style(TEXT.mix(0.5))
            .label_font((FONT, 15).into_font().color(&TEXT))
            .draw()
            .map_err(|e| e.to_string())?;
    }
    Ok(())
}

/// Returns a label that fits into a legend.
fn shortened(label: &str) -> String {
    const MOST: usize = 60;
    match label.char_indices().nth(MOST) {
        Some((at, _)) => format!("{}…", &label[..at]),
        None => label.to_owned(),
    }
}

/// Returns the outline of the area between two rows of values, without the points that lie on a level line.
fn outline(edges: &[f64], below: &[u64], above: &[u64]) -> Vec<(f64, f64)> {
    let side = |values: &[u64]| {
        let mut points: Vec<(f64, f64)> = Vec::new();
        let last = values.last().copied().unwrap_or(0);
        let all = edges.iter().zip(values.iter().copied().chain([last]));
        for (x, v) in all {
            let v = v as f64;
            if let [.., (_, a), (_, b)] = points[..]
                && a == v
                && b == v
            {
                points.pop();
            }
            points.push((*x, v));
        }
        points
    };
    let mut points = side(above);
    points.extend(side(below).into_iter().rev());
    points
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_are_round_and_few() {
        assert_eq!(moments(0.0, 10.2, 8, &steps_of_time()), [0.0, 2.0, 4.0, 6.0, 8.0, 10.0]);
        assert_eq!(moments(62.0, 185.0, 8, &steps_of_time()), [90.0, 120.0, 150.0, 180.0]);
        let bytes = moments(0.0, 5.2e6, 9, &steps_of_values(Unit::Bytes));
        assert_eq!(bytes, [0.0, 1048576.0, 2097152.0, 3145728.0, 4194304.0]);
        let labels = [0, 512, 768 << 10, 1 << 20, 5 << 18, 9 << 17, 1 << 63].map(exact);
        let exact = ["0 B", "512 B", "768 KiB", "1 MiB", "1.25 MiB", "1.125 MiB", "8 EiB"];
        assert_eq!(labels, exact);
        assert_eq!(since(0.3), "300ms");
        assert_eq!(since(90.0), "1m 30s");
        assert_eq!(of_day(1_700_000_000_000_000_000, 1.5, 0.5), "22:13:21.500");
        assert_eq!(of_day(1_700_000_000_000_000_000, 60.0, 10.0), "22:14:20");
    }

    #[test]
    fn outlines_leave_out_level_points() {
        let edges = [0.0, 1.0, 2.0, 3.0, 4.0];
        let found = outline(&edges, &[0, 0, 0, 0], &[1, 1, 1, 2]);
        let above = [(0.0, 1.0), (2.0, 1.0), (3.0, 2.0), (4.0, 2.0)];
        assert_eq!(found[..4], above);
        assert_eq!(found[4..], [(4.0, 0.0), (0.0, 0.0)]);
    }
}
