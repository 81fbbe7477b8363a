//! Describes what a recording has cost so far.

use prof_collect::Peek;
use prof_os::stat::Stat;
use prof_trace::values::text;
use serde_json::Value;
use std::time::Duration;

/// Processor time that a recording has taken since the attach.
pub(super) struct Cost {
    /// Time of the collector.
    collector: Duration,
    /// Time of the hook in the target's threads; `None`: it is measured only if there is a budget.
    hook: Option<Duration>,
}

impl Cost {
    /// Reads the cost; `None` if the collector is gone.
    pub(super) fn of(peek: &Peek) -> Option<Self> {
        let stat = Stat::of(peek.collector.0).filter(|_| peek.collector_alive)?;
        // A collector in another PID namespace has another pid here, which may be that of another process.
        let is_it = stat.start() == Some(peek.collector.1);
        is_it
            .then(|| Self { collector: Duration::from_millis(stat.cpu_ms()), hook: peek.hook_time })
    }

    /// Describes the cost within the time since the attach.
    pub(super) fn text(&self, attached: Option<Duration>) -> String {
        let of = |who: &str, d: Duration| format!("{who} {}", text::time(d));
        let hook = self.hook.map(|d| of("hook", d));
        let each: Vec<String> = hook.into_iter().chain([of("collector", self.collector)]).collect();
        let all = (self.collector + self.hook.unwrap_or_default()).as_secs_f64();
        let part = attached.filter(|d| *d >= Duration::from_secs(1)).map(|d| {
            let what = if self.hook.is_some() { "together" } else { "that is" };
            format!("; {what} {:.1} % of a processor", 100.0 * all / d.as_secs_f64())
        });
        format!("{} of processor time{}", each.join(", "), part.unwrap_or_default())
    }

    /// Adds the fields of the JSON.
    pub(super) fn put(&self, v: &mut Value) {
        let ns = |d: Duration| u64::try_from(d.as_nanos()).unwrap_or(u64::MAX);
        v["collector_cpu_ns"] = ns(self.collector).into();
        v["hook_cpu_ns"] = self.hook.map(ns).into();
    }
}
